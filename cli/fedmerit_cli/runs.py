"""Commands that train: run, compare."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedmerit.errors import BadInput
from fedmerit.schema.configuration.options import OF_SCRIPTS, RunOptions
from fedmerit.schema.configuration.settings import guarded
from fedmerit_cli.options import Cluster, Folds, Jobs, Methods, OutFolder, Seeds, make_workers, run_options
from fedmerit_cli.terminal import Commands, console, option_in, print_line

FILES = "Files and resumption"

commands = Commands()


@commands.add(
    "run --out runs/fedce --method fedce --sites sites --recipe quick --rounds 20 --engine local", reads_records=True
)
@run_options(*RunOptions.model_fields)
def run(
    asked: RunOptions,
    config: Annotated[
        Path | None, option_in(FILES, "TOML file of these options; the command line overrides it.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last complete round of --out.", rich_help_panel=FILES)
    ] = False,
) -> None:
    """Train one federation, and evaluate its final models on the test cases."""
    from fedmerit.engines import resumption, runs
    from fedmerit.schema.run_info import read_run
    from fedmerit.schema.site_folder import open_sites
    from fedmerit_cli.printing import print_cost, print_runs, run_with_progress
    from fedmerit_evaluation.studies.study import describe_precision

    asked = RunOptions.read_file(config).with_given(asked) if config else asked
    given = asked.given()
    if "out" not in given:
        raise BadInput("--out: missing; name the run folder to write")
    folder = given.pop("out")
    if resume and not resumption.needs_resuming(folder, given):
        console.print(f"{folder} has ended: nothing is left to train.", soft_wrap=True)
        print_runs([folder])
        return
    if not resume:
        if "method" not in given:
            raise BadInput("--method: missing; a new run needs it (or --resume to continue one)")
        asked.require_sites()
        runs.create(folder, **given | {"settings": guarded(given.get("settings", {}))})
    if not ("script" in read_run(folder) if resume else asked.script):
        print_cost(folder)
    if not resume and asked.sites and asked.fold is None:
        for line in describe_precision(open_sites(asked.sites), seeds=1, folds=0):
            console.print(line)
    recorded = read_run(folder) if resume else {"engine": "sim", **given}
    for spec in recorded.get("track", ()):
        console.print(f"live: {_where_to_look(spec, folder, recorded['engine'])}", soft_wrap=True)
    run_with_progress(folder)
    print_runs([folder])


def _where_to_look(spec: str, folder: Path, engine: str) -> str:
    """Return how to see the live curves of a run, by the spec of its tracker and its engine."""
    from fedmerit.engines.live_curves import EXPERIMENT, MLFLOW, TENSORBOARD
    from fedmerit.schema.configuration.specs import MLflow, parse_tracker

    tracker, is_local = parse_tracker(spec), engine == "local"
    if not isinstance(tracker, MLflow):
        return f"tensorboard --logdir {folder / (TENSORBOARD if is_local else 'nvflare')}"
    if tracker.uri:
        return f"{tracker.uri}, experiment {EXPERIMENT}"
    if is_local:
        return f"mlflow ui --backend-store-uri sqlite:///{(folder / MLFLOW).resolve()}"
    return f"mlflow ui --backend-store-uri sqlite:///FILE, with the mlflow.db below {folder / 'nvflare'}"


@commands.add(
    "compare --out cmp --sites sites --methods fedavg,fedce,standalone --seeds 0,1,2 --engine local", reads_records=True
)
@run_options(
    "sites", *OF_SCRIPTS, "rounds", "engine", "threads", "device", "server_sites", "recipe", "preset", "settings",
    "share_models",
)  # fmt: skip
def compare(
    asked: RunOptions,
    out: OutFolder,
    methods: Methods = "all",
    seeds: Seeds = "0",
    folds: Folds = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
) -> None:
    """Train several methods and seeds on the same sites; print Tables 1 and 6 of the FedCE paper for them.

    If standalone is among them, also who gains over local training, who loses, and what sites send and receive.

    Runs on the local engine are concurrent, those on NVFlare one by one. Interrupted, the same command resumes.
    Exits with 1 if a run failed.
    """
    asked.require_sites()
    workers = make_workers(jobs, cluster, asked)
    from fedmerit_cli.printing import Pace, RunBars, exit_if_failed, progress, resumable
    from fedmerit_evaluation.figures.tables import print_table
    from fedmerit_evaluation.report.report import conclude
    from fedmerit_evaluation.studies.comparison import execute_runs, finished_runs, prepare, trainings, write_tables
    from fedmerit_evaluation.studies.study import (
        describe_cost,
        describe_precision,
        find_folds,
        open_study_sites,
        parse_methods,
        parse_seeds,
    )

    options = asked.for_study("engine")
    sites = open_study_sites(options)
    items = parse_methods(methods, sites.names, script=sites.script)
    chosen, parts = parse_seeds(seeds), find_folds(options.get("sites"), folds)
    planned = prepare(out, items, chosen, asked.all_settings, options, parts)
    for line in describe_precision(sites.folders, len(chosen), len(parts)):
        console.print(line)
    unfinished = [run.folder for run in trainings(planned) if not run.finished]
    if parts and unfinished:
        console.print(describe_cost(len(unfinished), len(trainings(planned)), unfinished))
    names = {run.folder: run.name for run in planned}
    with workers, resumable(), progress() as bars:
        bar = bars.add_task("runs", total=len(planned), completed=sum(run.finished for run in planned), last="")
        each, pace = RunBars(bars), Pace(len(unfinished))

        def on_end(folder: Path, error: str | None) -> None:
            each.remove(folder)
            pace.add(folder)
            bars.advance(bar)
            bars.update(bar, last=pace.speed)

        def on_round(folder: Path, record: Mapping[str, Any]) -> None:
            each.on_round(folder, record, names[folder])

        failed = execute_runs(planned, workers, on_end, on_round)
    for table in write_tables(out, planned):
        print_table(table, console)
    for sentence in conclude(finished_runs(planned)):
        print_line(sentence)
    console.print(f"runs and tables: {out}", soft_wrap=True)
    exit_if_failed({f"{names[folder]}, in {folder}": error for folder, error in failed.items()})
