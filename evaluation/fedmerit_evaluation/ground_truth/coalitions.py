"""Trainings of coalitions of sites, each tested on the cases of all sites: the data of every ground truth.

``OUT/runs`` holds a run folder per coalition and seed, ``OUT/results.csv`` their test results: rows of the schema
`fedmerit.schema.results.COLUMNS`, in which ``coalition`` has the names of the sites that trained, sorted and joined
by "+", and ``site`` is the site whose test cases were used.
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
from fedmerit.engines import runs
from fedmerit.engines.script_runs import score_everywhere
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
from fedmerit.trainers.monai.batch_norm import has_statistics
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
from fedmerit_evaluation.studies.study import (
    in_folds,
    open_server_sites,
    open_study_sites,
    recorded_digests,
    require_same,
    scratch,
)

LONGEST_NAME = 200  # characters of a folder's name; file systems end at 255


@dataclass(frozen=True)
class Training:
    """One coalition, one seed, one run folder."""

    coalition: Coalition
    seed: int
    folder: Path
    places: Places = field(default=AS_RECORDED, compare=False)  # run.json of a finished one stays unchanged

    @property
    def trained(self) -> bool:
        """Whether only tests are left to do."""
        return is_finished(self.folder, int(read_run(self.folder)["rounds"]))

    @property
    def finished(self) -> bool:
        """Whether it is trained, and tested on all sites."""
        return _tests(self.folder).exists() and self.trained


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
        method: of every coalition of several sites; one that gives all sites one global model.
        settings: of every run; coalitions of one site do not get those of the method.
        options: further ones of `fedmerit.engines.runs.create`; ``rounds``, and ``sites`` or a ``script`` among them.
        folds: of the sites, each to train on; none: the splits of datalist.json.

    Returns:
        The trainings, the largest coalitions first, so no long one starts last.

    Raises:
        BadInput: a run cannot be created, or exists with other options or sites.
    """
    everyone, own = open_study_sites(options), open_server_sites(options)
    folders = everyone.folders
    everyone.require_evaluation("values by retraining")
    require_one_model(everyone.configure(method, options["rounds"], settings))
    places = {name: Path(options[name]) for name in ("sites", "script") if options.get(name)}
    asked = {"method": method, "settings": dict(settings), **options, **places}
    asked = {name: str(value.resolve()) if isinstance(value, Path) else value for name, value in asked.items()}
    asked |= {"site_names": everyone.names} | ({"folds": list(folds)} if folds else {})
    study.require_unchanged(out / STUDY, asked)
    study.require_same_images(out / STUDY, folders, own)
    trainings, here = [], Places(places.get("sites"), options.get("server_sites"))
    with scratch(out) as new:
        for coalition in sorted(coalitions, key=lambda members: (-len(members), format_spec(members))):
            for seed, (suffix, of_fold) in product(seeds, in_folds(options, folds)):
                folder = out / "runs" / f"{_name(coalition)}_seed{seed}{suffix}"
                chosen = {"seed": seed, "only": sorted(coalition)}
                options_of_run = _options(coalition, method, settings) | of_fold | chosen
                if (folder / "run.json").exists():
                    require_same(folder, options_of_run, [site for site in folders if site.name in coalition])
                elif folder.exists() and any(folder.iterdir()):
                    raise BadInput(f"{folder}: holds no run.json, but other files; choose another --out")
                else:
                    runs.create(new / folder.name, **options_of_run)
                trainings.append(Training(coalition, seed, folder, here))
        (out / "runs").mkdir(parents=True, exist_ok=True)
        for made in sorted(new.glob("*")):
            made.rename(out / "runs" / made.name)
    write_json(out / STUDY, asked | recorded_digests(folders, own))
    return trainings


def require_one_model(config: RunConfiguration) -> None:
    """`BadInput` if every site ends with a model of its own: a site outside a coalition has none."""
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


def _options(coalition: Coalition, method: str, settings: Mapping[str, str]) -> dict[str, Any]:
    if len(coalition) > 1:
        return {"method": method, "settings": dict(settings)}
    own = {field.name for field in fields(METHODS[method])}
    given = {**settings, "preset": method} if settings.get("preset") == PAPER else settings
    return {"method": "standalone", "settings": {name: value for name, value in given.items() if name not in own}}


def _name(coalition: Coalition) -> str:
    text = format_spec(coalition)
    if len(text) <= LONGEST_NAME:
        return text
    return f"{len(coalition)}-sites-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def estimate_cost(trainings: Sequence[Training]) -> study.Cost:
    """Cost of the unfinished trainings."""
    left = [training for training in trainings if not training.finished]
    return study.estimate_cost(len(left), [training.folder for training in left if not training.trained])


def sum_seconds(trainings: Sequence[Training]) -> float:
    """Seconds of all sites for the finished rounds, from results.csv."""
    begun = [training.folder for training in trainings if (training.folder / "results.csv").exists()]
    rows = [read_results(folder) for folder in begun]
    return float(sum(table.loc[table["quantity"] == "seconds", "value"].sum() for table in rows))


def execute_trainings(
    trainings: Sequence[Training], workers: Workers, on_end: OnEnd, on_round: OnRound = lambda folder, record: None
) -> dict[Path, str]:
    """Train and test the unfinished ones in parallel; returns the runs that failed, and why."""
    left = [training for training in trainings if not training.finished]
    places = left[0].places if left else AS_RECORDED  # one for a whole study
    folders = [training.folder for training in left]
    threads = None if folders and has_own_processes(folders[0]) else 1
    return execute_all(folders, workers, on_end, on_round, test_on_all_sites, threads, places)


def test_on_all_sites(folder: Path, sites: Path | None) -> None:
    """Test a finished run's model on all sites, also those that took no part; delete its site states.

    ``sites``: the folder of all; None: scripts of the sites test it.
    """
    if sites:
        evaluate(folder, sites, out=_tests(folder))
    else:
        info = read_run(folder)
        head = (info["run"], info["method"], info["seed"], info["rounds"] - 1)
        rows = [
            asdict(Row(*head, site, "dice", one.dice, "testing", one.case, one.label))
            for site, scores in score_everywhere(folder, final_model(folder)).items()
            for one in scores
        ]
        write_text(_tests(folder), pd.DataFrame(rows, columns=COLUMNS).to_csv(index=False, lineterminator="\n"))
    shutil.rmtree(folder / "sites", ignore_errors=True)


def _tests(folder: Path) -> Path:
    return folder / "evaluation" / "testing-everywhere.csv"


def collect_results(trainings: Sequence[Training]) -> Results:
    """Test Dice, HD95 and NSD, and numbers of training images, of the finished trainings, with their coalitions.

    Of folds as of one training, once all of a coalition and seed are finished.
    """
    missing = {(training.coalition, training.seed) for training in trainings if not training.finished}
    tables = []
    for training in trainings:
        if (training.coalition, training.seed) not in missing:
            show_score_of(read_run(training.folder))
            tested = read_table(_tests(training.folder))
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


UNSEEN, ESTIMATED, SEEN = ("Unseen", "Unseen, BatchNorm statistics of its own images", "Taking part")


def leave_each_out(sites: Sequence[str]) -> list[frozenset[str]]:
    """The coalitions to train: all sites, and all but each."""
    everyone = frozenset(sites)
    return [everyone, *(everyone - {site} for site in sorted(sites))]


def generalisation_tables(trainings: Sequence[Training], sites: Path | None) -> list[Table]:
    """Test Dice, HD95 and NSD of every hospital by the model trained without it, and by that trained with all.

    BatchNorm statistics are those that the others shared, or estimated from the hospital's own training images, which
    needs no label; without BatchNorm, or if scripts test, the column is left out. Of folds the mean.

    Args:
        trainings: finished, of `leave_each_out`.
        sites: the folder of all sites; None: they have scripts.
    """
    everyone = max((training.coalition for training in trainings), key=len)
    of_site = {folder.name: folder for folder in (open_sites(sites) if sites else ())}
    rows = []
    for training in trainings:
        tested = collect_results([training]).rows
        for name in sorted(everyone - training.coalition) or sorted(everyone):
            outside = name not in training.coalition
            of_tests = tested[(tested["site"] == name) & (tested["split"] == "testing")]
            scores = mean_scores(zip(of_tests["quantity"], of_tests["case"], of_tests["value"], strict=True))
            rows.append((training.seed, name, UNSEEN if outside else SEEN, scores))
            if outside and name in of_site:
                run = read_run(training.folder)
                site = of_site[name].in_fold(run.get("fold"))
                network = final_models(training.folder)(site)
                if has_statistics(network):
                    amp = run["training"].get("amp", False)
                    own = with_batch_statistics(site, network)
                    found = evaluate_cases(own, site.cases("testing"), site.labels, amp, final=True)
                    scores = mean_scores((name, one.case, value) for one in found for name, value in one.scores.items())
                    rows.append((training.seed, site.name, ESTIMATED, scores))
    measured = {quantity for *_, scores in rows for quantity in scores}
    return [_table(rows, quantity) for quantity in ("dice", *SURFACES) if quantity in measured]


def mean_scores(found: Iterable[tuple[str, str, float | None]]) -> dict[str, float]:
    """By quantity, in the units shown: mean over test cases of the mean over labels, without missing numbers.

    ``found``: quantity, case and value of each label.
    """
    known: dict[str, dict[str, list[float]]] = {}  # by quantity and case
    for quantity, case, value in found:
        if value is not None and not np.isnan(value):
            known.setdefault(quantity, {}).setdefault(case, []).append(value)
    return {
        quantity: UNITS.get(quantity, 1.0) * float(np.mean([np.mean(values) for values in cases.values()]))
        for quantity, cases in known.items()
    }


def _table(rows: Sequence[tuple[int, str, str, Mapping[str, float]]], quantity: str) -> Table:
    """A row per hospital, of one quantity."""
    what, _, unit = HEADINGS[quantity].rpartition(" ")
    long = pd.DataFrame(
        [(seed, site, f"{name} {unit}", scores.get(quantity, np.nan)) for seed, site, name, scores in rows],
        columns=["seed", "Site", "name", "value"],
    )
    seeds = long.pivot_table(index=["seed", "Site"], columns="name", values="value")
    seeds = seeds.reindex(
        columns=[name for name in (f"{one} {unit}" for one in (UNSEEN, ESTIMATED, SEEN)) if name in seeds]
    )
    means = pd.concat([seeds, pd.concat({"Mean": seeds.groupby("seed").mean()}, names=["Site"]).swaplevel()])
    by_site = means.groupby("Site", sort=False)
    count = long["seed"].nunique()
    caption = f"Test {what} of each hospital by the model trained without it, and by the model trained by all"
    if count > 1:
        caption += f"; mean ± std over {count} seeds"
    caption += HIDDEN_COLUMNS.get(quantity, "")
    spread = by_site.std(ddof=1)
    name = "unseen" if quantity == "dice" else f"unseen-{quantity}"
    return Table(name, caption, by_site.mean().reset_index(), spread=spread.reset_index(), decimals=1)
