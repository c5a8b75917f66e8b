"""Options that commands share: those of a run derive from `RunOptions`. Loads nothing heavy."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import typer
from pydantic import BeforeValidator

from fedmerit.errors import BadInput
from fedmerit.schema.configuration.options import RunOptions, kind, shown_fields, value_range
from fedmerit.schema.declarations import parse_assignments
from fedmerit_cli.terminal import console

if TYPE_CHECKING:
    from fedmerit_evaluation.studies.execution import Workers

# Names of methods and settings, so that no torch is loaded for a help text; `docs/tables.py` writes the file.
CATALOGUE = json.loads(Path(__file__).with_name("methods.json").read_text("utf-8"))
METHODS = tuple(CATALOGUE["methods"])
TASKS = ("prostate", "fundus", "fundus-disc")

OutFolder = Annotated[Path, typer.Option(help="Folder of the run folders; finished runs in it are reused.")]
Methods = Annotated[
    str, typer.Option(help="Names, with parameters if needed: fedavg,fedce:combine=plus; or all (scaffold needs sgd).")
]
Seeds = Annotated[str, typer.Option(metavar="SEED,SEED", help="Random seeds of each training.")]
CROSS_VALIDATION = "Cross-validation: train on every fold that the sites were prepared with"
AllFolds = Annotated[bool, typer.Option("--folds", help=f"{CROSS_VALIDATION}.")]
Folds = Annotated[
    bool | None,
    typer.Option(
        "--folds/--one-split",
        help=f"{CROSS_VALIDATION}; or on one split.",
        show_default="folds, if there are any and a hospital has fewer than 20 test patients",
    ),
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Concurrent runs.", show_default="by free cores and memory")]
Cluster = Annotated[
    str | None, typer.Option(metavar="ADDRESS|slurm", help="Where to train: docs/running.md.", show_default="here")
]
GroundTruth = Annotated[
    Path | None, typer.Option(help="Folder of `fedmerit value leave-one-out` or `shapley`, on the same sites.")
]
Draws = Annotated[int, typer.Option(min=1, help="Random draws for the 95 % CI.")]


def run_options(
    *names: str, required: Sequence[str] = (), defaults: Mapping[str, Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: a command takes these options of a run, as its parameter ``asked``, a `RunOptions`.

    Args:
        names: fields of `RunOptions`, in the order of the help.
        required: those that have to be given.
        defaults: values other than the fields' own.
    """
    own = dict(defaults or {})

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def command(**values: Any) -> Any:
            return function(**{name: values.pop(name) for name in rest}, asked=_read(own, values))

        signature = inspect.signature(function, eval_str=True)
        rest = {name: one for name, one in signature.parameters.items() if name != "asked"}
        added = [_parameter(name, name in required, own.get(name)) for name in names]
        both = [*(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in rest.values()), *added]
        parameters = sorted(both, key=lambda one: one.default is not inspect.Parameter.empty)  # required ones first
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        return command

    return decorate


def _parameter(name: str, is_required: bool, default: Any) -> inspect.Parameter:
    """A field of `RunOptions` as a parameter from which typer makes an option."""
    field, shown, of_kind = RunOptions.model_fields[name], shown_fields()[name], kind(RunOptions.model_fields[name])
    if of_kind is bool:
        annotation: Any = bool
    elif get_origin(of_kind) in (tuple, dict):
        is_one_text = any(isinstance(one, BeforeValidator) for one in field.metadata)
        annotation = str | None if is_one_text else list[str] | None
    else:
        annotation = of_kind | None
    stated = default if default is not None else field.default
    of_default = (
        "" if is_required else shown.default or ("" if stated in (None, "", (), {}) or stated is False else str(stated))
    )
    notes = [value_range(field), f"default: {of_default}" if of_default else ""]
    extra = f"  [{'; '.join(filter(None, notes))}]" if any(notes) else ""
    option = typer.Option(
        f"--{shown.flag or name.replace('_', '-')}",
        metavar=shown.metavar or None,
        help=f"{field.description}{extra}",
        show_default=False,
        rich_help_panel=shown.panel,
        autocompletion=_complete_method if name == "method" else None,
    )
    empty = inspect.Parameter.empty if is_required else False if of_kind is bool else None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=empty, annotation=Annotated[annotation, option]
    )


def _complete_method(incomplete: str) -> list[str]:
    return [one for one in METHODS if one.startswith(incomplete)]


def _read(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> RunOptions:
    """The options that the user gave, above a command's defaults."""
    found = {name: value for name, value in values.items() if value is not None and value is not False and value != []}
    if "settings" in found:
        found["settings"] = parse_assignments(found["settings"], f"--{shown_fields()['settings'].flag}")
    return RunOptions.read({**defaults, **found}, label=lambda name, value: f"--{name.replace('_', '-')} {value}")


def given(**options: Any) -> dict[str, Any]:
    """The options that have a value; the callee has defaults for the others."""
    return {name: value for name, value in options.items() if value is not None}


def make_workers(jobs: int | None, cluster: str | None, asked: RunOptions | None = None) -> "Workers":
    """The processes that --jobs and --cluster ask for.

    `BadInput` if they cannot be had, or runs as they are ``asked`` for use none.

    They import their packages while the command does its preparations: call this early.
    """
    from fedmerit_evaluation.studies.run_processes import begin_processes

    is_used = not (asked and asked.has_own_processes)
    if is_used and cluster is None and jobs != 1:
        begin_processes()
    from fedmerit_evaluation.studies.execution import Workers

    workers = Workers(jobs, cluster, lambda text: console.print(text, soft_wrap=True))
    if asked:
        workers.require_used_by(asked)
    return workers


def parse_integers(text: str, option: str, least: int) -> list[int]:
    """The integers of ``10,30``; `BadInput` if one is none, or is below ``least``."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) >= least for part in parts):
        raise BadInput(f"{option} {text}: expected whole numbers from {least} on, such as 10,30")
    return [int(part) for part in parts]
