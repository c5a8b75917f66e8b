"""Commands that train: run, compare, demo."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.app import (
    Contributions,
    Device,
    Engine,
    Jobs,
    Privacy,
    RoundTimeout,
    ServerSites,
    Settings,
    SitesFolder,
    Threads,
    Track,
    app,
    assignments,
    console,
    reports_bad_input,
    require_jobs,
)
from cli.preparing import print_sites
from cli.progress import RunBars, progress, resumable, run_with_progress
from fedmerit.errors import BadInput
from fedmerit.methods.registry import METHODS

CONFIG: Mapping[str, type] = {  # what `run --config` may hold
    **dict.fromkeys(("out", "method", "sites", "engine", "device", "server_sites", "only", "contributions"), str),
    **dict.fromkeys(("rounds", "seed", "threads", "min_sites"), int),
    "round_timeout": float,
    "set": dict,
    "behaviours": dict,
    "privacy": list,
    "track": list,
}


@app.command()
@reports_bad_input
def run(
    out: Annotated[Path | None, typer.Option(help="Run folder to write.")] = None,
    method: Annotated[str | None, typer.Option(help=", ".join(METHODS))] = None,
    sites: Annotated[Path | None, typer.Option(help="Folder of site folders.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds to train.", show_default="30")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of initial model, order of images, augmentation.", show_default="0")
    ] = None,
    engine: Annotated[
        Engine | None,
        typer.Option(help="NVFlare's simulator, real processes (poc), or one process.", show_default="sim"),
    ] = None,
    threads: Threads = None,
    device: Device = None,
    server_sites: ServerSites = None,
    only: Annotated[str | None, typer.Option(metavar="SITE,SITE", help="Sites of --sites that take part.")] = None,
    contributions: Contributions = None,
    settings: Settings = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(metavar="SITE=KIND[:from=ROUND][:NAME=VALUE]", help="For studies: what a site does, not honest."),
    ] = None,
    privacy: Privacy = None,
    track: Track = None,
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
    from fedmerit.engines import runs

    given = {
        "out": out,
        "method": method,
        "sites": sites,
        "rounds": rounds,
        "seed": seed,
        "engine": engine and engine.value,
        "threads": threads,
        "device": device,
        "server_sites": server_sites,
        "only": only,
        "contributions": contributions,
        "behaviours": assignments(attack, "--behave") or None,
        "privacy": privacy or None,
        "track": track or None,
        "min_sites": min_sites,
        "round_timeout": round_timeout,
    }
    options = _with_config({name: value for name, value in given.items() if value is not None}, config, settings)
    if "out" not in options:
        raise BadInput("--out: missing; name the run folder to write")
    folder = Path(options.pop("out"))
    if "only" in options:
        options["only"] = _names(options["only"])
    if "contributions" in options:
        _take_contributions(folder, options)
    if resume:
        runs.require_same(folder, options)
    else:
        for name in ("method", "sites"):
            if name not in options:
                raise BadInput(f"--{name}: missing; a new run needs it (or --resume to continue one)")
        runs.create(folder, **options)
    run_with_progress(folder)
    _print_runs([folder])


def _take_contributions(folder: Path, options: dict[str, Any]) -> None:
    """In place of the option, the setting that it stands for; the sites are those asked for, or of the run there."""
    from fedmerit.engines.contributions import as_setting, contributions_of
    from fedmerit.records.results import read_run
    from fedmerit.training.data import open_sites

    source, settings = Path(options.pop("contributions")), options.setdefault("settings", {})
    if "contributions" in settings:
        raise BadInput("--contributions: also given by --set; give them once")
    if "sites" in options:
        sites = [site.name for site in open_sites(Path(options["sites"]), options.get("only"))]
    else:
        sites = list(read_run(folder)["sites"])
    settings["contributions"] = as_setting(contributions_of(source, sites))


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise BadInput(f"--only {text}: expected names of sites such as A,B, each once")
    return names


def _with_config(given: dict[str, Any], config: Path | None, settings: list[str] | None) -> dict[str, Any]:
    """Options of the command line over those of the file; ``settings`` holds the --set of both."""
    content: dict[str, Any] = {}
    if config:
        try:
            content = tomllib.loads(config.read_text())
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise BadInput(f"{config}: not readable as TOML ({error})") from error
        if unknown := set(content) - set(CONFIG):
            raise BadInput(f"{config}: unknown option {', '.join(sorted(unknown))}; there are {', '.join(CONFIG)}")
        for name, value in content.items():
            if type(value) is not CONFIG[name]:
                raise BadInput(f"{config}: {name} is {value!r}; expected a value of type {CONFIG[name].__name__}")
    merged = content.pop("set", {}) | assignments(settings)
    return content | given | ({"settings": merged} if merged else {})


def _print_runs(folders: list[Path]) -> None:
    from evaluation.display.table import print_table
    from evaluation.results.run_folders import open_runs, together

    print_table(together(open_runs(folders)).dice_and_contribution, console)
    for folder in folders:
        console.print(f"run folder: {folder}", soft_wrap=True)


@app.command()
@reports_bad_input
def compare(
    out: Annotated[Path, typer.Option(help="Folder of the run folders; what is done there is not done again.")],
    sites: SitesFolder,
    methods: Annotated[
        str, typer.Option(help="Names, each with parameters where wanted: fedavg,fedce:combine=plus; or all.")
    ] = "all",
    seeds: Annotated[str, typer.Option(help="Of the runs of each method.")] = "0",
    rounds: Annotated[int, typer.Option(help="Rounds of each run.")] = 30,
    engine: Annotated[
        Engine, typer.Option(help="NVFlare's simulator, real processes (poc), or one process.")
    ] = Engine.sim,
    jobs: Jobs = None,
    threads: Threads = None,
    device: Device = None,
    server_sites: ServerSites = None,
    settings: Settings = None,
) -> None:
    """Train methods and seeds on the same sites, and print Tables 1 and 6 of the FedCE paper for them.

    Runs on the local engine go side by side, those on NVFlare one by one. Interrupted, the same command goes on
    from the last complete round. Exits with 1 where a run failed.
    """
    from evaluation.display.table import print_table
    from evaluation.studies.comparison import prepare, work_off, write_tables
    from evaluation.studies.pool import workers_for
    from evaluation.studies.requests import parse_methods, parse_seeds

    require_jobs(jobs)
    given = {"threads": threads, "device": device, "server_sites": server_sites}
    options = {"sites": sites, "rounds": rounds, "engine": engine.value} | {
        name: value for name, value in given.items() if value is not None
    }
    planned = prepare(out, parse_methods(methods), parse_seeds(seeds), assignments(settings), options)
    names = {run.folder: f"{run.label}, seed {run.seed}" for run in planned}
    with resumable(), progress() as bars:
        bar = bars.add_task("runs", total=len(planned), completed=sum(run.finished for run in planned), last="")
        each = RunBars(bars)

        def on_end(folder: Path, error: str | None) -> None:
            each.remove(folder)
            bars.advance(bar)

        there = next(run.folder for run in planned if (run.folder / "run.json").exists())
        workers = jobs or max(1, workers_for(there) // (threads or 1))
        failed = work_off(planned, workers, on_end, lambda folder, record: each.on_round(folder, record, names[folder]))
    for table in write_tables(out, planned):
        print_table(table, console)
    console.print(f"runs and tables: {out}", soft_wrap=True)
    for folder, error in failed.items():
        typer.echo(f"failed: {names[folder]}, in {folder}: {error}", err=True)
    if failed:
        raise typer.Exit(1)


@app.command()
@reports_bad_input
def demo(
    out: Annotated[Path, typer.Option(help="Folder to work in; what is done there is not done again.")] = Path("demo"),
    rounds: Annotated[int, typer.Option(help="Rounds of each run.")] = 12,
) -> None:
    """Six generated sites, FedAvg and FedCE on NVFlare's simulator, the report."""
    from data_prep.prepare import prepare as prepare_sites
    from evaluation.report.all_sites import write_report
    from fedmerit.engines import runs

    sites = out / "sites"
    if not sites.exists():
        console.print("[bold]1. Six generated hospitals[/]")
        print_sites(sites, len(prepare_sites("synthetic-prostate", sites, size=64)))
    folders = []
    for number, method in enumerate(("fedavg", "fedce"), start=2):
        console.print(f"[bold]{number}. {METHODS[method].method.__name__} on NVFlare's simulator[/]")
        folder = out / method
        if not (folder / "run.json").exists():
            runs.create(folder, method=method, sites=sites, rounds=rounds)
        run_with_progress(folder)
        folders.append(folder)
    console.print("[bold]4. Dice and contribution[/]")
    _print_runs(folders)
    path = write_report(folders, out / "report.html")
    console.print(f"report: {path.resolve()}", soft_wrap=True)
