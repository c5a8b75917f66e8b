"""Commands that train: run, compare."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedmerit.configuration.recipes import ROUNDS, guarded
from fedmerit.errors import BadInput
from fedmerit_cli.app import (
    ENGINE_HELP,
    Cluster,
    Contributions,
    Device,
    Engine,
    Finish,
    Guard,
    Jobs,
    KeepUpdates,
    Method,
    Methods,
    OnVerdict,
    OutFolder,
    Preset,
    Privacy,
    Recipe,
    Rounds,
    RoundTimeout,
    ServerSites,
    Settings,
    Sites,
    SitesFolder,
    Threads,
    Track,
    Values,
    assignments,
    console,
    given,
    parse_names,
    settings_of,
    specs_of,
    with_contributions,
    workers_of,
)

SETTINGS = ("recipe", "preset", "finish", "guard", "on_verdict")  # by options of their own, and by --set
CONFIG: Mapping[str, type] = {  # what `run --config` may hold
    **dict.fromkeys(("out", "method", "sites", "engine", "device", "server_sites", "only", "contributions"), str),
    **dict.fromkeys(SETTINGS, str),
    **dict.fromkeys(("rounds", "seed", "threads", "min_sites"), int),
    "round_timeout": float,
    "set": dict,
    "attacks": dict,
    "privacy": list,
    "track": list,
    "values": list,
    "keep_updates": bool,
}
RENAMED = {"behaviours": "attacks"}  # in files of earlier versions

commands = typer.Typer()


@commands.command()
def run(
    out: Annotated[Path | None, typer.Option(help="Run folder to write.")] = None,
    method: Annotated[str | None, Method] = None,
    sites: Annotated[Path | None, Sites] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds to train.", show_default=str(ROUNDS))] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of initial model, order of images, augmentation.", show_default="0")
    ] = None,
    engine: Annotated[Engine | None, typer.Option(help=ENGINE_HELP, show_default="sim")] = None,
    threads: Threads = None,
    device: Device = None,
    server_sites: ServerSites = None,
    only: Annotated[str | None, typer.Option(metavar="SITE,SITE", help="Sites of --sites that take part.")] = None,
    contributions: Contributions = None,
    settings: Settings = None,
    recipe: Recipe = None,
    preset: Preset = None,
    finish: Finish = None,
    guard: Guard = None,
    on_verdict: OnVerdict = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(metavar="SITE=KIND[:from=ROUND][:NAME=VALUE]", help="For studies: the attack of a site."),
    ] = None,
    behave: Annotated[list[str] | None, typer.Option(hidden=True)] = None,  # the earlier name of --attack
    privacy: Privacy = None,
    track: Track = None,
    values: Values = None,
    keep_updates: KeepUpdates = False,
    min_sites: Annotated[
        int | None, typer.Option(help="Sites that have to answer for a round to end.", show_default="1")
    ] = None,
    round_timeout: RoundTimeout = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file of these options; the command line goes first.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last complete round of --out.")] = False,
) -> None:
    """Train one federation and test what it gave."""
    from fedmerit.engines import resumption, runs
    from fedmerit_cli.printing import print_cost, print_runs
    from fedmerit_cli.progress import run_with_progress

    options = _read(config) | given(
        out=out,
        method=method,
        sites=sites,
        rounds=rounds,
        seed=seed,
        engine=engine and engine.value,
        threads=threads,
        device=device,
        server_sites=server_sites,
        only=only,
        contributions=contributions,
        attacks=assignments([*(attack or []), *(behave or [])], "--attack") or None,
        privacy=privacy or None,
        track=track or None,
        values=specs_of(values),
        keep_updates=keep_updates or None,
        min_sites=min_sites,
        round_timeout=round_timeout,
    )
    if "out" not in options:
        raise BadInput("--out: missing; name the run folder to write")
    folder = Path(options.pop("out"))
    named = {name: options.pop(name) for name in SETTINGS if name in options}
    if chosen := named | options.pop("set", {}) | settings_of(settings, recipe, finish, preset, guard, on_verdict):
        options["settings"] = chosen
    if not resume:
        options["settings"] = chosen = guarded(chosen)
    if "only" in options:
        options["only"] = parse_names(options["only"], "--only")
    if "contributions" in options:
        source = Path(options.pop("contributions"))
        options["settings"] = with_contributions(chosen, source, _sites_of(folder, options))
    if resume and not resumption.needs_resuming(folder, options):
        console.print(f"{folder} has ended: there is nothing to go on with.", soft_wrap=True)
        print_runs([folder])
        return
    if not resume:
        for name in ("method", "sites"):
            if name not in options:
                raise BadInput(f"--{name}: missing; a new run needs it (or --resume to continue one)")
        runs.create(folder, **options)
    print_cost(folder)
    run_with_progress(folder)
    print_runs([folder])


def _read(config: Path | None) -> dict[str, Any]:
    """The options that a file holds, if there is one."""
    try:
        content = tomllib.loads(config.read_text("utf-8")) if config else {}
    except OSError as error:
        raise BadInput(
            f"--config {config}: not readable ({error.strerror}); expected a TOML file of options"
        ) from error
    except ValueError as error:
        raise BadInput(f"{config}: not readable as TOML ({error})") from error
    content = {RENAMED.get(name, name): value for name, value in content.items()}
    if unknown := set(content) - set(CONFIG):
        raise BadInput(f"{config}: unknown option {', '.join(sorted(unknown))}; there are {', '.join(CONFIG)}")
    for name, value in content.items():
        kind = CONFIG[name]
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise BadInput(f"{config}: {name} is {value!r}; expected a value of type {kind.__name__}")
        if isinstance(value, list) and not all(isinstance(one, str) for one in value):
            raise BadInput(f"{config}: {name} is {value!r}; expected a list of texts")
    return content


def _sites_of(folder: Path, options: Mapping[str, Any]) -> list[str]:
    """Names of the sites asked for, or of the run that is there."""
    from fedmerit.records.results import read_run
    from fedmerit.trainers.monai_trainer.data import open_sites

    if "sites" in options:
        return [site.name for site in open_sites(Path(options["sites"]), options.get("only"))]
    return list(read_run(folder)["sites"])


@commands.command()
def compare(
    out: OutFolder,
    sites: SitesFolder,
    methods: Methods = "all",
    seeds: Annotated[str, typer.Option(help="Of the runs of each method.")] = "0",
    rounds: Rounds = ROUNDS,
    engine: Annotated[Engine, typer.Option(help=ENGINE_HELP)] = Engine.sim,
    jobs: Jobs = None,
    cluster: Cluster = None,
    threads: Threads = None,
    device: Device = None,
    server_sites: ServerSites = None,
    settings: Settings = None,
    recipe: Recipe = None,
    preset: Preset = None,
    finish: Finish = None,
) -> None:
    """Train methods and seeds on the same sites, and print Tables 1 and 6 of the FedCE paper for them.

    With standalone among them also who gains above training alone, who loses, and what sites send and receive.

    Runs on the local engine go side by side, those on NVFlare one by one. Interrupted, the same command goes on
    from the last complete round. Exits with 1 where a run failed.
    """
    workers = workers_of(jobs, cluster, soon=engine is Engine.local)
    workers.require_used_by(engine.value)
    from fedmerit.trainers.monai_trainer.data import open_sites
    from fedmerit_cli.progress import RunBars, exit_if_failed, progress, resumable
    from fedmerit_evaluation.figures.tables import print_table
    from fedmerit_evaluation.studies.comparison import execute_runs, prepare, write_tables
    from fedmerit_evaluation.studies.study_folders import parse_methods, parse_seeds

    options = given(
        sites=sites, rounds=rounds, engine=engine.value, threads=threads, device=device, server_sites=server_sites
    )
    items = parse_methods(methods, [site.name for site in open_sites(sites)])
    planned = prepare(out, items, parse_seeds(seeds), settings_of(settings, recipe, finish, preset), options)
    names = {run.folder: f"{run.label}, seed {run.seed}" for run in planned}
    with workers, resumable(), progress() as bars:
        bar = bars.add_task("runs", total=len(planned), completed=sum(run.finished for run in planned), last="")
        each = RunBars(bars)

        def on_end(folder: Path, error: str | None) -> None:
            each.remove(folder)
            bars.advance(bar)

        failed = execute_runs(
            planned, workers, on_end, lambda folder, record: each.on_round(folder, record, names[folder])
        )
    for table in write_tables(out, planned):
        print_table(table, console)
    console.print(f"runs and tables: {out}", soft_wrap=True)
    exit_if_failed({f"{names[folder]}, in {folder}": error for folder, error in failed.items()})
