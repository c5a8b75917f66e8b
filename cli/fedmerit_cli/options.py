"""Options that commands share: those of a run derive from `RunOptions`. Loads nothing heavy."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import typer

from fedmerit.errors import BadInput
from fedmerit.schema.configuration.options import RunOptions
from fedmerit.schema.declarations import Parameter, Shown, parameters, parse_assignments, read
from fedmerit.schema.rules import Choice, Rule
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


Function = Callable[..., Any]


def takes(
    kind: Any,
    *names: str,
    required: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
    reader: Callable[..., Any] | None = None,
) -> Callable[[Function], Function]:
    """Return a decorator: a command takes declared options, as its parameter ``asked``, an instance of ``kind``.

    Args:
        kind: a dataclass or model whose fields are declared as `fedmerit.schema.declarations` says.
        names: the fields that become options, in the order of the help.
        required: the fields that have to be given.
        defaults: values other than the fields' own.
        reader: builds the instance, with the arguments of `fedmerit.schema.declarations.read` but the first; None:
            that function.
    """
    own = dict(defaults or {})
    known = parameters(kind)

    def decorate(function: Function) -> Function:
        @wraps(function)
        def command(**values: Any) -> Any:
            return function(**{name: values.pop(name) for name in rest}, asked=build(values))

        def build(values: Mapping[str, Any]) -> Any:
            chosen = {name: value for name, value in values.items() if value not in (None, False, [])}
            for name in chosen:
                if get_origin(known[name].base) is dict:
                    chosen[name] = parse_assignments(chosen[name], known[name].flag)
            return (reader or partial(read, kind))({**own, **chosen}, "", texts=True, label=label)

        def label(name: str, value: Any) -> str:
            return f"{known[name].flag if name in known else name} {value}"

        signature = inspect.signature(function, eval_str=True)
        rest = {name: parameter for name, parameter in signature.parameters.items() if name != "asked"}
        added = [_option(known[name], name in required, own.get(name)) for name in names]
        both = [*(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in rest.values()), *added]
        ordered = sorted(both, key=lambda parameter: parameter.default is not inspect.Parameter.empty)
        command.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in ordered}
        return command

    return decorate


def run_options(*names: str, **how: Any) -> Callable[[Function], Function]:
    """Return a decorator: a command takes these options of a run, as its parameter ``asked``, a `RunOptions`."""
    return takes(RunOptions, *names, reader=RunOptions.read, **how)


METAVARS = {int: "INTEGER", float: "NUMBER", Path: "PATH"}


def _option(declared: Parameter, is_required: bool, default: Any) -> inspect.Parameter:
    """Return a declared field as a parameter from which typer makes an option.

    Values stay texts, except paths and switches: `fedmerit.schema.declarations.read` is the only reader of what they
    spell.
    """
    shown, rule = declared.mark(Shown, Shown()), declared.mark(Rule, Rule())
    several = get_origin(declared.base) is dict or (get_origin(declared.base) is tuple and not declared.reads_texts)
    annotation: Any = declared.base if declared.base in (bool, Path) else list[str] if several else str
    stated = declared.default if default is None else default
    words = "" if stated in (None, "", (), {}) or stated is False else str(stated)
    notes = [
        rule.bounds(),
        f"default: {shown.default or words}" if (shown.default or words) and not is_required else "",
    ]
    option = typer.Option(
        declared.flag,
        metavar=shown.metavar
        or ("|".join(rule.options) if isinstance(rule, Choice) else METAVARS.get(declared.base, "TEXT")),
        help=f"{declared.text}  [{'; '.join(filter(None, notes))}]" if any(notes) else declared.text,
        show_default=False,
        rich_help_panel=shown.panel,
        autocompletion=_complete_method if declared.name == "method" else None,
    )
    empty = inspect.Parameter.empty if is_required else False if declared.base is bool else None
    typed = annotation if declared.base is bool else annotation | None
    return inspect.Parameter(
        declared.field, inspect.Parameter.KEYWORD_ONLY, default=empty, annotation=Annotated[typed, option]
    )


def _complete_method(incomplete: str) -> list[str]:
    return [one for one in METHODS if one.startswith(incomplete)]


def given(**options: Any) -> dict[str, Any]:
    """Return the options that have a value; the callee has defaults for the others."""
    return {name: value for name, value in options.items() if value is not None}


def make_workers(jobs: int | None, cluster: str | None, asked: RunOptions | None = None) -> "Workers":
    """Return the processes that --jobs and --cluster ask for.

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
    """Return the integers of ``10,30``; `BadInput` if one is none, or is below ``least``."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) >= least for part in parts):
        raise BadInput(f"{option} {text}: expected whole numbers from {least} on, such as 10,30")
    return [int(part) for part in parts]
