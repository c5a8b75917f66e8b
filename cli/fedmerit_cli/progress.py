"""The terminal's view of running runs. Commands import it when they are called, as it loads torch."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from fedmerit.engines import runs
from fedmerit.errors import printable
from fedmerit.federation.checkpoint import complete_rounds
from fedmerit.records.run_info import read_run
from fedmerit.records.score_name import show_score_of
from fedmerit_cli.terminal import console, last_round, log
from fedmerit_evaluation.studies.cluster import OnEnd

LONGEST_NAME = 24  # characters of a bar's name, so that all fits into 80 columns


@contextmanager
def resumable() -> Iterator[None]:
    """Ctrl-C in here ends the command with exit code 130, and a line on how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("stopped; the same command resumes from what is finished", err=True)
        raise typer.Exit(130) from None


def progress() -> Progress:
    """Bars with the remaining time and the last event, within 80 columns."""
    name = TextColumn(
        "{task.description}",
        markup=False,
        table_column=Column(no_wrap=True, overflow="ellipsis", max_width=LONGEST_NAME),
    )
    left = TimeRemainingColumn(compact=True, elapsed_when_finished=True)
    last = TextColumn("{task.fields[last]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
    return Progress(name, BarColumn(8), MofNCompleteColumn(), left, last, console=console, speed_estimate_period=3600)


@contextmanager
def counting(what: str, total: int) -> Iterator[OnEnd]:
    """One bar for many runs, `resumable`. Call what it yields with every run that ends, and its error or None."""
    with resumable(), progress() as bars:
        bar = bars.add_task(what, total=total, last="")
        yield lambda folder, error: bars.advance(bar)


def exit_if_failed(failed: Mapping[Any, str], advice: str = "") -> None:
    """If something failed, print what and why, then ``advice``, on standard error; exit with 1."""
    for what, error in failed.items():
        log.error("failed: %s: %s", what, error)
        typer.echo(printable(f"failed: {what}: {error}", "\n\t"), err=True)
    if failed:
        if advice:
            typer.echo(advice, err=True)
        raise typer.Exit(1)


class RunBars:
    """A bar for every running run: its rounds, and what happened in the last one."""

    def __init__(self, bars: Progress):
        self._bars = bars
        self._of: dict[Path, TaskID] = {}
        self._weighed: dict[Path, bool] = {}

    def begin(self, folder: Path, name: str = "") -> None:
        """Show the bar of a run, called ``name``, else by its method."""
        info = read_run(folder)
        show_score_of(info)
        text = f"{name or info['method']} ({info['engine']})"
        self._of[folder] = self._bars.add_task(text, total=info["rounds"], last="")
        self._weighed[folder] = "weight" not in info.get("undefined", ())

    def on_round(self, folder: Path, record: Mapping[str, Any], name: str = "") -> None:
        """Show a round's ledger record; a run without a bar, such as one in another process, gets one."""
        if folder not in self._of:
            self.begin(folder, name)
        last = last_round(record, self._weighed[folder])
        self._bars.update(self._of[folder], completed=record["round"] + 1, last=last)
        log.info("%s, round %d: %s", name or folder.name, record["round"], last)
        head = f"{name}, round {record['round']}" if name else f"round {record['round']}"
        for site, reason in record["rejected"].items():
            log.warning("%s: %s rejected: %s", head, site, reason)
            self._bars.console.print(printable(f"{head}: {site} rejected: {reason}"))
        for site in record["flagged"]:
            self._bars.console.print(printable(f"{head}: {site} flagged by the method"))

    def remove(self, folder: Path) -> None:
        """Remove the bar of a run that has ended."""
        if folder in self._of:
            self._bars.remove_task(self._of.pop(folder))


def run_with_progress(folder: Path) -> None:
    """Execute one run with a bar; Ctrl-C ends the command with exit code 130, and a line on how to resume."""
    try:
        with progress() as bars:
            bar = RunBars(bars)
            bar.begin(folder)
            runs.execute(folder, partial(bar.on_round, folder))
    except KeyboardInterrupt:
        done = complete_rounds(folder)
        after = f"after round {done - 1}" if done else "before the first round was complete"
        typer.echo(printable(f"stopped {after}; resume with: fedmerit run --resume --out {folder}"), err=True)
        raise typer.Exit(130) from None
