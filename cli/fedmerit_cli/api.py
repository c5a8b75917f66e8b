"""The commands as Python functions: prepare, run, rounds, compare, report, load_run."""

import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import Queue
from typing import Any, TypeVar

from fedmerit.engines import resumption, runs
from fedmerit.errors import BadInput, RunFailed
from fedmerit.evidence.ledger import Ledger
from fedmerit.schema.configuration.options import STUDY_OPTIONS, RunOptions
from fedmerit.schema.configuration.settings import guarded
from fedmerit.schema.declarations import parameters
from fedmerit.trust import allow
from fedmerit_data import prepare as preparing
from fedmerit_data.preparation import Preparation
from fedmerit_evaluation.report.report import write_report
from fedmerit_evaluation.results.runs import Run, open_run
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.studies import comparison
from fedmerit_evaluation.studies.execution import Workers
from fedmerit_evaluation.studies.study import find_folds, open_study_sites, parse_methods

Record = Mapping[str, Any]  # of the ledger: round, participants, weights, contributions, validation_dice, ...
OnRound = Callable[[Record], None]
Folder = Path | str
Function = TypeVar("Function", bound=Callable[..., Any])


def takes_options(*names: str) -> Callable[[Function], Function]:
    """Return a decorator: a function's ``**options`` are these of `RunOptions`; signature and docstring list them."""

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        added = [
            option for name, option in parameters(RunOptions).items() if name in {*names} - {*signature.parameters}
        ]
        lines = [f"        {option.name}: {option.text}" for option in added]
        keywords = [
            inspect.Parameter(
                option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=option.base
            )
            for option in added
        ]
        function.__signature__ = signature.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
        head, args, rest = (function.__doc__ or "").partition("    Args:\n")
        body, _, end = rest.partition("\n\n")
        function.__doc__ = f"{head}{args}{body}\n" + "\n".join(lines) + f"\n\n{end}"
        return function

    return decorate


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
        patient_table: CSV file of site, case, patient, if file names do not name patients.
        jobs: processes; with more than one, a script needs ``if __name__ == "__main__":`` around its calls.
        **options: further fields of `fedmerit_data.preparation.Preparation`: size, ratios, seed, labels, channels, ...

    Raises:
        BadInput: a raw file or an option cannot be used.
    """
    if jobs > 1:
        _require_guarded_script("prepare")
    allow(kind)
    given, table = (None if path is None else Path(path) for path in (source, patient_table))
    asked = Preparation(kind, source=given, patient_table=table, **options)
    return preparing.prepare(asked, Path(out), jobs=jobs)


@takes_options(*(name for name in RunOptions.model_fields if name != "out"))
def run(
    out: Folder,
    method: str | None = None,
    sites: Folder | None = None,
    *,
    on_round: OnRound | None = None,
    resume: bool = False,
    **options: Any,
) -> Run:
    """Train one federation, evaluate its final models, and open its results.

    Args:
        out: run folder to write.
        method: name of a method; with ``resume`` None, or that of the run.
        sites: folder of site folders; with ``resume`` None, or those of the run.
        on_round: called with every round's ledger record when it is complete, with ``resume`` also with earlier ones;
            an exception in it ends the run, which can be resumed.
        resume: continue from the last complete round of ``out``.

    Raises:
        BadInput: an option, a site or a parameter cannot be used; with ``resume``, or is not that of the run.
        RunFailed: the run did not finish.
    """
    folder, heard = Path(out), on_round or (lambda record: None)
    named = {"method": method, "sites": sites, **options}
    asked = RunOptions.read({name: value for name, value in named.items() if value is not None})
    given = asked.given()
    if not resume:
        if method is None or (sites is None and "script" not in given):
            raise TypeError("run() needs method and sites, or a script and model instead of sites, or resume=True")
        runs.create(folder, **given | {"settings": guarded(given.get("settings", {}))})
    elif not resumption.needs_resuming(folder, given):
        Ledger(folder / "ledger.jsonl").follower(heard)()
        return load_run(folder)
    runs.execute(folder, heard)
    return load_run(folder)


class _Stopped(Exception):
    """The caller has left the loop over the rounds."""


@takes_options(*(name for name in RunOptions.model_fields if name != "out"))
def rounds(out: Folder, method: str | None = None, sites: Folder | None = None, **options: Any) -> Iterator[Record]:
    """Train a run and yield each round's ledger record when it is complete, while training continues.

    Leaving the loop early ends the run after the current round; ``resume=True`` continues it.
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
        while (record := records.get()) is not None:
            if isinstance(record, BaseException):
                raise record
            yield record
    finally:
        stopped.set()
        thread.join()


def _require_guarded_script(function: str) -> None:
    """Check that processes which ``function`` starts do not import a script that calls it again, without an end."""
    script = Path(getattr(sys.modules["__main__"], "__file__", None) or "")
    if script.suffix == ".py" and script.exists() and "__name__" not in script.read_text("utf-8", errors="replace"):
        raise BadInput(
            f'{script}: {function}() with jobs above 1 needs `if __name__ == "__main__":` around the calls, since its '
            "processes import the script; add that, or pass jobs=1"
        )


@takes_options(*STUDY_OPTIONS)
def compare(
    out: Folder,
    sites: Folder | None,
    methods: str | Sequence[str],
    seeds: Sequence[int] = (0,),
    *,
    folds: bool | None = None,
    engine: str = "local",
    jobs: int | None = None,
    cluster: str | None = None,
    **options: Any,
) -> Results:
    """Train methods and seeds on the same sites; finished runs are reused. Tables are in ``out/tables``.

    Args:
        out: folder of the run folders.
        sites: folder of site folders; None: ``options`` have a script and its model.
        methods: names, each with parameters if needed: "fedavg,fedce:combine=plus", or a list of them.
        seeds: random seeds of the runs of each method.
        folds: train on every fold of the sites, whose results are together; None: if there are any, and a site has
            fewer than 20 test patients in one split.
        engine: "local", "sim" or "poc".
        jobs: concurrent runs of engine local, 1 by default. More than one starts processes that import the script
            again, so that the script needs ``if __name__ == "__main__":`` around its calls.
        cluster: address of a dask scheduler, or "slurm"; None: processes on this machine.

    Raises:
        BadInput: something cannot be used.
        RunFailed: a run failed; the others are finished.
    """
    asked = RunOptions.read({"engine": engine, **({"sites": sites} if sites else {}), **options})
    asked.require_sites()
    if jobs is None and cluster is None and not asked.has_own_processes:
        jobs = 1
    if cluster is None and jobs not in (None, 1):
        _require_guarded_script("compare")
    workers = Workers(jobs, cluster)
    workers.require_used_by(asked)
    there = open_study_sites(asked.for_study())
    text = methods if isinstance(methods, str) else ",".join(methods)
    items = parse_methods(text, there.names, script=there.script)
    settings = {name: str(value) for name, value in asked.all_settings.items()}
    parts = find_folds(Path(sites) if sites else None, folds)
    planned = comparison.prepare(Path(out), items, list(seeds), settings, asked.for_study("engine"), parts)
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
    ground_truth: Folder | None = None,
    failure: float = 0.5,
    verify: bool = False,
) -> Path:
    """Write the HTML report of one or several runs; only for the hospital ``site``, if it is named.

    Args:
        runs: run folders, on the same task and sites.
        out: the HTML file; default ``report.html`` in the run, or in the runs' common parent.
        site: the hospital it is for; None: for all of them together.
        sites: folder of site folders to draw overlays from; None: the runs' own.
        images: whether to show test images with outlines. Such a report must not leave the hospital.
        ground_truth: folder of `fedmerit value leave-one-out` or `fedmerit value shapley`, on the same sites.
        failure: the Dice of a patient, 0 to 1, below which the segmentation counts as failed.
        verify: whether to verify the runs before, with the sites' logs in their folders; the page says which it is.

    Returns:
        The path of the HTML file.

    Raises:
        BadInput: a run cannot be used, the runs do not belong together, the ground truth is not of their sites, or
            something in a run that is verified contradicts its ledger.
    """
    folders = [Path(one) for one in ([runs] if isinstance(runs, (str, Path)) else runs)]
    target, drawn, values = (None if one is None else Path(one) for one in (out, sites, ground_truth))
    return write_report(
        folders, target, site=site, sites=drawn, images=images, ground_truth=values, failure=failure, verify=verify
    )


def load_run(folder: Folder) -> Run:
    """Open a run folder, its results as DataFrames: ``results.rows``, ``results.dice_and_contributions``, ...

    Raises:
        BadInput: it is no run folder, or holds no result yet.
    """
    return open_run(Path(folder))
