"""The terminal's view of a run while it goes on."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from cli.app import console


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


def last_round(record: Mapping[str, Any]) -> str:
    """A ledger record in a few words."""
    dice = list(record["validation_dice"].values())
    weights = " ".join(f"{weight:.2f}" for weight in record["weights"].values())
    return f"Dice {sum(dice) / len(dice):.3f}, weights {weights}"


class RunBars:
    """Under ``bars``, a bar of its own for every run at work: its rounds, what happened in the last one."""

    def __init__(self, bars: Progress):
        self._bars = bars
        self._of: dict[Path, TaskID] = {}

    def begin(self, folder: Path, name: str = "") -> None:
        """Show the bar of a run, called ``name``, else by its method."""
        from fedmerit.records.results import read_run

        info = read_run(folder)
        text = f"{name or info['method']} ({info['engine']})"
        self._of[folder] = self._bars.add_task(text, total=info["rounds"], last="")

    def on_round(self, folder: Path, record: Mapping[str, Any], name: str = "") -> None:
        """Show a round's ledger record; a run that nobody began, such as in another process, begins with it."""
        if folder not in self._of:
            self.begin(folder, name)
        self._bars.update(self._of[folder], completed=record["round"] + 1, last=last_round(record))
        head = f"{name}, round {record['round']}" if name else f"round {record['round']}"
        for site, reason in record["rejected"].items():
            self._bars.console.print(f"{head}: {site} rejected: {reason}", markup=False)
        for site in record["flagged"]:
            self._bars.console.print(f"{head}: {site} flagged: its cosine is not the server's")

    def remove(self, folder: Path) -> None:
        """The run has come to its end, and its bar with it."""
        if folder in self._of:
            self._bars.remove_task(self._of.pop(folder))


def run_with_progress(folder: Path) -> None:
    """Execute one run under a bar of its own."""
    from fedmerit.engines import runs

    with progress() as bars:
        bar = RunBars(bars)
        bar.begin(folder)
        runs.execute(folder, partial(bar.on_round, folder))
