"""The terminal's view of a run while it goes on."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fedmerit.commands.app import console


@contextmanager
def resumable() -> Iterator[None]:
    """Ctrl-C in here ends the command with exit code 130, and says that it can go on."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on from what is done", err=True)
        raise typer.Exit(130) from None


def progress() -> Progress:
    """Bars that end with what happened last."""
    columns = (TextColumn("{task.description}"), BarColumn(10), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TextColumn("{task.fields[last]}"), console=console)


def run_with_progress(folder: Path) -> None:
    """Execute one run under a bar of its own."""
    with progress() as bars:
        execute(folder, bars)


def last_round(record: Mapping[str, Any]) -> str:
    """A ledger record in a few words."""
    dice = list(record["validation_dice"].values())
    weights = " ".join(f"{weight:.2f}" for weight in record["weights"].values())
    return f"Dice {sum(dice) / len(dice):.3f}, weights {weights}"


def execute(folder: Path, bars: Progress, name: str = "") -> None:
    """Execute a run under a bar of its rounds."""
    from fedmerit import runs
    from fedmerit.results import read_run

    info = read_run(folder)
    bar = bars.add_task(f"{name or info['method']} ({info['engine']})", total=info["rounds"], last="")

    def on_round(record: Mapping[str, Any]) -> None:
        bars.update(bar, completed=record["round"] + 1, last=last_round(record))
        for site, reason in record["rejected"].items():
            bars.console.print(f"round {record['round']}: {site} rejected: {reason}", markup=False)
        for site in record["flagged"]:
            bars.console.print(f"round {record['round']}: {site} flagged: its cosine is not the server's")

    runs.execute(folder, on_round)
