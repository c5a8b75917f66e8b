"""The runs of a comparison: plan them, create and execute the missing ones, collect their results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from fedmerit.contract.capabilities import capabilities
from fedmerit.engines import runs
from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import write_json
from fedmerit.machine import cores
from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.options import NVFLARE_ONLY
from fedmerit.schema.results import ResultsFile, Row
from fedmerit.schema.run_info import read_run
from fedmerit.schema.scores import Overlap
from fedmerit.schema.site_folder import open_sites, read_site_digests, require_same_preparation
from fedmerit.server.checkpoint import is_finished
from fedmerit.trainers.monai.prediction import evaluate
from fedmerit.trust import require_place
from fedmerit_evaluation.figures import tables
from fedmerit_evaluation.figures.tables import HEADINGS, HIDDEN_COLUMNS, UNITS, Table, file_name
from fedmerit_evaluation.results.evaluation import final_models
from fedmerit_evaluation.results.runs import DIGESTS, combine_results, open_run
from fedmerit_evaluation.results.views import OWN, POOLED, STANDALONE, UNION, Results
from fedmerit_evaluation.studies import study
from fedmerit_evaluation.studies.execution import (
    After,
    OnEnd,
    OnRound,
    Workers,
    execute_all,
    execute_in_turn,
    has_own_processes,
)
from fedmerit_evaluation.studies.study import (
    ENSEMBLE,
    Cost,
    MethodSpec,
    in_folds,
    open_study_sites,
    require_same,
    require_same_images,
    scratch,
)


class Ensemble(nn.Module):
    """Networks of one architecture: logits of the mean of their probabilities, each label by itself."""

    def __init__(self, members: list[nn.Module]):
        super().__init__()
        self.members = nn.ModuleList(members)
        for name in ("patch", "mirrored", "largest"):  # how the members' final masks are made
            if hasattr(members[0], name):
                setattr(self, name, getattr(members[0], name))

    def forward(self, images: Tensor) -> Tensor:
        """(batch, labels, ...) of images (batch, channels, ...)."""
        probabilities = torch.stack([torch.sigmoid(member(images).float()) for member in self.members])
        return torch.logit(probabilities.mean(dim=0), eps=1e-7)


def write_ensemble(standalone: Path, folder: Path) -> None:
    """Write the run folder of the ensemble of a finished run of local training: test results, and run.json last.

    Raises:
        BadInput: its models or its sites are not here, or the sites were prepared again.
    """
    info, model_of = read_run(standalone), final_models(standalone)
    sites = open_sites(require_place(info["sites_folder"], standalone), info["sites"], info["fold"])
    require_same_preparation(sites, info["site_digests"], standalone)
    ensemble, names = Ensemble([model_of(site) for site in sites]), [site.name for site in sites]
    rows: list[Row] = []

    def add(overlap: Overlap, site: str, split: str, tested: str = "") -> None:
        head = folder.name, ENSEMBLE, info["seed"], info["rounds"] - 1, site
        place = overlap.place | {"case": tested + overlap.case}
        quantities = overlap.scores if split == UNION else overlap.quantities
        rows.extend(Row(*head, name, value, split, **place, fold=info["fold"]) for name, value in quantities.items())

    for site in sites:
        found = evaluate(ensemble, site.cases(OWN), site.labels, info["training"].get("amp", False), final=True)
        for overlap in found:
            add(overlap, site.name, OWN)
            for name in names:  # all sites have the same model
                add(overlap, name, UNION, f"{site.name}/")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.csv").unlink(missing_ok=True)
    ResultsFile(folder / "results.csv").append(rows)
    changed = {"run": folder.name, "method": ENSEMBLE, "parameters": {}, "models_of": standalone.name}
    write_json(folder / "run.json", {**info, **changed})


PAPER = "Jiang et al. 2023"
BOUNDS = {STANDALONE: "lower reference", POOLED: "upper reference"}  # for a federation
OVER_SEEDS = ", mean ± std over seeds"


def comparison_tables(results: Results, methods: list[str], seeds: Sequence[int]) -> list[Table]:
    """Tables 1 and 6 for each label, Dice on the union of the test splits, and HD95 and NSD, if measured.

    A site's Dice is the mean over the cases of its own test split, of its final model. Missing
    numbers are left empty, never counted as zero:

    - A cell is the mean over the seeds whose runs have results, ± (Table 6) their sample standard deviation
      (ddof 1; none for one seed). If a run is missing, a column ``Seeds`` counts the others.
    - The cell of a site is empty if one of these runs has no Dice of it.
    - Avg. and Std. are the mean and the sample standard deviation (ddof 1) over sites of the row's means over
      seeds, as in the paper; empty where a site's cell is.

    Args:
        results: of all runs, at most one run for each label and seed; may be empty.
        methods: labels of what is compared, one row each, in this order.
    """
    if results.dice.rows.empty:
        return []
    own, union = results.dice.labels, results.union.complete
    several = len(own.columns) > 1
    sites = [str(site) for site in results.dice.by_site]
    bounds = [f"{method} is the {bound}" for method, bound in BOUNDS.items() if method in methods]
    bounded = "".join(f"; {one}" for one in bounds)
    found = []
    for label in own.columns:
        what = f"Dice [%]{f' of the {label}' * several} on each site's test split"
        suffix = f"-{label}" * several
        plain = _table(
            f"table1{suffix}", f"{what} (as Table 1 of {PAPER}){bounded}", 100 * own[label], sites, methods, seeds
        )
        caption = f"{what}{OVER_SEEDS} (as Table 6 of {PAPER}){bounded}"
        found += [replace(plain, spread=None), replace(plain, name=f"table6{suffix}", caption=caption)]
    found += _gains(results, methods)
    if not union.empty:
        caption = f"Dice [%] on the union of the test splits, of each site's final model{OVER_SEEDS}"
        measured = [method for method in methods if method in union.index.get_level_values("method")]
        found.append(_table(UNION, caption, 100 * union, sites, measured, seeds))
    for quantity, table in results.dice.label_surfaces.items():
        for label in table.columns:
            what = f"{HEADINGS[quantity]}{f' of the {label}' * several} on each site's test split{OVER_SEEDS}"
            what += HIDDEN_COLUMNS.get(quantity, "")
            shown = UNITS.get(quantity, 1.0) * table[label]
            found.append(_table(f"{quantity}{f'-{label}' * several}", what, shown, sites, methods, seeds))
    return found


def gains(results: Results, methods: Sequence[str]) -> pd.DataFrame:
    """Methods x sites: gain in Dice over local training in points, on a site's validation and test cases together.

    Of the site's final model, mean over common seeds. Empty without local training.
    """
    above = 100 * results.with_validation.dice.gains
    return above.reindex([name for name in methods if name in above.index])


def transfer(results: Results) -> pd.Series:
    """Of methods, megabytes that a site sends and receives in a round, mean over sites, rounds and seeds.

    Without pooled training, whose images were moved before. For seconds, which depend on the machine and on concurrent
    runs, see `fedmerit lab bench methods`.
    """
    both = results.rounds.of("bytes_sent") + results.rounds.of("bytes_received")
    return 1e-6 * both.mean(axis=1).groupby(level="method", observed=True).mean().drop(POOLED, errors="ignore")


def _gains(results: Results, methods: Sequence[str]) -> list[Table]:
    above = gains(results, methods)
    if above.empty:
        return []
    over_sites = {"Mean": above.mean(axis=1, skipna=False), "Lowest": above.min(axis=1, skipna=False)}
    beside = pd.DataFrame(over_sites | {"Transfer [MB]": transfer(results).reindex(above.index)})
    frame = pd.concat([above, beside], axis=1).rename_axis("Method").reset_index()
    caption = (
        "Gain in Dice over local training [points] on each site's validation and test cases, of its final model, mean "
        "over seeds; transfer: sent and received by a site in a round"
    )
    return [Table("gains", caption, frame, decimals=2)]


def _table(
    name: str, caption: str, numbers: pd.Series, sites: list[str], methods: list[str], seeds: Sequence[int]
) -> Table:
    """Methods x (sites, Avg., Std.) of ``numbers`` by (method, seed, site), as `comparison_tables` describes it."""
    runs = numbers.unstack("site").reindex(columns=sites).groupby(level="method")
    mean, spread = (part.reindex(methods) for part in (runs.mean(skipna=False), runs.std(ddof=1, skipna=False)))
    over_sites = {"Avg.": mean.mean(axis=1, skipna=False), "Std.": mean.std(axis=1, ddof=1, skipna=False)}
    frame = mean.assign(**over_sites)
    texts = {"Method": methods}
    there = runs.size().reindex(methods, fill_value=0)
    if (there < len(seeds)).any():
        texts["Seeds"] = [f"{count} of {len(seeds)}" for count in there]

    def shown(part: pd.DataFrame) -> pd.DataFrame:
        numbers = part.reindex(columns=frame.columns).reset_index(drop=True).rename_axis(columns=None)
        return pd.concat([pd.DataFrame(texts), numbers], axis=1)

    return Table(name, caption, shown(frame), spread=shown(spread), decimals=2)


STUDY = "compare.json"  # the last options of the folder's runs


@dataclass(frozen=True)
class PlannedRun:
    """A run of a comparison."""

    label: str
    seed: int
    folder: Path
    fold: int | None = None

    @property
    def name(self) -> str:
        """Method, seed, and fold if there are several."""
        return f"{self.label}, seed {self.seed}" + ("" if self.fold is None else f", fold {self.fold}")

    @property
    def finished(self) -> bool:
        """Whether it is trained and tested."""
        there = (self.folder / "run.json").exists()
        return there and is_finished(self.folder, int(read_run(self.folder)["rounds"]))


@dataclass(frozen=True)
class EnsembleRun(PlannedRun):
    """The test of the ensemble of the models of ``standalone``, once they are trained."""

    standalone: Path = field(kw_only=True)  # the run folder of local training

    @property
    def finished(self) -> bool:
        """Whether it is tested."""
        return (self.folder / "run.json").exists()

    def begin(self) -> None:
        """Test it; `RunFailed` if the models are not there yet."""
        if not is_finished(self.standalone, int(read_run(self.standalone)["rounds"])):
            raise RunFailed(f"it needs the models of {self.standalone}, which is not finished")
        write_ensemble(self.standalone, self.folder)


def prepare(
    out: Path,
    items: Sequence[MethodSpec],
    seeds: Sequence[int],
    settings: Mapping[str, str],
    options: Mapping[str, Any],
    folds: Sequence[int] = (),
) -> list[PlannedRun]:
    """Check every run, then create the missing ones; if one cannot be created, none is.

    Args:
        options: further ones of `fedmerit.engines.runs.create`, for every run; ``rounds``, and ``sites`` or a
            ``script`` among them.
        folds: of the sites, each to train on; none: the splits of datalist.json.

    Returns:
        The runs: all items for one seed and fold, then for the next.

    Raises:
        BadInput: a run cannot be created, or exists with other options or sites.
    """
    sites = open_study_sites(options)
    names = sites.names
    require_same_images(out / STUDY, sites.folders)
    planned = list[PlannedRun]()
    with scratch(out) as new:
        for seed, (suffix, of_fold) in product(seeds, in_folds(options, folds)):
            for item in items:
                if both := sorted(set(settings) & set(item.settings)):
                    raise BadInput(f"--methods {item.label}: {both[0]} is also given by --set; give it once")
                folder = out / f"{file_name(item.label)}_seed{seed}{suffix}"
                if item.method == ENSEMBLE:
                    _require_standalone(item, items)
                    trained = out / f"{STANDALONE}_seed{seed}{suffix}"
                    planned.append(EnsembleRun(item.label, seed, folder, of_fold.get("fold"), standalone=trained))
                    continue
                chosen = {**settings, **item.settings}
                asked = {**of_fold, "method": item.method, "seed": seed, "settings": chosen}
                if capabilities(METHODS[item.method]()).pools_images:
                    asked["engine"] = "local"  # it has no other engine, and this one waits for all sites
                    asked = {name: value for name, value in asked.items() if name not in NVFLARE_ONLY}
                if (folder / "run.json").exists():
                    require_same(folder, asked, sites.folders)
                elif folder.exists() and any(folder.iterdir()):
                    raise BadInput(f"{folder}: holds no run.json, but other files; choose another --out")
                else:
                    runs.create(new / folder.name, **asked)
                planned.append(PlannedRun(item.label, seed, folder, of_fold.get("fold")))
        for folder in sorted(new.glob("*")):
            folder.rename(out / folder.name)
    asked_for = {"methods": [item.label for item in items], "seeds": list(seeds), "settings": dict(settings)}
    asked_for |= {"folds": list(folds)} if folds else {}
    places = {name: str(value.resolve()) for name, value in options.items() if isinstance(value, Path)}
    of_sites = {"site_names": names, DIGESTS: read_site_digests(sites.folders)}
    write_json(out / STUDY, {**asked_for, **options, **places, **of_sites})
    return planned


def _require_standalone(item: MethodSpec, items: Sequence[MethodSpec]) -> None:
    if not any(other.label == STANDALONE for other in items):
        raise BadInput(f"--methods {item.label}: {STANDALONE} is not compared; name it among the methods")


def estimate_cost(planned: Sequence[PlannedRun]) -> Cost:
    """Return the cost of the unfinished `trainings`."""
    left = [run for run in planned if not run.finished]
    return study.estimate_cost(len(left), [run.folder for run in left if (run.folder / "run.json").exists()])


def trainings(planned: Sequence[PlannedRun]) -> list[PlannedRun]:
    """The runs that train."""
    return [run for run in planned if not isinstance(run, EnsembleRun)]


def execute_runs(
    planned: Sequence[PlannedRun],
    workers: Workers,
    on_end: OnEnd,
    on_round: OnRound = lambda folder, record: None,
    after: After | None = None,
) -> dict[Path, str]:
    """Train and test the unfinished runs in parallel; returns the runs that failed, and why.

    Ensembles, which are only tested, come last. Runs whose sites have processes of their own are executed one by one.
    With fewer runs than cores, each runs several sites concurrently, unless it was created with a number of them. The
    other arguments are those of `fedmerit_evaluation.studies.execution.execute_all`.
    """
    left = [run.folder for run in trainings(planned) if not run.finished]
    failed = _execute(left, workers, on_end, on_round, after)
    for run in planned:
        if isinstance(run, EnsembleRun) and not run.finished:
            try:
                run.begin()
                on_end(run.folder, None)
            except (BadInput, RunFailed) as error:
                failed[run.folder] = str(error)
                on_end(run.folder, str(error))
    return failed


def _execute(
    folders: Sequence[Path], workers: Workers, on_end: OnEnd, on_round: OnRound, after: After | None
) -> dict[Path, str]:
    local = [folder for folder in folders if not has_own_processes(folder)]
    failed = {}
    if local:
        info = read_run(local[0])
        busy = workers.number_for(local[0], len(local)) * info["training"]["cpu_threads"]
        threads = info["threads"] or max(1, cores() // busy)
        failed = execute_all(local, workers, on_end, on_round, after, threads=threads)
    others = [folder for folder in folders if folder not in local]
    return failed | execute_in_turn(others, on_end, on_round, after)


def collect_results(planned: Sequence[PlannedRun], order: Sequence[str] | None = None) -> Results:
    """The results of the finished runs, column ``method`` by their labels, in this order or as planned.

    Of a method and seed only if all folds are finished.
    """
    missing = {(run.label, run.seed) for run in planned if not run.finished}
    whole = [run for run in planned if (run.label, run.seed) not in missing]
    finished = [replace(open_run(run.folder), label=run.label) for run in whole]
    return combine_results(finished, order)


def write_tables(out: Path, planned: Sequence[PlannedRun]) -> list[Table]:
    """The tables of `comparison_tables`, written below ``out/tables`` as CSV and LaTeX."""
    labels, seeds = dict.fromkeys(run.label for run in planned), dict.fromkeys(run.seed for run in planned)
    results = collect_results(planned)
    found = comparison_tables(results, list(labels), list(seeds))
    tables.write_tables(found, out / "tables")
    if not any(table.name == "gains" for table in found):  # files there are of an earlier call with local training
        for stale in ("gains.csv", "gains.tex"):
            (out / "tables" / stale).unlink(missing_ok=True)
    return found
