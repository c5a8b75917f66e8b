"""The ``fedmerit`` command."""

import os
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fedmerit.errors import BadInput, RunFailed
from fedmerit.ledger import verify as verify_ledger
from fedmerit.plan import TASKS, make_plan
from fedmerit.registry import METHODS

app = typer.Typer(
    help="Collaboratively-fair federated learning for medical image segmentation.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()
P = ParamSpec("P")
R = TypeVar("R")


class Engine(StrEnum):
    """Where a run runs."""

    sim = "sim"
    local = "local"


class Split(StrEnum):
    """A part of a site's cases."""

    training = "training"
    validation = "validation"
    testing = "testing"


class PaperFigure(StrEnum):
    """A figure of a paper that needs no images."""

    cgsv_approximation = "cgsv-approximation"


class SliceChoice(StrEnum):
    """Which slices train."""

    all = "all"
    organ = "organ"


class Crop(StrEnum):
    """What is kept of a photograph."""

    disc = "disc"
    whole = "whole"


CONFIG: Mapping[str, type] = {  # what `run --config` may hold
    **dict.fromkeys(("out", "method", "sites", "engine", "device", "server_sites"), str),
    **dict.fromkeys(("rounds", "seed", "threads"), int),
    "set": dict,
}
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the method, the training or the network."),
]


def _reports_bad_input(command: Callable[P, R]) -> Callable[P, R]:
    """Turn `BadInput` and `RunFailed` into their message on standard error, and exit code 2 or 1."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (BadInput, RunFailed) as error:
            typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
            typer.echo(str(error), err=True)
            raise typer.Exit(2 if isinstance(error, BadInput) else 1) from None

    return wrapped


def _assignments(settings: list[str] | None) -> dict[str, str]:
    pairs = [setting.partition("=") for setting in settings or []]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise BadInput(f"--set {name}: expected NAME=VALUE")
    return {name: value for name, _, value in pairs}


@app.command()
@_reports_bad_input
def prepare(
    kind: Annotated[str, typer.Argument(help="Layout of the raw data; any other word is answered with the list.")],
    out: Annotated[Path, typer.Option(help="Folder to write the site folders into.")],
    source: Annotated[Path | None, typer.Option(help="Folder of the raw data; synthetic kinds need none.")] = None,
    ratios: Annotated[str, typer.Option(help="Shares of patients to train, validate and test on.")] = "0.5,0.25,0.25",
    size: Annotated[int, typer.Option(help="Height and width of the prepared slices in pixels.")] = 256,
    seed: Annotated[int, typer.Option(help="Moves the split.")] = 0,
    slices: Annotated[
        SliceChoice, typer.Option(help="Train on all slices, or on those that show the organ.")
    ] = SliceChoice.all,
    field_of_view: Annotated[float | None, typer.Option(help="Millimetres to crop to, about the centre.")] = None,
    crop: Annotated[
        Crop | None, typer.Option(help="Photographs: a square about the disc, or the whole. [default: the kind's]")
    ] = None,
    crop_multiple: Annotated[
        float | None, typer.Option(help="Side of that square in extents of the disc. [default: 3]")
    ] = None,
    patients: Annotated[int | None, typer.Option(help="Synthetic kinds: patients per site.")] = None,
    server_share: Annotated[
        float, typer.Option(help="Share of each site's training patients to set aside for the server to validate on.")
    ] = 0.0,
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Leave unreadable cases out and count them, instead of stopping.")
    ] = False,
    jobs: Annotated[int | None, typer.Option(help="Processes at work at a time. [default: cores]")] = None,
    pictures: Annotated[
        bool, typer.Option("--pictures/--no-pictures", help="Draw OUT/overview: a montage, intensities per site.")
    ] = True,
) -> None:
    """Turn raw data into site folders. Interrupted, the same command goes on from the last finished cases."""
    from data_prep.prepare import OVERVIEW, finished_cases
    from data_prep.prepare import prepare as prepare_sites

    try:
        shares = tuple(float(part) for part in ratios.split(","))
    except ValueError:
        shares = ()
    if len(shares) != 3:
        raise BadInput(f"--ratios {ratios}: expected three numbers such as 0.5,0.25,0.25")
    try:
        folders = prepare_sites(
            kind,
            out,
            source=source,
            ratios=(shares[0], shares[1], shares[2]),
            size=size,
            seed=seed,
            slices=slices.value,
            field_of_view=field_of_view,
            crop=crop and crop.value,
            crop_multiple=crop_multiple,
            patients=patients,
            server_share=server_share,
            skip_unreadable=skip_unreadable,
            jobs=(os.cpu_count() or 1) if jobs is None else jobs,
            pictures=pictures,
        )
    except KeyboardInterrupt:
        typer.echo(
            f"stopped; {finished_cases(out)} finished cases are kept for the same command to go on from", err=True
        )
        raise typer.Exit(130) from None
    _print_sites(out, len(folders))
    if pictures:
        console.print(f"pictures: {out / OVERVIEW}; private, they show images of patients", soft_wrap=True)


def _print_sites(root: Path, count: int) -> None:
    """What each site holds, and what was left out or put right there, by reason."""
    from fedmerit.data import SERVER_SPLIT, SPLITS, open_sites

    sites = open_sites(root)
    columns = {f"{split} cases": split for split in SPLITS}
    if any(site.cases(SERVER_SPLIT) for site in sites):
        columns["server cases"] = SERVER_SPLIT
    table = Table("site", *columns, "training slices", "files used", "left out", box=None)
    for site in sites:
        cases = [str(len(site.cases(split))) for split in columns.values()]
        slices = site.info["counts"]["training"]["slices"]
        table.add_row(site.name, *cases, str(slices), str(site.info["used"]["files"]), str(len(site.info["left_out"])))
    console.print(table)
    for title, field, key, what in (
        ("left out", "left_out", "reason", "files"),
        ("noted", "remarks", "remark", "cases"),
    ):
        _print_reasons(title, what, Counter((site.name, entry[key]) for site in sites for entry in site.info[field]))
    if unreadable := sum(site.info["unreadable_cases"] for site in sites):
        console.print(f"{unreadable} unreadable cases left out, as --skip-unreadable asks")
    console.print(f"{count} sites in {root}", soft_wrap=True)


def _print_reasons(key: str, what: str, counts: Mapping[tuple[str, str], int], most: int = 20) -> None:
    if not counts:
        return
    table = Table("site", what, key, box=None)
    ordered = sorted(counts.items(), key=lambda item: (item[0][0], -item[1], item[0][1]))
    for (site, reason), count in ordered[:most]:
        table.add_row(site, str(count), Text(reason))
    console.print(table)
    if len(ordered) > most:
        console.print(f"and {len(ordered) - most} other reasons, all in the sites' site.json")


@app.command()
@_reports_bad_input
def check(
    sites: Annotated[Path, typer.Argument(help="Folder of site folders.")],
    max_empty: Annotated[float, typer.Option(help="Largest share of a site's cases with an empty mask.")] = 0.1,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for a report to share: quality.json, .html, .csv; no file, case or patient in it."),
    ] = None,
    private: Annotated[
        Path | None, typer.Option(help="CSV file for the hospital itself: every finding with its file.")
    ] = None,
    names: Annotated[
        bool, typer.Option("--names/--no-names", help="Name files, cases and patients on this terminal.")
    ] = True,
) -> None:
    """Check site folders: whole, unchanged, plausible; exits with 1 where an error is found."""
    from data_prep.check import examine
    from data_prep.findings import KINDS, Severity
    from data_prep.quality_report import write_private, write_shareable

    found = examine(sites, max_empty=max_empty)
    for finding in found.findings:
        if names:
            told = str(finding)
        else:
            place = " ".join(part for part in (finding.site, finding.split, finding.position) if part)
            told = ": ".join(part for part in (place, finding.kind, finding.detail or KINDS[finding.kind][1]) if part)
        typer.echo(f"{finding.severity}: {told}", err=True)
    table = Table("site", "cases", *(f"{severity}s" for severity in Severity), "arrays", "digest", box=None)
    for site in found.sites:
        counts = [str(sum(item.site == site.name for item in found.of(severity))) for severity in Severity]
        state = "as prepared" if site.unchanged else "changed"
        table.add_row(site.name, str(sum(site.cases.values())), *counts, state, site.spoken)
    console.print(table)
    if out is not None:
        for path in write_shareable(found, out):
            console.print(f"to share: {path}", soft_wrap=True)
    if private is not None:
        write_private(found.findings, private)
        console.print(f"private, names files and patients: {private}", soft_wrap=True)
    errors, warnings, notes = (len(found.of(severity)) for severity in Severity)
    where = f"{sites}: " if names else ""
    if errors:
        console.print(f"{where}{errors} errors, {warnings} warnings, {notes} notes", soft_wrap=True)
        raise typer.Exit(1)
    beyond = f" beyond {warnings} warnings and {notes} notes" if warnings or notes else ""
    console.print(f"{where}nothing wrong{beyond}", soft_wrap=True)


@app.command()
@_reports_bad_input
def run(
    out: Annotated[Path | None, typer.Option(help="Run folder to write.")] = None,
    method: Annotated[str | None, typer.Option(help=", ".join(METHODS))] = None,
    sites: Annotated[Path | None, typer.Option(help="Folder of site folders.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds to train. [default: 30]")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of initial model, order of images, augmentation. [default: 0]")
    ] = None,
    engine: Annotated[Engine | None, typer.Option(help="NVFlare's simulator, or one process. [default: sim]")] = None,
    threads: Annotated[int | None, typer.Option(help="Sites at work at a time. [default: all; local: cores]")] = None,
    device: Annotated[str | None, typer.Option(help="cuda:0 for all, or SITE=cuda:0,SITE=cpu. [default: auto]")] = None,
    server_sites: Annotated[
        Path | None,
        typer.Option(help="Site folders of the server's own, to validate on instead of what sites set aside."),
    ] = None,
    settings: Settings = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file of these options; the command line goes first.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last complete round of --out.")] = False,
) -> None:
    """Train one federation and test what it gave."""
    from fedmerit import runs

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
    }
    options = _with_config({name: value for name, value in given.items() if value is not None}, config, settings)
    if "out" not in options:
        raise BadInput("--out: missing; name the run folder to write")
    folder = Path(options.pop("out"))
    if resume:
        runs.require_same(folder, options)
    else:
        for name in ("method", "sites"):
            if name not in options:
                raise BadInput(f"--{name}: missing; a new run needs it (or --resume to continue one)")
        runs.create(folder, **options)
    _run_with_progress(folder)
    _print_runs([folder])


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
    merged = content.pop("set", {}) | _assignments(settings)
    return content | given | ({"settings": merged} if merged else {})


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(10), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TextColumn("{task.fields[last]}"), console=console)


def _run_with_progress(folder: Path) -> None:
    with _progress() as progress:
        _execute(folder, progress)


def _execute(folder: Path, progress: Progress, name: str = "") -> None:
    """Execute a run under a bar of its rounds."""
    from fedmerit import runs
    from fedmerit.results import read_run

    info = read_run(folder)
    bar = progress.add_task(f"{name or info['method']} ({info['engine']})", total=info["rounds"], last="")

    def on_round(record: Mapping[str, Any]) -> None:
        dice = list(record["validation_dice"].values())
        weights = " ".join(f"{weight:.2f}" for weight in record["weights"].values())
        last = f"Dice {sum(dice) / len(dice):.3f}, weights {weights}"
        progress.update(bar, completed=record["round"] + 1, last=last)
        for site, reason in record["rejected"].items():
            progress.console.print(f"round {record['round']}: {site} rejected: {reason}", markup=False)
        for site in record["flagged"]:
            progress.console.print(f"round {record['round']}: {site} flagged: its cosine is not the server's")

    runs.execute(folder, on_round)


def _print_runs(folders: list[Path]) -> None:
    from evaluation.tables import dice_and_contribution, print_table

    print_table(dice_and_contribution(folders), console)
    for folder in folders:
        console.print(f"run folder: {folder}", soft_wrap=True)


@app.command()
@_reports_bad_input
def compare(
    out: Annotated[Path, typer.Option(help="Folder of the run folders; what is done there is not done again.")],
    sites: Annotated[Path, typer.Option(help="Folder of site folders.")],
    methods: Annotated[
        str, typer.Option(help="Names, each with parameters where wanted: fedavg,fedce:combine=plus; or all.")
    ] = "all",
    seeds: Annotated[str, typer.Option(help="Of the runs of each method.")] = "0",
    rounds: Annotated[int, typer.Option(help="Rounds of each run.")] = 30,
    engine: Annotated[Engine, typer.Option(help="NVFlare's simulator, or one process.")] = Engine.sim,
    threads: Annotated[int | None, typer.Option(help="Sites at work at a time. [default: all; local: cores]")] = None,
    device: Annotated[str | None, typer.Option(help="cuda:0 for all, or SITE=cuda:0,SITE=cpu. [default: auto]")] = None,
    server_sites: Annotated[
        Path | None,
        typer.Option(help="Site folders of the server's own, to validate on instead of what sites set aside."),
    ] = None,
    settings: Settings = None,
) -> None:
    """Train methods and seeds on the same sites, and print Tables 1 and 6 of the FedCE paper for them.

    Interrupted, the same command goes on from the last complete round. Exits with 1 where a run failed.
    """
    from evaluation.comparison_runs import Planned, parse_methods, parse_seeds, prepare, work_off, write_tables
    from evaluation.tables import print_table

    given = {"threads": threads, "device": device, "server_sites": server_sites}
    options = {"sites": sites, "rounds": rounds, "engine": engine.value} | {
        name: value for name, value in given.items() if value is not None
    }
    planned = prepare(out, parse_methods(methods), parse_seeds(seeds), _assignments(settings), options)
    with _progress() as progress:
        bar = progress.add_task("runs", total=len(planned), last="")

        def execute(run: Planned) -> None:
            _execute(run.folder, progress, f"{run.label}, seed {run.seed}")

        def on_end() -> None:
            for task in progress.task_ids:
                if task != bar:
                    progress.remove_task(task)
            progress.advance(bar)

        failed = work_off(planned, execute, on_end)
    wide = Console(width=max(console.width, 150))  # narrower, labels and numbers are cut
    for table in write_tables(out, planned):
        print_table(table, wide)
    console.print(f"runs and tables: {out}", soft_wrap=True)
    for run, error in failed.items():
        typer.echo(f"failed: {run.label}, seed {run.seed}, in {run.folder}: {error}", err=True)
    if failed:
        raise typer.Exit(1)


@app.command()
@_reports_bad_input
def evaluate(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    sites: Annotated[Path, typer.Option(help="Folder of any site folders of the same task.")],
    split: Annotated[Split, typer.Option(help="Which cases.")] = Split.testing,
) -> None:
    """Dice of a run's final model, or models, on any site folders."""
    from evaluation.evaluate import evaluate as evaluate_run
    from evaluation.tables import print_table, site_dice

    print_table(site_dice(evaluate_run(run, sites, split.value), split.value), console)


@app.command()
@_reports_bad_input
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    out: Annotated[Path | None, typer.Option(help="HTML file to write.")] = None,
    sites: Annotated[
        Path | None, typer.Option(help="Site folders to draw overlays from, if not the run's own.")
    ] = None,
    images: Annotated[bool, typer.Option(help="Overlays of image, reference and prediction.")] = True,
) -> None:
    """One self-contained HTML report of one or several runs, its tables and figures beside it."""
    from evaluation.report import write_report

    path = write_report(runs, out, sites=sites, images=images)
    console.print(f"report: {path.resolve()}", soft_wrap=True)


@app.command()
@_reports_bad_input
def figure(
    name: Annotated[PaperFigure, typer.Argument(help="Which.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder to write the CSV and the PNG into.")] = Path("figures"),
    repeats: Annotated[int, typer.Option(help="Draws of random updates to average over.")] = 10,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    largest_sites: Annotated[int, typer.Option(help="Largest N; exact values take 2^N coalitions.")] = 20,
) -> None:
    """Reproduce a figure of a paper on random updates: Figure 1 of CGSV, error and time of Shapley values."""
    from rich.progress import track

    from evaluation import approximation
    from evaluation.tables import print_table

    cells = approximation.grid(largest_sites)
    bar = partial(track, description=name.value, console=console)
    table = approximation.compare(cells, repeats=repeats, seed=seed, track=bar)
    print_table(approximation.shown(table), console)
    for path in approximation.write(table, out):
        console.print(str(path), soft_wrap=True)


@app.command()
def methods() -> None:
    """The methods and how they differ."""
    table = Table(show_lines=True)
    for header in ("method", "contribution", "weights", "download", "site work", "parameters", "paper"):
        table.add_column(header, no_wrap=header == "parameters")
    for name, entry in METHODS.items():
        values = {
            key: f"{value:g}" if isinstance(value, float) else value for key, value in vars(entry.method()).items()
        }
        parameters = "\n".join(f"{key}={value}" for key, value in values.items())
        table.add_row(
            name, entry.contribution, entry.weights, entry.download, entry.site_work, parameters or "none", entry.paper
        )
    Console(width=max(console.width, 128)).print(table)  # narrower, words are cut


@app.command()
@_reports_bad_input
def export(
    method: Annotated[str, typer.Option(help=", ".join(METHODS))],
    task: Annotated[str, typer.Option(help=", ".join(TASKS))],
    out: Annotated[Path, typer.Option(help="Job folder to write.")],
    rounds: Annotated[int, typer.Option(help="Rounds to train.")] = 30,
    seed: Annotated[int, typer.Option(help="Of the run.")] = 0,
    min_sites: Annotated[int, typer.Option(help="Sites that have to be there for the job to start.")] = 2,
    settings: Settings = None,
) -> None:
    """Write an NVFlare job folder, ready to submit."""
    from fedmerit.flare.recipe import export_job

    if task not in TASKS:
        raise BadInput(f"task {task!r}: unknown; expected one of {', '.join(TASKS)}")
    plan = make_plan(method, task, rounds, seed, TASKS[task], _assignments(settings))
    export_job(plan, out, min_sites)
    console.print(f"job folder: {out}", soft_wrap=True)


@app.command()
@_reports_bad_input
def verify(run: Annotated[Path, typer.Argument(help="Run folder.")]) -> None:
    """Recompute the hash chain of a run's ledger."""
    count = verify_ledger(run / "ledger.jsonl")
    console.print(f"{run}: {count} records, the chain is whole", soft_wrap=True)


@app.command()
@_reports_bad_input
def demo(
    out: Annotated[Path, typer.Option(help="Folder to work in; what is done there is not done again.")] = Path("demo"),
    rounds: Annotated[int, typer.Option(help="Rounds of each run.")] = 12,
) -> None:
    """Six generated sites, FedAvg and FedCE on NVFlare's simulator, the report."""
    from data_prep.prepare import prepare as prepare_sites
    from evaluation.report import write_report
    from fedmerit import runs

    sites = out / "sites"
    if not sites.exists():
        console.print("[bold]1. Six generated hospitals[/]")
        _print_sites(sites, len(prepare_sites("synthetic-prostate", sites, size=64)))
    folders = []
    for number, method in enumerate(("fedavg", "fedce"), start=2):
        console.print(f"[bold]{number}. {METHODS[method].method.__name__} on NVFlare's simulator[/]")
        folder = out / method
        if not (folder / "run.json").exists():
            runs.create(folder, method=method, sites=sites, rounds=rounds)
        _run_with_progress(folder)
        folders.append(folder)
    console.print("[bold]4. Dice and contribution[/]")
    _print_runs(folders)
    path = write_report(folders, out / "report.html")
    console.print(f"report: {path.resolve()}", soft_wrap=True)
