"""What every command shares: the app, the terminal, options that several take, how errors end."""

from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, ParamSpec, TypeVar

import typer
from rich.console import Console

from fedmerit.errors import BadInput, RunFailed

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
    poc = "poc"


Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the method, the training or the network."),
]
SitesFolder = Annotated[Path, typer.Option(help="Folder of site folders.")]
Rounds = Annotated[int, typer.Option(help="Rounds of each run.")]
Jobs = Annotated[int | None, typer.Option(help="Runs at a time.", show_default="by free cores and memory")]
Threads = Annotated[int | None, typer.Option(help="Sites at work at a time.", show_default="all; local: cores")]
Device = Annotated[str | None, typer.Option(help="cuda:0 for all, or SITE=cuda:0,SITE=cpu.", show_default="auto")]
ServerSites = Annotated[
    Path | None,
    typer.Option(help="Site folders of the server's own, to validate on instead of what sites set aside."),
]
Privacy = Annotated[
    list[str] | None,
    typer.Option(metavar="KIND:NAME=VALUE,NAME=VALUE", help="What updates pass on leaving, or he: docs/privacy.md."),
]
Track = Annotated[
    list[str] | None,
    typer.Option(metavar="tensorboard|mlflow[:uri=URL]", help="Show the rounds' scalars live, at the server."),
]
RoundTimeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="To wait for a site in a round before it goes on.", show_default="no limit"),
]
Contributions = Annotated[
    Path | None,
    typer.Option(metavar="RUN", help="Finished run of the same sites that says what they contribute (fedsac)."),
]
OutFolder = Annotated[Path, typer.Option(help="Folder of the run folders; what is done there is not done again.")]


def reports_bad_input(command: Callable[P, R]) -> Callable[P, R]:
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


def assignments(settings: list[str] | None, option: str = "--set") -> dict[str, str]:
    """The values of an option by name; `BadInput` where one is not NAME=VALUE."""
    pairs = [setting.partition("=") for setting in settings or []]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise BadInput(f"{option} {name}: expected NAME=VALUE")
    return {name: value for name, _, value in pairs}


def require_jobs(jobs: int | None) -> None:
    """`BadInput` where --jobs is no number of processes."""
    if jobs is not None and jobs < 1:
        raise BadInput(f"--jobs {jobs}: expected 1 or more")
