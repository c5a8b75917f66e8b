"""A folder of trained coalitions, for the commands of ``value`` that retrain. It loads torch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmerit.contract.semivalues import EMPTY_COALITION, Coalition, SampledValues, Sampling
from fedmerit.errors import BadInput
from fedmerit_cli.printing import counting, exit_if_failed, show
from fedmerit_cli.terminal import console
from fedmerit_evaluation.figures.dots_and_bars import value_ranges
from fedmerit_evaluation.figures.drawing import png
from fedmerit_evaluation.figures.pages import save_png
from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.ground_truth import coalitions
from fedmerit_evaluation.ground_truth.coalitions import Training
from fedmerit_evaluation.ground_truth.ground_truths import coalition_utilities, write_sampling
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.ranks import Ranking
from fedmerit_evaluation.studies.execution import Workers
from fedmerit_evaluation.studies.study import (
    describe_cost,
    describe_precision,
    find_folds,
    open_study_sites,
    parse_seeds,
)


class CoalitionStudy:
    """The trainings of a study, and its folder.

    Args:
        out: the folder.
        method: that trains every coalition.
        seeds: as the user wrote them.
        workers: that train.
        settings: of every training.
        options: further ones of `fedmerit.engines.runs.create`; ``rounds``, and ``sites`` or a ``script`` among them.
        folds: whether each is trained on every fold of the sites, as `find_folds`.

    Raises:
        BadInput: one of these cannot be used, or there is only one site.
    """

    def __init__(
        self,
        out: Path,
        method: str,
        seeds: str,
        workers: Workers,
        settings: Mapping[str, str],
        options: Mapping[str, Any],
        folds: bool | None = None,
    ):
        self.out, self.method, self.workers = out, method, workers
        self.settings, self.options = settings, options
        sites = open_study_sites(options)
        sites.require_evaluation("values by retraining")
        self.sites, self.names = sites.folders, sites.names
        if len(self.names) < 2:
            where = options.get("sites") or "--clients 1"
            raise BadInput(f"{where}: holds only {self.names[0]}; a site's value needs at least one other site")
        self.seeds, self.folds = parse_seeds(seeds), find_folds(options.get("sites"), folds)
        self.trainings: dict[Path, Training] = {}

    def print_precision(self) -> None:
        """Print how wide intervals of a gain over local training will be."""
        for line in describe_precision(self.sites, len(self.seeds), len(self.folds)):
            console.print(line)

    def train(self, members: Iterable[Coalition], seeds: Sequence[int] | None = None) -> None:
        """Train the missing coalitions, for all seeds or some; exit with 1 if a training failed."""
        planned = self._prepare(members, self.seeds if seeds is None else seeds)
        self.trainings |= {training.folder: training for training in planned}
        unfinished = [training for training in planned if not training.finished]
        if not unfinished:
            return
        begun = [training.folder for training in unfinished if not training.trained]
        console.print(describe_cost(len(unfinished), len(planned), begun))
        with counting("trainings", len(unfinished)) as on_end:
            failed = coalitions.execute_trainings(unfinished, self.workers, on_end)
        coalitions.write_results(self.out)
        exit_if_failed(failed, advice="the same command resumes from what is finished")

    def _prepare(self, members: Iterable[Coalition], seeds: Sequence[int]) -> list[Training]:
        return coalitions.prepare(self.out, members, seeds, self.method, self.settings, self.options, self.folds)

    def sample(self, rule: Sampling) -> dict[int, SampledValues]:
        """Train the coalitions of sampled permutations, seed by seed; return the estimates by seed."""
        self._prepare([frozenset(self.names)], self.seeds)  # it may refuse, before the rule is written
        write_sampling(self.out, rule)
        estimates = {}
        for seed in self.seeds:
            seed_rule = replace(rule, seed=seed)
            estimate = seed_rule.estimate({EMPTY_COALITION: 0.0})
            while estimate.needed:
                self.train(estimate.needed, [seed])
                estimate = seed_rule.estimate(coalition_utilities(self.results()).get(seed, {EMPTY_COALITION: 0.0}))
            console.print(f"seed {seed}: {estimate.ended}")
            estimates[seed] = estimate
        return estimates

    def results(self) -> Results:
        """Return the results of the trainings that this command requested."""
        return coalitions.collect_results(list(self.trainings.values()))

    def show(self, tables: Sequence[Table], rankings: Mapping[str, Ranking] | None = None) -> None:
        """Print the tables; write them, their results, and one figure of the rankings [points], if there are any."""
        coalitions.write_results(self.out)
        show(tables, self.out)
        if rankings:
            drawn = value_ranges(rankings, dict.fromkeys(rankings, "points of Dice"))
            save_png(self.out / "figures" / "values.png", png(drawn))
        figure = ", figure" if rankings else ""
        console.print(f"trainings, results{figure} and tables: {self.out}", soft_wrap=True)
