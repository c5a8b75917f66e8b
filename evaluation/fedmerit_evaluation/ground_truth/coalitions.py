"""Trainings of coalitions of sites, each tested on the cases of all sites: the data of every ground truth.

``OUT/runs`` holds a run folder per coalition and seed, ``OUT/results.csv`` their test results: rows of the schema
`fedmerit.schema.results.COLUMNS`, in which ``coalition`` has the names of the sites that trained, sorted and joined
by "+", and ``site`` is the site whose test cases were used.

The trainings of all sites, and of all but each, also show what a model is worth to an unseen hospital.
"""

import hashlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmerit.contract.semivalues import Coalition, format_spec
from fedmerit.engines.script_sites import score_everywhere
from fedmerit.errors import BadInput
from fedmerit.files import write_json, write_text
from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.requirements import gives_own_models
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.configuration.settings import PAPER
from fedmerit.schema.results import COLUMNS, Row, read_results, read_table
from fedmerit.schema.run_info import read_run
from fedmerit.schema.score_name import show_score_of
from fedmerit.schema.site_folder import open_sites
from fedmerit.server.checkpoint import is_finished
from fedmerit.trainers.monai.evaluation import has_statistics
from fedmerit.trainers.monai.prediction import evaluate as evaluate_cases
from fedmerit_evaluation.figures.tables import HEADINGS, HIDDEN_COLUMNS, UNITS, Table
from fedmerit_evaluation.ground_truth.ground_truths import STUDY
from fedmerit_evaluation.results.evaluation import evaluate, final_model, final_models, with_batch_statistics
from fedmerit_evaluation.results.runs import pool_folds
from fedmerit_evaluation.results.views import SURFACES, Results
from fedmerit_evaluation.studies import study
from fedmerit_evaluation.studies.execution import (
    AS_RECORDED,
    OnEnd,
    OnRound,
    Places,
    Workers,
    execute_all,
    has_own_processes,
)
from fedmerit_evaluation.studies.study import open_study_sites

LONGEST_NAME = 200  # characters of a folder's name; file systems end at 255
UNSEEN, ESTIMATED, SEEN = ("Unseen", "Unseen, BatchNorm statistics of its own images", "Taking part")


@dataclass(frozen=True)
class Training:
    """A training of one coalition with one seed, in one run folder."""

    coalition: Coalition
    seed: int
    folder: Path
    places: Places = field(default=AS_RECORDED, compare=False)  # run.json of a finished one stays unchanged

    @property
    def trained(self) -> bool:
        """Whether only tests are left to do."""
        return is_finished(self.folder, int(read_run(self.folder)["rounds"]))

    @property
    def tests(self) -> Path:
        """The file of the tests on all sites."""
        return self.folder / "evaluation" / "testing-everywhere.csv"

    @property
    def finished(self) -> bool:
        """Whether it is trained, and tested on all sites."""
        return self.tests.exists() and self.trained


def prepare(
    out: Path,
    coalitions: Iterable[Coalition],
    seeds: Sequence[int],
    method: str,
    settings: Mapping[str, str],
    options: Mapping[str, Any],
    folds: Sequence[int] = (),
) -> list[Training]:
    """Check every training, then create the missing run folders; if one cannot be created, none is.

    A coalition of one site trains locally, by the method ``standalone``.

    Args:
        out: the folder of the study.
        coalitions: to train.
        seeds: of each coalition.
        method: of every coalition of several sites; one that gives all sites one global model.
        settings: of every run; coalitions of one site do not get those of the method.
        options: further ones of `fedmerit.engines.runs.create`; ``rounds``, and ``sites`` or a ``script`` among them.
        folds: of the sites, each to train on; none: the splits of datalist.json.

    Returns:
        The trainings, the largest coalitions first, so no long one starts last.

    Raises:
        BadInput: a run cannot be created, or exists with other options or sites.
    """
    sites, server_sites = open_study_sites(options), study.open_server_sites(options)
    folders = sites.folders
    sites.require_evaluation("values by retraining")
    require_one_model(sites.configure(method, options["rounds"], settings))
    places = {name: Path(options[name]) for name in ("sites", "script") if options.get(name)}
    recorded = {"method": method, "settings": dict(settings), **options, **places}
    recorded = {name: str(value.resolve()) if isinstance(value, Path) else value for name, value in recorded.items()}
    recorded |= {"site_names": sites.names} | ({"folds": list(folds)} if folds else {})
    study.require_unchanged(out / STUDY, recorded)
    study.require_same_images(out / STUDY, folders, server_sites)
    trainings, here = [], Places(places.get("sites"), options.get("server_sites"))
    with study.all_or_none(out) as create:
        for coalition in sorted(coalitions, key=lambda members: (-len(members), format_spec(members))):
            for seed, (suffix, fold_options) in product(seeds, study.in_folds(options, folds)):
                folder = out / "runs" / f"{_folder_name(coalition)}_seed{seed}{suffix}"
                members = {"seed": seed, "only": sorted(coalition)}
                run_options = _method_options(coalition, method, settings) | fold_options | members
                create(folder, run_options, [site for site in folders if site.name in coalition])
                trainings.append(Training(coalition, seed, folder, here))
    write_json(out / STUDY, recorded | study.recorded_digests(folders, server_sites))
    return trainings


def require_one_model(config: RunConfiguration) -> None:
    """Raise `BadInput` if every site ends with a model of its own: a site outside a coalition has none."""
    method, training = config.build_method(), config.training
    others = "take a method with one model for all, such as fedavg"
    if gives_own_models(method):
        what = f"method {config.method} gives"
        way = f"add --set reward=global, or {others}" if "reward" in config.parameters else others
    elif training.last_round == "own":
        what, way = "last_round=own leaves", "leave it out"
    elif training.statistics == "own":
        what, way = "statistics=own, of BatchNorm, gives", "leave it out, or take statistics=mean"
    elif method.own_statistics and training.statistics == "method":
        what = f"method {config.method}, by its BatchNorm statistics, gives"
        way = f"add --set statistics=mean, or {others}"
    else:
        return
    raise BadInput(f"{what} each site a model of its own, and sites outside a coalition have none to test; {way}")


def _method_options(coalition: Coalition, method: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the method of a coalition and its settings; those of the method do not fit local training."""
    if len(coalition) > 1:
        return {"method": method, "settings": dict(settings)}
    parameters = {field.name for field in fields(METHODS[method])}
    settings = {**settings, "preset": method} if settings.get("preset") == PAPER else settings
    shared = {name: value for name, value in settings.items() if name not in parameters}
    return {"method": "standalone", "settings": shared}


def _folder_name(coalition: Coalition) -> str:
    text = format_spec(coalition)
    if len(text) <= LONGEST_NAME:
        return text
    return f"{len(coalition)}-sites-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def execute_trainings(
    trainings: Sequence[Training], workers: Workers, on_end: OnEnd, on_round: OnRound = lambda folder, record: None
) -> dict[Path, str]:
    """Train and test the unfinished ones in parallel; return the runs that failed, and why."""
    unfinished = [training for training in trainings if not training.finished]
    places = unfinished[0].places if unfinished else AS_RECORDED  # one for a whole study
    folders = [training.folder for training in unfinished]
    threads = None if folders and has_own_processes(folders[0]) else 1
    return execute_all(folders, workers, on_end, on_round, test_on_all_sites, threads, places)


def test_on_all_sites(folder: Path, sites: Path | None) -> None:
    """Test a finished run's model on all sites, also those that took no part; delete its site states.

    Args:
        folder: of the run.
        sites: the folder of all sites; None: scripts of the sites test it.
    """
    tests = Training(frozenset(), 0, folder).tests
    if sites:
        evaluate(folder, sites, out=tests)
    else:
        info = read_run(folder)
        head = (info["run"], info["method"], info["seed"], info["rounds"] - 1)
        rows = [
            asdict(Row(*head, site, "dice", score.dice, "testing", score.case, score.label))
            for site, scores in score_everywhere(folder, final_model(folder)).items()
            for score in scores
        ]
        write_text(tests, pd.DataFrame(rows, columns=COLUMNS).to_csv(index=False, lineterminator="\n"))
    shutil.rmtree(folder / "sites", ignore_errors=True)


def collect_results(trainings: Sequence[Training]) -> Results:
    """Return test Dice, HD95 and NSD, and numbers of training images, of the finished trainings by coalition.

    Folds count as one training, once all of a coalition and seed are finished.
    """
    missing = {(training.coalition, training.seed) for training in trainings if not training.finished}
    tables = []
    for training in trainings:
        if (training.coalition, training.seed) not in missing:
            show_score_of(read_run(training.folder))
            tested = read_table(training.tests)
            trained = read_results(training.folder)
            first = trained[(trained["quantity"] == "num_samples") & (trained["round"] == 0)]
            rows = pd.concat([tested[tested["quantity"].isin(("dice", *SURFACES))], first])
            tables.append(rows.assign(coalition=format_spec(training.coalition)))
    together = pd.concat(tables, ignore_index=True)[COLUMNS] if tables else pd.DataFrame(columns=COLUMNS)
    return Results(pool_folds(together))


def write_results(out: Path) -> None:
    """Write ``OUT/results.csv`` of all finished trainings in the study's folder, of any command."""
    infos = {file.parent: read_run(file.parent) for file in sorted((out / "runs").glob("*/run.json"))}
    trainings = [Training(frozenset(info["sites"]), int(info["seed"]), folder) for folder, info in infos.items()]
    write_text(out / "results.csv", collect_results(trainings).rows.to_csv(index=False, lineterminator="\n"))


def leave_each_out(sites: Sequence[str]) -> list[Coalition]:
    """Return the coalitions that show unseen hospitals: all sites, and all but each."""
    everyone = frozenset(sites)
    return [everyone, *(everyone - {site} for site in sorted(sites))]


def generalisation_tables(trainings: Sequence[Training], sites: Path | None) -> list[Table]:
    """Return test Dice, HD95 and NSD of every hospital by the model trained without it, and by that trained with all.

    BatchNorm statistics are those that the others shared, or estimated from the hospital's training images, which
    needs no label; without BatchNorm, or if scripts test, the column is left out. Folds are averaged.

    Args:
        trainings: finished, of `leave_each_out`.
        sites: the folder of all sites; None: they have scripts.
    """
    everyone = max((training.coalition for training in trainings), key=len)
    site_folders = {folder.name: folder for folder in (open_sites(sites) if sites else ())}
    rows = []
    for training in trainings:
        tested = collect_results([training]).rows
        for name in sorted(everyone - training.coalition) or sorted(everyone):
            is_unseen = name not in training.coalition
            at_site = tested[(tested["site"] == name) & (tested["split"] == "testing")]
            scores = mean_scores(zip(at_site["quantity"], at_site["case"], at_site["value"], strict=True))
            rows.append((training.seed, name, UNSEEN if is_unseen else SEEN, scores))
            if is_unseen and name in site_folders:
                run = read_run(training.folder)
                site = site_folders[name].in_fold(run.get("fold"))
                network = final_models(training.folder)(site)
                if has_statistics(network):
                    amp = run["training"].get("amp", False)
                    network = with_batch_statistics(site, network)
                    overlaps = evaluate_cases(network, site.cases("testing"), site.labels, amp, final=True)
                    scores = mean_scores(
                        (quantity, overlap.case, value)
                        for overlap in overlaps
                        for quantity, value in overlap.scores.items()
                    )
                    rows.append((training.seed, site.name, ESTIMATED, scores))
    measured = {quantity for *_, scores in rows for quantity in scores}
    return [_generalisation_table(rows, quantity) for quantity in ("dice", *SURFACES) if quantity in measured]


def mean_scores(scores: Iterable[tuple[str, str, float | None]]) -> dict[str, float]:
    """Return the mean over test cases of the mean over labels, by quantity, in the units shown.

    Args:
        scores: quantity, case and value of each label; missing numbers are left out.
    """
    by_case: dict[str, dict[str, list[float]]] = {}  # by quantity and case
    for quantity, case, value in scores:
        if value is not None and not np.isnan(value):
            by_case.setdefault(quantity, {}).setdefault(case, []).append(value)
    return {
        quantity: UNITS.get(quantity, 1.0) * float(np.mean([np.mean(values) for values in cases.values()]))
        for quantity, cases in by_case.items()
    }


def _generalisation_table(rows: Sequence[tuple[int, str, str, Mapping[str, float]]], quantity: str) -> Table:
    """Return a row per hospital, of one quantity."""
    what, _, unit = HEADINGS[quantity].rpartition(" ")
    long = pd.DataFrame(
        [(seed, site, f"{name} {unit}", scores.get(quantity, np.nan)) for seed, site, name, scores in rows],
        columns=["seed", "Site", "name", "value"],
    )
    seeds = long.pivot_table(index=["seed", "Site"], columns="name", values="value")
    columns = [name for name in (f"{kind} {unit}" for kind in (UNSEEN, ESTIMATED, SEEN)) if name in seeds]
    seeds = seeds.reindex(columns=columns)
    means = pd.concat([seeds, pd.concat({"Mean": seeds.groupby("seed").mean()}, names=["Site"]).swaplevel()])
    by_site = means.groupby("Site", sort=False)
    count = long["seed"].nunique()
    caption = f"Test {what} of each hospital by the model trained without it, and by the model trained by all"
    caption += f"; mean ± std over {count} seeds" * (count > 1) + HIDDEN_COLUMNS.get(quantity, "")
    name = "unseen" if quantity == "dice" else f"unseen-{quantity}"
    spread = by_site.std(ddof=1).reset_index()
    return Table(name, caption, by_site.mean().reset_index(), spread=spread, decimals=1)
