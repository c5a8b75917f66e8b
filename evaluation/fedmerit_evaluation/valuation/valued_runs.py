"""Values of the sites by estimators, over runs of several seeds or folds: rankings, flips, costs."""

import math
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedmerit.contract.semivalues import FloatArray
from fedmerit.errors import BadInput
from fedmerit.evidence.signatures import Trust
from fedmerit.schema.run_info import read_run
from fedmerit.trust import allow_places
from fedmerit_evaluation.figures.tables import Table, plain_name
from fedmerit_evaluation.ground_truth.reliability import POINTS
from fedmerit_evaluation.ground_truth.value_tables import ranking_table
from fedmerit_evaluation.results.runs import Run, declares_estimates, label_runs, open_run, require_folds_or_none
from fedmerit_evaluation.statistics.inference import MIN_CASES, SampleSize
from fedmerit_evaluation.statistics.ranks import NO_VARIANCE, Ranking, count_rank_flips, ranking
from fedmerit_evaluation.statistics.resampling import error_variance
from fedmerit_evaluation.valuation.estimators import (
    Estimator,
    benefit_matrix,
    efficiency_gap,
    estimators,
    parse,
    parse_all,
)
from fedmerit_evaluation.valuation.observed_run import DRAWS, ObservedRun, prepared_sites, require_same_sites

UNMEASURED = "a count or another measure of data: no test shows how much more a larger one is worth"
SINGLE = "a site has one validation patient: no confidence interval, and no significant difference"


@dataclass(frozen=True)
class Repeats(SampleSize):
    """The sample behind values that evaluate no patients: only seeds or folds count."""

    is_tested: bool = True  # not of counts

    @property
    def insufficient_data(self) -> str:
        """The reason why nothing may be called significant; "" if there are enough seeds or folds."""
        enough = SampleSize(MIN_CASES, self.seeds, folds=self.folds)
        return enough.insufficient_data if self.is_tested else UNMEASURED


@dataclass(frozen=True, eq=False)
class Valued:
    """The runs of the same sites, and their values by each estimator."""

    runs: Sequence[ObservedRun]
    of_each: Mapping[str, FloatArray]  # by spec, of each run (r, n, D)
    auditors: Trust | None = None  # pay counts only rounds whose drawn steps somebody with a certificate of this
    # authority repeated; None: all rounds

    @property
    def sites(self) -> list[str]:
        """The names of the n sites."""
        return self.runs[0].sites

    @cached_property
    def repeated(self) -> FloatArray:
        """(n,) factor of each site's pay, 0 to 1: mean `repeated_shares` of the runs; 1 if nobody asked for audits."""
        if self.auditors is None:
            return np.ones(len(self.sites))
        return np.asarray(np.mean([repeated_shares(run.path, self.sites, self.auditors) for run in self.runs], axis=0))

    @property
    def folds(self) -> int:
        """The number of folds; 0: runs are of one, or of the one split."""
        found = {run.info.get("fold") for run in self.runs}
        return len(found) if len(found) > 1 else 0

    @cached_property
    def parts(self) -> dict[str, list[int]]:
        """The folds, if runs are of several, else the seeds: what intervals are over, and the places of its runs."""
        return self._by("fold" if self.folds else "seed")

    def _by(self, kind: str) -> dict[str, list[int]]:
        places: dict[str, list[int]] = {}
        for place, run in enumerate(self.runs):
            places.setdefault(f"{kind} {run.info.get(kind)}", []).append(place)
        return places

    def values(self, spec: str) -> FloatArray:
        """Return (s, n, D) values by seed; by fold (F, n, 1), mean over seeds: each fold has patients of its own."""
        whole = self.of_each[spec]
        if not self.folds:
            return whole
        return np.stack([whole[places, :, :1].mean(axis=0) for places in self.parts.values()])

    def sample(self, spec: str) -> SampleSize:
        """Return the sample that values by the estimator rest on."""
        one, seeds = parse(spec), len({run.info["seed"] for run in self.runs})
        if not (observer := one.observes):
            is_tested = all(one.rests_on_training(run) for run in self.runs)
            return Repeats(0, seeds, "patients", self.folds, is_tested)
        patients = pd.DataFrame([run.patients(observer) for run in self.runs])
        of_parts = pd.DataFrame([patients.iloc[places].min() for places in self.parts.values()])
        fewest = int((of_parts.sum() if self.folds else of_parts.min()).min())
        return SampleSize(fewest, seeds, "validation patients", self.folds)

    def ranking(self, spec: str) -> Ranking:
        """Return the ranking by one estimator."""
        return ranking(self.sites, self.values(spec), sample=self.sample(spec), folds=self.folds)

    def reliability(self, spec: str) -> tuple[float, str]:
        """Return the share of the variance of the values over sites that is no error, 0 to 1, and why it is unknown.

        It is 1 − error variance / variance over sites, 0 at the least; the error is that of seeds or folds, patients
        and rounds. Unknown counts as 0: of one seed, whose luck lasts through the run, and of counts. A site with few
        patients adds its error, and no more: no site decides for all.
        """
        sample, values = self.sample(spec), self.values(spec)
        if why := replace(sample, cases=MIN_CASES).insufficient_data:
            return 0.0, why
        between = float(values[..., 0].mean(axis=0).var(ddof=1)) if len(self.sites) > 1 else 0.0
        error = error_variance(values, self.folds) if between > 0 else 0.0
        return (max(0.0, 1 - error / between) if between > 0 else 0.0), ""

    @property
    def rankings(self) -> dict[str, Ranking]:
        """The rankings by spec."""
        return {spec: self.ranking(spec) for spec in self.of_each}

    @property
    def shown(self) -> dict[str, Ranking]:
        """The rankings by spec, in the unit that `units` names."""
        return {spec: one.times(POINTS) if _is_dice(spec) else one for spec, one in self.rankings.items()}

    @property
    def without_each(self) -> dict[str, "Valued"]:
        """The runs of all other seeds, and of all other folds, by the name of the one left out."""
        several = [places for kind in ("seed", "fold") if len(places := self._by(kind)) > 1]
        return {
            name: self._of(np.delete(np.arange(len(self.runs)), gone)) for one in several for name, gone in one.items()
        }

    def _of(self, places: NDArray[np.int_]) -> "Valued":
        values = {spec: one[places] for spec, one in self.of_each.items()}
        return Valued([self.runs[place] for place in places], values, self.auditors)


def value_runs(
    paths: Sequence[Path],
    specs: Sequence[str],
    draws: int = DRAWS,
    on_round: Callable[[str, int, int], None] = lambda name, done, rounds: None,
    place: Path | None = None,
    auditors: Trust | None = None,
) -> Valued:
    """Return values of finished runs by the estimators of ``specs``; missing observations come from kept updates.

    If the runs' site folders were moved, ``place`` is the folder that they are in now; ``auditors`` as of `Valued`.

    Raises:
        BadInput: a run has not ended, the sites in ``place`` are not those it was started with, the runs are not
            of the same sites, method and settings, two have one seed and fold, or an estimator lacks something.
    """
    chosen = parse_all(specs)
    runs = [_observed(path, chosen, draws, on_round, place) for path in paths]
    require_same_sites(runs)
    opened = label_runs([Run(run.path, run.info, run.results, str(run.info["method"])) for run in runs])
    require_folds_or_none(opened)
    labels, seeds = dict.fromkeys(run.label for run in opened), Counter((run.seed, run.fold) for run in opened)
    if len(labels) > 1 or max(seeds.values()) > 1:
        what = " and ".join(labels) if len(labels) > 1 else f"of the seeds {', '.join(str(run.seed) for run in opened)}"
        raise BadInput(
            f"{', '.join(map(str, paths))}: are {what}; expected runs of one method that "
            "differ only in their seeds or folds; value others separately"
        )
    values = {spec: np.stack([one.values(run) for run in runs]) for spec, one in chosen.items()}
    return Valued(runs, values, auditors)


def default_estimators(paths: Sequence[Path], everything: bool = False) -> list[str]:
    """Return the estimators that runs allow without reading images, first those of what they observed.

    With ``everything``, also those that kept updates allow.
    """
    seen = _observed_splits(paths)
    if everything:
        from fedmerit_evaluation.valuation.replay import observable  # it takes seconds to import MONAI

        seen |= set.intersection(*map(observable, paths))
    own = ["contribution"] if all(declares_estimates(read_run(path)) for path in paths) else []
    return [*_observing(seen), *own, "data_size"]


def observed_estimators(paths: Sequence[Path]) -> list[str]:
    """Return the estimators of what runs observed, which bear the observer's name."""
    return _observing(_observed_splits(paths))


def _observed_splits(paths: Sequence[Path]) -> set[str]:
    return set.intersection(*(set(ObservedRun(path).rows["split"]) for path in paths))


def _observing(observers: Container[str]) -> list[str]:
    return [name for name, kind in estimators().items() if kind.observes == name and name in observers]


def _observed(
    path: Path,
    chosen: Mapping[str, Estimator],
    draws: int,
    on_round: Callable[[str, int, int], None],
    place: Path | None,
) -> ObservedRun:
    run = open_run(path)
    if run.rounds_done < run.rounds:
        raise BadInput(
            f"{path}: stands at {run.rounds_done} of {run.rounds} rounds, and a run is valued when it has ended; go on "
            f"with it by `fedmerit run --resume --out {path}`"
        )
    needed = list(dict.fromkeys(one.observes for one in chosen.values() if one.observes))
    if place is not None:
        allow_places(place)
        prepared_sites(path, {**run.info, "sites_folder": str(place)})  # to fail before anything is evaluated
    if not needed:
        return ObservedRun(path, draws, place=place)
    from fedmerit_evaluation.valuation.replay import replay_observers  # it takes seconds to import MONAI

    return ObservedRun(path, draws, replay_observers(path, needed, on_round=on_round, place=place), place)


def value_tables(valued: Valued) -> list[Table]:
    """Return a table per estimator, then flips, costs, and multi-round values by site."""
    rankings = valued.shown
    tables = [_ranking_table(spec, one) for spec, one in rankings.items()]
    if len(rankings) > 1:
        tables.append(rank_flip_table(rankings, "value-flips", "Pairs"))
    observed = {name for run in valued.runs for name in run.seconds} - {"training"}
    if observed:
        tables.append(_costs(valued.runs, sorted(observed)))
    if "multi_round" in observed:
        tables.append(_benefit_table(valued.runs))
    return tables


def _ranking_table(spec: str, one: Ranking) -> Table:
    over = "patients, rounds and seeds" if one.seeds > 1 else "patients and rounds (one seed)"
    over = f"{one.folds} folds" if one.folds else over
    why = f": {one.insufficient_data}" if one.insufficient_data else ""
    verdict = "" if one.has_significant_pairs else f"; NO SIGNIFICANT DIFFERENCE between any two sites{why}"
    unknown = SINGLE if _is_dice(spec) else one.insufficient_data or NO_VARIANCE
    caption = (
        f"{spec}: values; in brackets the 95 % confidence interval over {over}{verdict}"
        if one.measured
        else f"{spec}: {unknown}"
    )
    heading = "Value [points]" if _is_dice(spec) else "Value"
    return ranking_table(f"values-{plain_name(spec)}", caption, one, heading, _decimals(one.value))


def _decimals(values: FloatArray) -> int:
    """Return the decimals that give the largest value three digits, at least two."""
    largest = float(np.nanmax(np.abs(values), initial=0.0))
    return max(2, 2 - math.floor(math.log10(largest))) if largest > 0 else 2


def rank_flip_table(rankings: Mapping[str, Ranking], name: str, pairs: str) -> Table:
    """Return the ``pairs`` of sites that every two estimators or methods rank differently."""
    names = {"first": "Estimator", "second": "Compared with", "flips": "Pairs ranked differently",
             "contradictions": "Significantly by both", "pairs": "Pairs of sites"}  # fmt: skip
    frame = count_rank_flips(rankings).rename(columns=names)
    return Table(name, f"{pairs} of sites that two estimators rank differently", frame, decimals=0)


def _costs(runs: Sequence[ObservedRun], observers: Sequence[str]) -> Table:
    rows = []
    for name in observers:
        spent = float(np.mean([run.seconds.get(name, np.nan) / run.seconds["training"] for run in runs]))
        times = float(np.mean([len(run.games(name)) for run in runs]))
        rows.append({"Observer": name, "Rounds observed": times, "Cost [trainings]": spent})
    caption = "Cost of the observers: seconds of evaluation divided by seconds of training, over all sites"
    return Table("value-costs", caption, pd.DataFrame(rows), decimals=2)


def _benefit_table(runs: Sequence[ObservedRun]) -> Table:
    sites = runs[0].sites
    frame = POINTS * pd.DataFrame(np.mean([benefit_matrix(run) for run in runs], axis=0), index=sites, columns=sites)
    gaps = ", ".join(f"{POINTS * efficiency_gap(run):.2f}" for run in runs)
    caption = (
        "Multi-round Shapley values [points] of the site in the row for the validation Dice of the site in the column; "
        f"gap to efficiency: {gaps} points"
    )
    return Table("values-by-site", caption, frame.rename_axis("Site").reset_index(), decimals=2)


def units(valued: Valued) -> dict[str, str]:
    """Return the units of the values of each estimator, for a figure."""
    return {spec: "points of Dice" if _is_dice(spec) else "own unit" for spec in valued.of_each}


def _is_dice(spec: str) -> bool:
    return parse(spec).in_dice


def repeated_shares(run: Path, sites: Sequence[str], auditors: Trust) -> FloatArray:
    """Return (n,) `fedmerit.evidence.repeated_work.RepeatedWork.share` of each site, 0 to 1.

    It is 0 of a site that nobody audited. ``run`` is the folder of a finished run; ``auditors`` is the authority that
    issued the auditors' certificates.

    Raises:
        BadInput: the ledger or an auditor's statement is damaged, or not of this run.
    """
    from fedmerit.evidence.verification.chains import read_ledger  # verification loads PyTorch
    from fedmerit.evidence.verification.work import summarise_statement

    records = read_ledger(run / "ledger.jsonl")
    return np.array([summarise_statement(run, records, site, auditors).share for site in sites])
