"""The commands as Python functions: what `fedmerit.prepare`, `run`, `rounds`, `compare`, `report`, `load_run` are."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import Queue
from typing import Any

from fedmerit.configuration.recipes import ROUNDS, guarded
from fedmerit.engines import resumption, runs
from fedmerit.errors import RunFailed
from fedmerit.records.ledger import Ledger
from fedmerit.trainers.monai_trainer.data import open_sites
from fedmerit_data import prepare as preparing
from fedmerit_data.preparation import Preparation
from fedmerit_evaluation.report.all_sites import write_report
from fedmerit_evaluation.report.one_site import write_site_report
from fedmerit_evaluation.results.run_folders import Run, open_run
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.studies import comparison
from fedmerit_evaluation.studies.cluster import Workers
from fedmerit_evaluation.studies.study_folders import parse_methods

Record = Mapping[str, Any]  # of the ledger: round, participants, weights, contributions, validation_dice, ...
OnRound = Callable[[Record], None]
Folder = Path | str


def prepare(
    kind: str,
    out: Folder,
    *,
    source: Folder | None = None,
    patient_table: Folder | None = None,
    jobs: int = 1,
    **options: Any,
) -> list[Path]:
    """Turn raw data into site folders, as `fedmerit prepare` does; the folders, by name.

    Args:
        kind: layout of the raw data, such as "generic" or "synthetic-prostate", or a reader of your own.
        out: folder to make.
        source: folder of the raw data; synthetic kinds need none.
        patient_table: CSV file of site, case, patient: whose images they are, where file names do not tell.
        jobs: processes; with more than one, a script guards its start by ``if __name__ == "__main__"``.
        **options: further fields of `fedmerit_data.preparation.Preparation`: size, ratios, seed, labels, channels, ...

    Raises:
        BadInput: a raw file or an option cannot be used.
    """
    given, table = (None if path is None else Path(path) for path in (source, patient_table))
    asked = Preparation(kind, source=given, patient_table=table, **options)
    return preparing.prepare(asked, Path(out), jobs=jobs)


def run(
    out: Folder,
    method: str | None = None,
    sites: Folder | None = None,
    rounds: int | None = None,
    *,
    on_round: OnRound = lambda record: None,
    resume: bool = False,
    **options: Any,
) -> Run:
    """Train one federation, test what it gave, and open its results.

    Args:
        out: run folder to write.
        method: name of a method; with ``resume`` None, or that of the run.
        sites: folder of site folders; likewise.
        rounds: to train; None: `ROUNDS`, with ``resume`` those of the run.
        on_round: called with every round's ledger record as it is complete, with ``resume`` those done before first;
            what it raises ends the run, which can be resumed.
        resume: go on from the last complete round of ``out``.
        **options: further ones of `fedmerit.engines.runs.create`: seed, engine, threads, device, settings, attacks, ...
            The guard of a new run is on, unless ``settings`` say ``guard="off"``.

    Raises:
        BadInput: an option, a site or a parameter cannot be used; with ``resume``, or is not that of the run.
        RunFailed: the run did not come to its end.
    """
    folder = Path(out)
    asked: dict[str, Any] = {"method": method, "sites": sites, "rounds": rounds, **options}
    given = {name: value for name, value in asked.items() if value is not None}
    if not resume:
        if method is None or sites is None:
            raise TypeError("run() needs method and sites, or resume=True")
        given["settings"] = guarded(given.get("settings", {}))
        runs.create(folder, **given)
    elif not resumption.needs_resuming(folder, given):
        Ledger(folder / "ledger.jsonl").follower(on_round)()
        return load_run(folder)
    runs.execute(folder, on_round)
    return load_run(folder)


class _Stopped(Exception):
    """Whoever asked for the rounds wants no more of them."""


def rounds(out: Folder, method: str | None = None, sites: Folder | None = None, **options: Any) -> Iterator[Record]:
    """As `run`, round by round: each round's ledger record as it is complete, while training goes on.

    Leaving the loop early ends the run after the round at hand; ``resume=True`` goes on with it.
    """
    records: Queue[Record | BaseException | None] = Queue()
    stopped = threading.Event()

    def on_round(record: Record) -> None:
        if stopped.is_set():
            raise _Stopped
        records.put(record)

    def work() -> None:
        try:
            run(out, method, sites, on_round=on_round, **options)
        except _Stopped:
            pass
        except BaseException as error:
            records.put(error)
        records.put(None)

    thread = threading.Thread(target=work, name="fedmerit rounds")
    thread.start()
    try:
        while (told := records.get()) is not None:
            if isinstance(told, BaseException):
                raise told
            yield told
    finally:
        stopped.set()
        thread.join()


def compare(
    out: Folder,
    sites: Folder,
    methods: str | Sequence[str],
    seeds: Sequence[int] = (0,),
    rounds: int = ROUNDS,
    *,
    settings: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    cluster: str | None = None,
    engine: str = "local",
    **options: Any,
) -> Results:
    """Train methods and seeds on the same sites, tables below ``out``; what is done there is not done again.

    Args:
        out: folder of the run folders.
        sites: folder of site folders.
        methods: names, each with parameters where wanted: "fedavg,fedce:combine=plus", or a list of such.
        seeds: of the runs of each method.
        rounds: to train.
        settings: of all of them, by name.
        jobs: runs at a time, of engine local alone; None: by free cores and memory, or as many as the cluster has room
            for.
        cluster: likewise, address of a dask scheduler, or "slurm"; None: processes on this machine.
        engine: "local", "sim" or "poc".
        **options: further ones of `fedmerit.engines.runs.create`.

    Raises:
        BadInput: something cannot be used.
        RunFailed: a run failed; the others are done.
    """
    workers = Workers(jobs, cluster)
    workers.require_used_by(engine)
    names = [site.name for site in open_sites(Path(sites), options.get("only"))]
    asked = parse_methods(methods if isinstance(methods, str) else ",".join(methods), names)
    given = {"sites": Path(sites), "rounds": rounds, "engine": engine, **options}
    texts = {name: str(value) for name, value in (settings or {}).items()}
    planned = comparison.prepare(Path(out), asked, list(seeds), texts, given)
    with workers:
        failed = comparison.execute_runs(planned, workers, lambda folder, error: None)
    comparison.write_tables(Path(out), planned)
    if failed:
        raise RunFailed("; ".join(f"{folder}: {error}" for folder, error in failed.items()))
    return comparison.collect_results(planned)


def report(
    runs: Folder | Sequence[Folder],
    out: Folder | None = None,
    *,
    site: str | None = None,
    sites: Folder | None = None,
    images: bool = True,
    truth: Folder | None = None,
) -> Path:
    """Write the HTML report of one or several runs; for the hospital ``site`` alone where it is named.

    Args:
        runs: run folders, on the same task and sites.
        out: the HTML file; default ``report.html`` in the run, or in the runs' common parent.
        site: the hospital it is for; None: for all of them together.
        sites: folder of site folders to draw overlays from; None: the runs' own.
        images: whether to show test images with outlines. Such a report must not leave the hospital.
        truth: what `fedmerit loo` or `fedmerit shapley` wrote, on the same sites.

    Returns:
        The path of the HTML file.

    Raises:
        BadInput: a run cannot be used, the runs do not belong together, or the truth is not of their sites.
    """
    folders = [Path(one) for one in ([runs] if isinstance(runs, (str, Path)) else runs)]
    target, drawn, held = (None if one is None else Path(one) for one in (out, sites, truth))
    if site is None:
        return write_report(folders, target, sites=drawn, images=images, ground_truth=held)
    return write_site_report(folders, site, target, sites=drawn, images=images, ground_truth=held)


def load_run(folder: Folder) -> Run:
    """A run folder, its results as DataFrames: ``results.rows``, ``results.dice_and_contributions``, ...

    Raises:
        BadInput: it is no run folder, or holds no result yet.
    """
    return open_run(Path(folder))
