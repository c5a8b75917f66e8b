"""Logging and verbosity: options before the command's name."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedmerit.errors import BadInput
from fedmerit_cli.terminal import console, log

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
    """Collaboratively-fair federated learning for medical image segmentation."""
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
