"""The terminal: what commands print, how their help looks, errors, signals and logs. Loads nothing heavy."""

import inspect
import logging
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from fedmerit.errors import BadInput, RunFailed, printable
from fedmerit.reasons import is_full
from fedmerit.schema.score_name import with_score_name
from fedmerit.trust import allow, trust_records

LONGEST_HELP = 1000  # characters, more than any line of help
PLACEHOLDERS = {
    "path": "PATH",
    "Path": "PATH",
    "str": "TEXT",
    "int": "INTEGER",
    "float": "NUMBER",
    "%Y-%m-%d": "YYYY-MM-DD",
}
NAME_WIDTH = 36  # characters of an option with its placeholder; longer ones are wrapped
Function = TypeVar("Function", bound=Callable[..., Any])


class PlainConsole(Console):
    """A console that prints names of sites, jobs and paths unchanged: they neither look like markup nor control
    the terminal.
    """

    def __init__(self) -> None:
        super().__init__(markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Render as rich does, with control characters escaped, in cells of tables too."""
        return super().render_str(with_score_name(printable(text, "\n\t")), **options)


console = PlainConsole()
log = logging.getLogger("fedmerit.cli")  # silent, unless --log or --verbose asks for it
log.addHandler(logging.NullHandler())


@contextmanager
def signals_as_ctrl_c() -> Iterator[None]:
    """Have signals of a service manager, a cluster or a closed terminal end a command as Ctrl-C does: it cleans up."""
    handled = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        handled = []  # Python allows handlers only there
    try:
        for one in handled:  # ignored signals stay ignored, as under `nohup`
            signal.signal(one, signal.default_int_handler)
        yield
    finally:
        for one in handled:
            signal.signal(one, signal.SIG_DFL)


def _print_help(command: Any, ctx: Any, commands: Mapping[str, Any]) -> None:
    """Print usage, text, options and commands by kind, and the example: without typer's slow imports."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    for option in command.get_params(ctx):
        if record := option.get_help_record(ctx):
            title = getattr(option, "rich_help_panel", None) or "Options"
            kind = "Arguments" if option.param_type_name == "argument" else title
            kinds.setdefault(kind, []).append((_plain_placeholder(record[0]), _plain_range(record[1])))
    for name, one in commands.items():
        kinds.setdefault(one.rich_help_panel or "Commands", []).append((name, one.get_short_help_str(LONGEST_HELP)))
    paragraphs = [" ".join(text.split()) for text in (command.help or "").split("\n\n")]
    console.print(Text("\n".join([command.get_usage(ctx), *filter(None, paragraphs)])))
    for title, rows in kinds.items():
        width = min(NAME_WIDTH, max(len(name) for name, _ in rows))
        table = Table.grid(Column(style="cyan", width=width, overflow="fold"), Column(), padding=(0, 2, 0, 0))
        for name, text in rows:
            table.add_row(Text(name), Text(text))
        console.print(Text(title, "bold"))
        console.print(Padding(table, (0, 0, 0, 2)))
    if command.epilog:
        console.print(Text(command.epilog), soft_wrap=True)


def _plain_placeholder(name: str) -> str:
    """Return an option's name with one form of placeholder: ``PATH`` for ``<path>`` and ``<list[Path]>``."""

    def word(found: re.Match[str]) -> str:
        kind = found[1].removeprefix("list[").removesuffix("]").removesuffix(" range")
        return PLACEHOLDERS.get(kind, kind)

    return re.sub(r"<(.+)>", word, name)


def _plain_range(text: str) -> str:
    """Return an option's help with its range in words: ``from 0 to 1`` for ``0<=x<=1``, ``1 or more`` for ``x>=1``."""
    return re.sub(r"\bx>=([^\];]+)", r"\1 or more", re.sub(r"([-\d.]+)<=x<=([-\d.]+)", r"from \1 to \2", text))


class Command(TyperCommand):
    """A command with the product's own help. Code that its command line names may be imported."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line."""
        allow(*args)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        _print_help(self, ctx, {})


class Group(TyperGroup):
    """A group of commands whose `BadInput` and `RunFailed` end as a message on standard error and exit code 2 or 1.

    So do errors of the file system: 2, or 1 if the disk is full.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        _print_help(self, ctx, self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the user named, by one word or two."""
        if (pair := " ".join(args[:2])) in self.commands:
            args = [pair, *args[2:]]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the user named."""
        try:
            with signals_as_ctrl_c():
                return super().invoke(ctx)
        except (BadInput, RunFailed) as error:
            log.error("%s", error)
            print_error(str(error))
            raise typer.Exit(2 if isinstance(error, BadInput) else 1) from None
        except OSError as error:
            if is_full(error):
                print_error(f"the disk is full ({error}); make room, then give the same command again")
                raise typer.Exit(1) from None
            if error.filename is None:
                raise
            log.error("%s", error, exc_info=error)
            reason = error.strerror or error
            print_error(f"{error.filename}: {reason}; check the path and its permissions, or name another")
            raise typer.Exit(2) from None


def lazy_group(loads: Sequence[Callable[[], typer.Typer]]) -> type[Group]:
    """Return a class of groups that import their commands by ``loads`` when something needs them."""

    class LazyGroup(Group):
        """A group whose commands are imported when it is used: the help of all commands names it without that."""

        def __getattribute__(self, name: str) -> Any:
            """Return an attribute; ``commands`` are imported before."""
            content = super().__getattribute__(name)
            if name == "commands" and not content:
                for load in loads:
                    content.update(typer.main.get_group(load()).commands)
            return content

    return LazyGroup


def print_error(text: str) -> None:
    """Print an error to standard error."""
    typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
    typer.echo(printable(text, "\n\t"), err=True)


class Commands(typer.Typer):
    """A collection of commands."""

    def __init__(self) -> None:
        super().__init__(cls=Group, no_args_is_help=True, pretty_exceptions_enable=False)

    def add(self, example: str, name: str | None = None, reads_records: bool = False) -> Callable[[Function], Function]:
        """Return a decorator: a function is the command ``name``; its help ends with the ``example``.

        If it reads records of runs, it has the option ``--trust``.
        """
        register = super().command(name, cls=Command, epilog=f"Example: fedmerit {example}")
        return (lambda function: register(_trusting(function))) if reads_records else register


def _trusting(function: Function) -> Function:
    """Return a command with the option ``--trust``."""

    @wraps(function)
    def command(*args: Any, trust: bool, **values: Any) -> Any:
        if trust:
            trust_records()
        return function(*args, **values)

    help = "Import code that runs or models name: look first."
    kind, own = Annotated[bool, typer.Option("--trust", help=help)], inspect.signature(function, eval_str=True)
    option = inspect.Parameter("trust", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own.parameters.values()]
    command.__signature__ = own.replace(parameters=[*parameters, option])  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in [*parameters, option]}
    return command  # type: ignore[return-value]


def option_in(panel: str, help: str, **more: Any) -> Any:
    """Return a `typer.Option` in a panel of the help."""
    return typer.Option(help=help, rich_help_panel=panel, **more)


def print_line(text: str) -> None:
    """Print one line on standard output: no breaks, control characters escaped."""
    console.print(printable(text), soft_wrap=True, highlight=False)


def plain_table(*headings: str) -> Table:
    """Return a table without lines; long cells wrap, so no path or id is cut."""
    return Table(*(Column(heading, overflow="fold") for heading in headings), box=None)


def last_round(record: Mapping[str, Any], is_weighted: bool = True) -> str:
    """Return a ledger record in at most 28 characters: mean validation Dice, and the range of weights, if known."""
    dice, weights = (
        [value for value in record[name].values() if value is not None] for name in ("validation_dice", "weights")
    )
    texts = [with_score_name(f"Dice {sum(dice) / len(dice):.1%}")] if dice else []
    texts += [f"weights {100 * min(weights):.0f}-{max(weights):.0%}"] if is_weighted else []
    return ", ".join(texts)


ours = logging.getLogger("fedmerit")
LINE = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S%z")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedmerit {_version()}")
        raise typer.Exit


def _version() -> str:
    from importlib.metadata import version  # what it loads takes a tenth of the time of --help

    return version("fedmerit")


def set_up(
    ctx: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", help="Show version and exit.", is_eager=True, callback=_print_version)
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print every round and the sites' logs.")] = False,
    log_file: Annotated[
        Path | None, typer.Option("--log", metavar="FILE", help="Append every round, error and site log to a file.")
    ] = None,
) -> None:
    """Run collaboratively-fair federated learning for medical image segmentation."""
    if quiet and verbose:
        raise BadInput("--quiet, --verbose: give only one of them")
    console.quiet = quiet
    handlers: list[logging.Handler] = [logging.StreamHandler()] if verbose else []
    if log_file is not None:
        handlers.append(_file(log_file))
    for handler in handlers:
        handler.setFormatter(LINE)
        ours.addHandler(handler)
        ctx.call_on_close(lambda handler=handler: _end(handler))
    if handlers:
        ours.setLevel(logging.INFO)
        log.info("fedmerit %s: %s", _version(), " ".join(sys.argv[1:]))
    ctx.call_on_close(lambda: setattr(console, "quiet", False))


def _file(path: Path) -> logging.Handler:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"--log {path}: cannot be written ({error.strerror}); name another file") from error


def _end(handler: logging.Handler) -> None:
    ours.removeHandler(handler)
    handler.close()
