"""Commands about methods: what there is, and as NVFlare job folders."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from cli.app import (
    TASKS,
    Contributions,
    Guard,
    KeepUpdates,
    Method,
    OnVerdict,
    Privacy,
    Recipe,
    RoundTimeout,
    Settings,
    Track,
    Values,
    console,
    guarded,
    settings_of,
    specs_of,
    with_contributions,
)
from fedmerit.configuration.recipes import ROUNDS
from fedmerit.errors import BadInput

COLUMNS = {  # of the table of methods, by the field of `About`
    "contribution": "contribution of a site",
    "weights": "weights",
    "download": "what a site downloads",
    "site_work": "work of a site",
    "paper": "paper",
}
commands = typer.Typer()


@commands.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="One of them: what its parameters are.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="The table as it stands in docs/methods.md.")] = False,
) -> None:
    """The methods and how they differ, or the parameters of one."""
    if markdown:
        typer.echo(markdown_of_methods())
    else:
        table = _table_of_methods() if name is None else _table_of_parameters(name)
        Console(width=max(console.width, 128)).print(table)  # narrower, words are cut


def markdown_of_methods() -> str:
    """The table of the README."""
    from fedmerit.methods.registry import METHODS

    lines = [["method", *COLUMNS.values()], ["---"] * (len(COLUMNS) + 1)]
    lines += [[f"`{name}`", *vars(kind.about).values()] for name, kind in METHODS.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _table_of_methods() -> Table:
    from fedmerit.methods.registry import METHODS

    table = Table(show_lines=True)
    for header in ("method", *COLUMNS.values(), "parameters"):
        table.add_column(header, no_wrap=header == "parameters")
    for name, kind in METHODS.items():
        parameters = "\n".join(f"{one.name}={_text(one.default)}" for one in fields(kind))
        table.add_row(name, *vars(kind.about).values(), parameters or "none")
    return table


def _table_of_parameters(name: str) -> Table:
    from fedmerit.methods.registry import METHODS
    from fedmerit.parameters import rules

    if name not in METHODS:
        raise BadInput(f"method {name!r}: unknown; expected one of {', '.join(METHODS)}")
    known, table = rules(METHODS[name]), Table()
    for header in ("parameter", "default", "range", "what it is"):
        table.add_column(header)
    for one in fields(METHODS[name]):
        expected = "true or false" if isinstance(one.default, bool) else known[one.name].expected()
        table.add_row(one.name, _text(one.default), expected, known[one.name].text)
    return table


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


@commands.command()
def export(
    method: Annotated[str, Method],
    out: Annotated[Path, typer.Option(help="Job folder to write.")],
    task: Annotated[str | None, typer.Option(help=f"{', '.join(TASKS)}; or --sites.")] = None,
    sites: Annotated[
        Path | None,
        typer.Option(help="Site folders of any task, prepared as the hospitals': one of them, or the generated ones."),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds to train.")] = ROUNDS,
    seed: Annotated[int, typer.Option(help="Of the run.")] = 0,
    min_sites: Annotated[
        int, typer.Option(help="Sites that have to be there for the job to start, and answer for a round to end.")
    ] = 2,
    round_timeout: RoundTimeout = None,
    contributions: Contributions = None,
    settings: Settings = None,
    recipe: Recipe = None,
    guard: Guard = None,
    on_verdict: OnVerdict = None,
    privacy: Privacy = None,
    track: Track = None,
    values: Values = None,
    keep_updates: KeepUpdates = False,
    byoc: Annotated[bool, typer.Option("--byoc", help="Bring fedmerit's code, for machines that allow that.")] = False,
) -> None:
    """Write an NVFlare job folder, ready to submit."""
    from fedmerit.configuration import run
    from fedmerit.configuration.filters import require_privacy
    from fedmerit.configuration.observation import require_observable
    from fedmerit.configuration.tracking import require_tracking
    from fedmerit.engines import runs
    from fedmerit.files import folder_digest
    from fedmerit.flare.recipe import export_job
    from fedmerit.records.results import read_run
    from fedmerit.training.data import open_sites

    if (task is None) == (sites is None):
        raise BadInput("--task or --sites: expected one of them; --sites takes folders of any task")
    if sites is None and task not in TASKS:
        raise BadInput(f"task {task!r}: unknown; expected one of {', '.join(TASKS)}, or --sites SITES")
    chosen = guarded(settings_of(settings, recipe, guard=guard, on_verdict=on_verdict))
    if contributions:  # in the order of names, as the sites of the job will stand
        chosen = with_contributions(chosen, contributions, read_run(contributions)["sites"])
    observed = specs_of(values) or [], keep_updates
    if sites is None:
        config = run.make_configuration(method, str(task), rounds, seed, run.TASKS[str(task)], chosen, *observed)
    else:
        config = runs.configuration_for(open_sites(sites), method, rounds, seed, chosen, *observed)
    filters = require_privacy(privacy or [], method, config.build_method())
    trackers = require_tracking(track or [], "prod")
    require_observable(config.values, keep_updates, filters)
    export_job(config, out, min_sites, byoc, round_timeout or 0, privacy=filters, track=trackers)
    console.print(f"job folder: {out}\nSHA-256 of its files: {folder_digest(out)}", soft_wrap=True)
