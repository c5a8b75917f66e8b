"""Commands about methods: what there is, and as NVFlare job folders."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedmerit.configuration.recipes import PAPER, PRESETS, ROUNDS, guarded
from fedmerit.errors import BadInput
from fedmerit_cli.app import (
    TASKS,
    Contributions,
    Finish,
    Guard,
    KeepUpdates,
    Method,
    OnVerdict,
    Preset,
    Privacy,
    Recipe,
    RoundTimeout,
    Settings,
    Track,
    Values,
    console,
    settings_of,
    specs_of,
    with_contributions,
)

if TYPE_CHECKING:
    from fedmerit.configuration import recipes
    from fedmerit.parameters import Rule

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
    """The methods and how they differ; or what --set takes with one: its parameters, those of all, its preset."""
    if markdown:
        typer.echo(markdown_of_methods())
        return
    for table in [_table_of_methods()] if name is None else _tables_of_parameters(name):
        Console(width=max(console.width, 128), markup=False).print(table)  # narrower, words are cut


def markdown_of_methods() -> str:
    """The table of docs/methods.md."""
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


def _tables_of_parameters(name: str) -> list[Table]:
    """What ``--set`` takes: of the method, and of every method."""
    from fedmerit.configuration.run import SHARED_GROUPS
    from fedmerit.methods.registry import METHODS

    if name not in METHODS:
        raise BadInput(f"method {name!r}: unknown; expected one of {', '.join(METHODS)}")
    preset = PRESETS.get(name)
    return [
        _table_of_parameters(f"Parameters of {name}", {"": METHODS[name]}),
        _table_of_parameters("Parameters of every method; the guard is off in compare and studies", SHARED_GROUPS),
        *([_table_of_preset(preset)] if preset else []),
    ]


def _table_of_preset(preset: "recipes.Preset") -> Table:
    table = Table(title=f"--preset {PAPER}", title_justify="left")
    for header in ("parameter", "value"):
        table.add_column(header)
    table.add_row("stated in", preset.source)
    table.add_row("rounds", f"{preset.rounds}: add --rounds {preset.rounds}")
    for name, value in {**preset.parameters, **preset.training}.items():
        table.add_row(name, _text(value))
    return table


def _table_of_parameters(title: str, groups: Mapping[str, type[Any]]) -> Table:
    from fedmerit.configuration.run import settable
    from fedmerit.parameters import rules

    table = Table(title=title, title_justify="left")
    for header in ("parameter", "default", "range", "what it is"):
        table.add_column(header)
    for group, kind in groups.items():
        known = rules(kind)
        if group:
            table.add_section()
            table.add_row(Text(group, "bold"))
        for one in settable(kind):
            default = guarded({}).get(one.name, one.default)
            table.add_row(one.name, _text(default), _range(known[one.name], default), known[one.name].text)
    return table


def _range(rule: "Rule", default: Any) -> str:
    if isinstance(default, bool):
        return "true or false"
    text = not rule.choices and (isinstance(default, str) or default is MISSING)
    return "" if text else rule.expected()


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is MISSING else str(value)


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
    preset: Preset = None,
    finish: Finish = None,
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
    from fedmerit.configuration.tracking import require_tracking
    from fedmerit.engines import runs
    from fedmerit.federation.requirements import require_consistent
    from fedmerit.files import folder_digest
    from fedmerit.flare.recipe import export_job
    from fedmerit.records.results import read_run
    from fedmerit.trainers.monai_trainer.data import open_sites

    if (task is None) == (sites is None):
        raise BadInput("--task or --sites: expected one of them; --sites takes folders of any task")
    if sites is None and task not in TASKS:
        raise BadInput(f"task {task!r}: unknown; expected one of {', '.join(TASKS)}, or --sites SITES")
    chosen = guarded(settings_of(settings, recipe, finish, preset, guard, on_verdict))
    if contributions:  # in the order of names, as the sites of the job will stand
        chosen = with_contributions(chosen, contributions, read_run(contributions)["sites"])
    observed = specs_of(values) or [], keep_updates
    if sites is None:
        config = run.make_configuration(method, str(task), rounds, seed, run.TASKS[str(task)], chosen, *observed)
    else:
        config = runs.configuration_for(open_sites(sites), method, rounds, seed, chosen, *observed)
    filters = require_privacy(privacy or [], method, config.build_method())
    trackers = require_tracking(track or [], "prod")
    require_consistent(config, filters)
    job = out.resolve()  # an earlier export in which one stands is moved away and replaced
    export_job(config, job, min_sites, byoc, round_timeout or 0, privacy=filters, track=trackers)
    console.print(f"job folder: {out}\nSHA-256 of its files: {folder_digest(job)}", soft_wrap=True)
