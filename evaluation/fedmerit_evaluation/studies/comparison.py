"""The runs of a comparison: plan them, create and execute the missing ones, collect their results in tables.

The tables are those of Jiang et al. 2023 (FedCE, Tables 1 and 6), and the gains over local training. Dice is a
percentage there. A comparison may have the ensemble of all sites' local models: the mean of their probabilities,
without federated training, computed from the saved models of a run of local training and tested on the same cases.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from fedmerit.contract.capabilities import capabilities
from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import read_object, write_json
from fedmerit.machine import cores
from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.options import NVFLARE_ONLY
from fedmerit.schema.results import ResultsFile, Row
from fedmerit.schema.run_info import read_run
from fedmerit.schema.scores import UNION, Overlap
from fedmerit.schema.site_folder import open_sites, read_site_digests, require_same_preparation
from fedmerit.server.checkpoint import is_finished
from fedmerit.trainers.monai.prediction import evaluate
from fedmerit.trust import require_place
from fedmerit_evaluation.figures import tables
from fedmerit_evaluation.figures.tables import HEADINGS, HIDDEN_COLUMNS, UNITS, Table, file_name
from fedmerit_evaluation.results.evaluation import final_models
from fedmerit_evaluation.results.runs import DIGESTS, Run, combine_results, open_run
from fedmerit_evaluation.results.views import OWN, POOLED, STANDALONE, Results
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
    MethodSpec,
    all_or_none,
    in_folds,
    open_study_sites,
    require_same_images,
)

STUDY = "compare.json"  # the last options of the folder's runs
PAPER = "Jiang et al. 2023"
OVER_SITES = "; Avg. and Std. over sites, of these means"
BOUNDS = {STANDALONE: "lower reference", POOLED: "upper reference"}  # for a federation
OVER_SEEDS = ", mean ± std over seeds"


@dataclass(frozen=True)
class PlannedRun:
    """A run of a comparison."""

    label: str
    seed: int
    folder: Path
    fold: int | None = None
    local_models: Path | None = None  # the run of local training whose models an ensemble tests; None: it trains

    @property
    def name(self) -> str:
        """The method, seed, and fold if there are several."""
        return f"{self.label}, seed {self.seed}" + ("" if self.fold is None else f", fold {self.fold}")

    @property
    def finished(self) -> bool:
        """Whether it is trained and tested."""
        exists = (self.folder / "run.json").exists()
        return exists and (bool(self.local_models) or is_finished(self.folder, int(read_run(self.folder)["rounds"])))


def in_order_of_methods(out: Path, runs: Sequence[Path]) -> list[Path]:
    """Return the runs below the folder of a study in the order in which its methods were named, others last."""
    if not (out / STUDY).is_file():
        return list(runs)
    methods = read_object(out / STUDY).get("methods")
    names = [f"{file_name(str(label))}_seed" for label in methods] if isinstance(methods, list) else []
    return sorted(
        runs, key=lambda run: next((k for k, name in enumerate(names) if run.name.startswith(name)), len(names))
    )


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
        out: the folder of the study.
        items: the methods.
        seeds: of each method.
        settings: of all methods.
        options: further ones of `fedmerit.engines.runs.create`, for every run; ``rounds``, and ``sites`` or a
            ``script`` among them.
        folds: of the sites, each to train on; none: the splits of datalist.json.

    Returns:
        The runs: all items for one seed and fold, then for the next.

    Raises:
        BadInput: a run cannot be created, or exists with other options or sites.
    """
    sites = open_study_sites(options)
    require_same_images(out / STUDY, sites.folders)
    planned = list[PlannedRun]()
    with all_or_none(out) as create:
        for seed, (suffix, fold_options), item in product(seeds, in_folds(options, folds), items):
            if both := sorted(set(settings) & set(item.settings)):
                raise BadInput(f"--methods {item.label}: {both[0]} is also given by --set; give it once")
            folder, fold = out / f"{file_name(item.label)}_seed{seed}{suffix}", fold_options.get("fold")
            if item.method == ENSEMBLE:
                if STANDALONE not in (other.label for other in items):
                    raise BadInput(f"--methods {item.label}: {STANDALONE} is not compared; name it among the methods")
                local_models = out / f"{STANDALONE}_seed{seed}{suffix}"
                planned.append(PlannedRun(item.label, seed, folder, fold, local_models))
                continue
            run_options = {
                **fold_options,
                "method": item.method,
                "seed": seed,
                "settings": {**settings, **item.settings},
            }
            if capabilities(METHODS[item.method]()).pools_images:
                run_options["engine"] = "local"  # it has no other engine, and this one waits for all sites
                run_options = {name: value for name, value in run_options.items() if name not in NVFLARE_ONLY}
            create(folder, run_options, sites.folders)
            planned.append(PlannedRun(item.label, seed, folder, fold))
    recorded = {"methods": [item.label for item in items], "seeds": list(seeds), "settings": dict(settings)}
    recorded |= {"folds": list(folds)} if folds else {}
    places = {name: str(value.resolve()) for name, value in options.items() if isinstance(value, Path)}
    digests = {"site_names": sites.names, DIGESTS: read_site_digests(sites.folders)}
    write_json(out / STUDY, {**recorded, **options, **places, **digests})
    return planned


def trainings(planned: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Return the runs that train."""
    return [run for run in planned if not run.local_models]


def execute_runs(
    planned: Sequence[PlannedRun],
    workers: Workers,
    on_end: OnEnd,
    on_round: OnRound = lambda folder, record: None,
    after: After | None = None,
) -> dict[Path, str]:
    """Train and test the unfinished runs in parallel; return the runs that failed, and why.

    Ensembles, which are only tested, come last. Runs whose sites have processes of their own are executed one by one.
    With fewer runs than cores, each runs several sites concurrently, unless it was created with a number of them. The
    other arguments are those of `fedmerit_evaluation.studies.execution.execute_all`.
    """
    unfinished = [run for run in planned if not run.finished]
    folders = [run.folder for run in trainings(unfinished)]
    local = [folder for folder in folders if not has_own_processes(folder)]
    failed = {}
    if local:
        info = read_run(local[0])
        busy = workers.number_for(local[0], len(local))
        threads = info["threads"] or max(1, cores() // busy)
        failed = execute_all(local, workers, on_end, on_round, after, threads=threads)
    others = [folder for folder in folders if folder not in local]
    failed |= execute_in_turn(others, on_end, on_round, after)
    for run in unfinished:
        if run.local_models:
            try:
                write_ensemble(run.local_models, run.folder)
            except (BadInput, RunFailed) as error:
                failed[run.folder] = str(error)
            on_end(run.folder, failed.get(run.folder))
    return failed


def finished_runs(planned: Sequence[PlannedRun]) -> list[Run]:
    """Return the finished runs by their labels; a method and seed count only if all folds are finished."""
    missing = {(run.label, run.seed) for run in planned if not run.finished}
    complete = [run for run in planned if (run.label, run.seed) not in missing]
    return [replace(open_run(run.folder), label=run.label) for run in complete]


def collect_results(planned: Sequence[PlannedRun], order: Sequence[str] | None = None) -> Results:
    """Return the results of the finished runs, column ``method`` by their labels, in this order or as planned."""
    return combine_results(finished_runs(planned), order)


class Ensemble(nn.Module):
    """An ensemble of networks of one architecture: logits of the mean of their probabilities, each label by itself."""

    def __init__(self, members: list[nn.Module]):
        super().__init__()
        self.members = nn.ModuleList(members)
        for name in ("patch", "mirrored", "largest"):  # how the members' final masks are made
            if hasattr(members[0], name):
                setattr(self, name, getattr(members[0], name))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (batch, labels, ...) of images (batch, channels, ...)."""
        probabilities = torch.stack([torch.sigmoid(member(images).float()) for member in self.members])
        return torch.logit(probabilities.mean(dim=0), eps=1e-7)


def write_ensemble(standalone: Path, folder: Path) -> None:
    """Write the run folder of the ensemble of a run of local training: test results, and run.json last.

    Raises:
        RunFailed: local training is not finished.
        BadInput: its models or its sites are not here, or the sites were prepared again.
    """
    info = read_run(standalone)
    if not is_finished(standalone, int(info["rounds"])):
        raise RunFailed(f"it needs the models of {standalone}, which is not finished")
    model_of = final_models(standalone)
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
        overlaps = evaluate(ensemble, site.cases(OWN), site.labels, info["training"].get("amp", False), final=True)
        for overlap in overlaps:
            add(overlap, site.name, OWN)
            for name in names:  # all sites have the same model
                add(overlap, name, UNION, f"{site.name}/")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.csv").unlink(missing_ok=True)
    ResultsFile(folder / "results.csv").append(rows)
    changed = {"run": folder.name, "method": ENSEMBLE, "parameters": {}, "models_of": standalone.name}
    write_json(folder / "run.json", {**info, **changed})


def write_tables(out: Path, planned: Sequence[PlannedRun]) -> list[Table]:
    """Write `comparison_tables` of the finished runs below ``out/tables`` as CSV and LaTeX, and return them."""
    labels, seeds = dict.fromkeys(run.label for run in planned), dict.fromkeys(run.seed for run in planned)
    written = comparison_tables(collect_results(planned), list(labels), list(seeds))
    tables.write_tables(written, out / "tables")
    if not any(table.name == "gains" for table in written):  # files there are of an earlier call with local training
        for stale in ("gains.csv", "gains.tex"):
            (out / "tables" / stale).unlink(missing_ok=True)
    return written


def comparison_tables(results: Results, methods: list[str], seeds: Sequence[int]) -> list[Table]:
    """Return Tables 1 and 6 for each label, Dice on the union of the test splits, and HD95 and NSD, if measured.

    A site's Dice is the mean over the cases of its own test split, of its final model. Missing
    numbers are left empty, never counted as zero:

    - A cell is the mean over the seeds whose runs have results, ± (Table 6) their sample standard deviation
      (ddof 1; none for one seed). If a run is missing, a column ``Seeds`` counts the others.
    - The cell of a site is empty if one of these runs has no Dice of it.
    - Avg. and Std. are the mean and the sample standard deviation (ddof 1) over sites of the row's means over
      seeds, as in the paper, and as the captions say; empty where a site's cell is.

    Args:
        results: of all runs, at most one run for each label and seed; may be empty.
        methods: labels of what is compared, one row each, in this order.
        seeds: of the comparison.
    """
    if results.dice.rows.empty:
        return []
    labels, union = results.dice.labels, results.union.complete
    several = len(labels.columns) > 1
    sites = [str(site) for site in results.dice.by_site]
    bounds = "".join(f"; {method} is the {bound}" for method, bound in BOUNDS.items() if method in methods)
    shown = []
    for label in labels.columns:
        what = f"Dice [%]{f' of the {label}' * several} on each site's test split"
        suffix = f"-{label}" * several
        caption = f"{what} (as Table 1 of {PAPER}){OVER_SITES}{bounds}"
        plain = _table(f"table1{suffix}", caption, 100 * labels[label], sites, methods, seeds)
        caption = f"{what}{OVER_SEEDS} (as Table 6 of {PAPER}){OVER_SITES}{bounds}"
        shown += [replace(plain, spread=None), replace(plain, name=f"table6{suffix}", caption=caption)]
    shown += _gains_table(results, methods)
    if not union.empty:
        caption = f"Dice [%] on the union of the test splits, of each site's final model{OVER_SEEDS}"
        measured = [method for method in methods if method in union.index.get_level_values("method")]
        shown.append(_table(UNION, caption, 100 * union, sites, measured, seeds))
    for quantity, table in results.dice.label_surfaces.items():
        for label in table.columns:
            what = f"{HEADINGS[quantity]}{f' of the {label}' * several} on each site's test split{OVER_SEEDS}"
            what += HIDDEN_COLUMNS.get(quantity, "")
            numbers = UNITS.get(quantity, 1.0) * table[label]
            shown.append(_table(f"{quantity}{f'-{label}' * several}", what, numbers, sites, methods, seeds))
    return shown


def gains(results: Results, methods: Sequence[str]) -> pd.DataFrame:
    """Return gains in Dice over local training [points] on test cases, methods x sites.

    They are those of the site's final model, mean over common seeds. Empty without local training.
    """
    above = 100 * results.dice.gains
    return above.reindex([name for name in methods if name in above.index])


def transfer(results: Results) -> pd.Series:
    """Return the megabytes that a site sends and receives in a round by method, mean over sites, rounds and seeds.

    Without pooled training, whose images were moved before. For seconds, which depend on the machine and on concurrent
    runs, see `fedmerit lab bench methods`.
    """
    both = results.rounds.of("bytes_sent") + results.rounds.of("bytes_received")
    return 1e-6 * both.mean(axis=1).groupby(level="method", observed=True).mean().drop(POOLED, errors="ignore")


def _gains_table(results: Results, methods: Sequence[str]) -> list[Table]:
    """Return the table of gains, if local training is compared."""
    above = gains(results, methods)
    if above.empty:
        return []
    over_sites = {"Mean": above.mean(axis=1, skipna=False), "Lowest": above.min(axis=1, skipna=False)}
    beside = pd.DataFrame(over_sites | {"Transfer [MB]": transfer(results).reindex(above.index)})
    frame = pd.concat([above, beside], axis=1).rename_axis("Method").reset_index()
    caption = (
        "Gain in Dice over local training [points] on each site's test cases, of its final model, mean over seeds; "
        "transfer: sent and received by a site in a round"
    )
    return [Table("gains", caption, frame, decimals=2)]


def _table(
    name: str, caption: str, numbers: pd.Series, sites: list[str], methods: list[str], seeds: Sequence[int]
) -> Table:
    """Return methods x (sites, Avg., Std.) of ``numbers`` by (method, seed, site), as `comparison_tables` describes."""
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
