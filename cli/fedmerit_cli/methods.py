"""The command that lists methods and their parameters: methods."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text as RichText

from fedmerit import plugins
from fedmerit.errors import require_known
from fedmerit.schema.configuration.settings import PAPER, PRESETS, Preset, guarded
from fedmerit.schema.rules import Rule, Text
from fedmerit_cli.options import CATALOGUE
from fedmerit_cli.terminal import Commands, console

if TYPE_CHECKING:
    from fedmerit.schema.declarations import Parameter

COLUMNS = {  # of the table of methods, by the field of `About`
    "contribution": "contribution of a site",
    "weights": "weights",
    "download": "what a site downloads",
    "site_work": "work of a site",
    "paper": "paper",
}
commands = Commands()


@commands.add("methods fedce")
def methods(name: Annotated[str | None, typer.Argument(help="Show what --set takes with this method.")] = None) -> None:
    """List the methods and how they differ, or the parameters and the preset of one."""
    for table in [_method_table()] if name is None else _parameter_tables(name):
        Console(width=max(console.width, 128), markup=False).print(table)  # narrower, words are cut


def describe(kind: type[Any]) -> dict[str, list[Any]]:
    """Return the texts of a method in the order of `COLUMNS`, and its `parameter_rows`."""
    return {"about": [*vars(kind.about).values()], "parameters": parameter_rows(kind)}


def _described(name: str) -> dict[str, list[Any]]:
    if name in CATALOGUE["methods"]:
        described: dict[str, list[Any]] = CATALOGUE["methods"][name]
        return described
    from fedmerit.methods.registry import METHODS

    require_known("method", [name], METHODS)
    return describe(METHODS[name])


def _method_table() -> Table:
    table = Table("method", *COLUMNS.values(), Column("parameters", no_wrap=True), show_lines=True)
    for name in dict.fromkeys([*CATALOGUE["methods"], *plugins.names("methods")]):
        one = _described(name)
        parameters = "\n".join(f"{parameter}={default}" for parameter, default, *_ in one["parameters"])
        table.add_row(name, *one["about"], parameters or "none")
    return table


def _parameter_tables(name: str) -> list[Table]:
    """Return what ``--set`` takes: of the method, and of every method."""
    preset = PRESETS.get(name)
    return [
        _parameter_table(f"Parameters of {name}", {"": _described(name)["parameters"]}),
        _parameter_table("Parameters of every method; the guard is off in compare and studies", CATALOGUE["shared"]),
        *([_preset_table(preset)] if preset else []),
    ]


def _preset_table(preset: "Preset") -> Table:
    table = Table("parameter", "value", title=f"--preset {PAPER}", title_justify="left")
    table.add_row("stated in", preset.source)
    table.add_row("rounds", f"{preset.rounds}: add --rounds {preset.rounds}")
    for name, value in {**preset.parameters, **preset.training}.items():
        table.add_row(name, _text(value))
    return table


def _parameter_table(title: str, groups: Mapping[str, Sequence[Sequence[str]]]) -> Table:
    table = Table("parameter", "default", "range", "what it is", title=title, title_justify="left")
    for group, rows in groups.items():
        if group:
            table.add_section()
            table.add_row(RichText(group, "bold"))
        for row in rows:
            table.add_row(*row)
    return table


def parameter_rows(kind: type[Any]) -> list[list[str]]:
    """Return name, default, range and text of each parameter of a method, or of a part of a run."""
    from fedmerit.schema.configuration.settings import settable

    return [
        [name, _text(guarded({}).get(name, declared.default)), _range(declared), declared.text]
        for name, declared in settable(kind).items()
    ]


def _range(declared: "Parameter") -> str:
    rule = declared.mark(Rule, Rule())
    return rule.bounds() or ("" if isinstance(rule, Text) else rule.words())


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is MISSING else str(value)
