"""Output that commands share: sites, runs, tables, progress. Commands import it when called, as it loads torch."""

import shlex
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.table import Table as RichTable

from fedmerit.engines import runs
from fedmerit.errors import printable
from fedmerit.schema.configuration.run import read_plan
from fedmerit.schema.run_info import read_run
from fedmerit.schema.score_name import show_score_of
from fedmerit.schema.scores import SERVER_SPLIT, SPLITS
from fedmerit.schema.site_folder import SiteFolder, open_sites
from fedmerit.server.checkpoint import complete_rounds
from fedmerit.trainers.monai.networks import estimate_cost
from fedmerit_cli.terminal import console, last_round, log, plain_table, print_line
from fedmerit_data.spatial.readings import stated_readings, summarise
from fedmerit_evaluation.figures.tables import Table, print_table, write_tables
from fedmerit_evaluation.results.runs import combine_results, open_runs
from fedmerit_evaluation.studies.execution import Execute, OnEnd, count_steps

NAMED = 3  # files or cases of one reason


def show(tables: Sequence[Table], out: Path) -> None:
    """Print tables, and write them below ``out/tables``."""
    for table in tables:
        print_table(table, console)
    write_tables(tables, out / "tables")


def print_runs(folders: Sequence[Path]) -> None:
    """Print Dice and contribution of finished runs, and their folders."""
    print_table(combine_results(open_runs(list(folders))).dice_and_contributions, console)
    for folder in folders:
        console.print(f"run folder: {folder}", soft_wrap=True)


def print_cost(folder: Path) -> None:
    """Print parameters, update size and operations of a run's network."""
    info = read_run(folder)
    network = read_plan(folder).network
    height, width = info["image_size"]
    cost = estimate_cost(network, (height, width))
    seen = "a patch" if network.patch else "an image"
    size = " x ".join(str(side) for side in network.patch or (height, width))
    console.print(
        f"{network.architecture}: {cost.parameters:,} parameters, {cost.update_bytes / 1e6:.1f} MB an update, "
        f"{cost.operations / 1e9:.2f} billion operations for {seen} of {size}"
    )


def print_sites(root: Path, count: int) -> None:
    """Print the cases of each site, and those left out or corrected, by reason."""
    sites = open_sites(root)
    columns = {f"{split} cases": split for split in SPLITS}
    if any(site.cases(SERVER_SPLIT) for site in sites):
        columns["server cases"] = SERVER_SPLIT
    if folds := sites[0].folds:
        console.print(f"{folds} folds, each patient tested in one; the table shows fold 0")
    longest = max(len(site.name) for site in sites)
    table = RichTable(
        Column("site", min_width=longest), *columns, "training slices", "files used", "left out", box=None
    )
    for site in sites:
        cases = [str(len(site.cases(split))) for split in columns.values()]
        slices = site.info["counts"]["training"]["slices"]
        table.add_row(site.name, *cases, str(slices), str(site.info["used"]["files"]), str(len(site.info["left_out"])))
    console.print(table)
    _print_readings(sites)
    for title, field, key, what, name in (
        ("left out", "left_out", "reason", "files", "file"),
        ("noted", "remarks", "remark", "cases", "case"),
    ):
        found = defaultdict[tuple[str, str], list[str]](list)
        for site in sites:
            for entry in site.info[field]:
                found[site.name, entry[key]].append(entry[name])
        _print_reasons(title, what, found)
    if unreadable := sum(site.info["unreadable_cases"] for site in sites):
        console.print(f"{unreadable} unreadable cases left out, as --skip-unreadable asks")
    console.print(f"{count} sites in {root}", soft_wrap=True)


def _print_readings(sites: Sequence[SiteFolder]) -> None:
    """Print how the cases of each site were read, and what was left of them; nothing if site.json does not say."""
    read = {site.name: summarise(readings, site.labels) for site in sites if (readings := stated_readings(site.info))}
    headings = list(dict.fromkeys(heading for cells in read.values() for heading in cells))
    if not headings:
        return
    table = plain_table("site", *headings)
    for name, cells in read.items():
        table.add_row(name, *(cells.get(heading, "") for heading in headings))
    console.print(table)


def _print_reasons(title: str, what: str, found: Mapping[tuple[str, str], Sequence[str]], most: int = 20) -> None:
    """Print the number of files or cases of each reason, most first, and the first of them."""
    if not found:
        return
    table = plain_table("site", what, title, "such as")
    ordered = sorted(found.items(), key=lambda item: (item[0][0], -len(item[1]), item[0][1]))
    for (site, reason), names in ordered[:most]:
        table.add_row(site, str(len(names)), reason, ", ".join(names[:NAMED]))
    console.print(table)
    if len(ordered) > most:
        console.print(f"and {len(ordered) - most} other reasons, all in the sites' site.json")


LONGEST_NAME = 24  # characters of a bar's name, so that all fits into 80 columns


@contextmanager
def resumable() -> Iterator[None]:
    """Have Ctrl-C in here end the command with exit code 130, and a line on how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("stopped; the same command resumes from what is finished", err=True)
        raise typer.Exit(130) from None


def progress() -> Progress:
    """Return bars with the remaining time and the last event, within 80 columns."""
    name = TextColumn(
        "{task.description}",
        markup=False,
        table_column=Column(no_wrap=True, overflow="ellipsis", max_width=LONGEST_NAME),
    )
    left = TimeRemainingColumn(compact=True, elapsed_when_finished=True)
    last = TextColumn("{task.fields[last]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
    return Progress(name, BarColumn(8), MofNCompleteColumn(), left, last, console=console, speed_estimate_period=3600)


class Pace:
    """A count of the runs of a study that have ended, with the steps a second of all and the time left.

    Args:
        total: runs to end.
    """

    def __init__(self, total: int):
        self.total, self.ended, self._steps = total, 0, 0
        self._start = time.monotonic()

    def add(self, folder: Path) -> None:
        """Count a run that has ended, and the steps of its sites; those of scripts are not known."""
        self.ended += 1
        if "script" not in read_run(folder):
            self._steps += count_steps(folder)

    @property
    def speed(self) -> str:
        """The steps a second so far, of all runs together; empty if they are not known."""
        return f"{self._steps / (time.monotonic() - self._start):,.0f} steps/s" if self._steps else ""

    def __str__(self) -> str:
        left = (time.monotonic() - self._start) * (self.total - self.ended) / max(self.ended, 1)
        speed = f", {self.speed}" if self.speed else ""
        return f"{self.ended} of {self.total} done{speed}, about {timedelta(seconds=round(left))} left"


@contextmanager
def counting(what: str, total: int) -> Iterator[OnEnd]:
    """Show one bar for many runs, `resumable`. Call what it yields with every run that ends, and its error or None."""
    pace = Pace(total)

    def on_end(folder: Path, error: str | None) -> None:
        pace.add(folder)
        bars.update(bar, completed=pace.ended, last=pace.speed)

    with resumable(), progress() as bars:
        bar = bars.add_task(what, total=total, last="")
        yield on_end


def counted_lines(what: str, total: int) -> OnEnd:
    """Return what prints a line with every run that ends: how many have, steps a second, and the time left."""
    pace = Pace(total)

    def on_end(folder: Path, error: str | None) -> None:
        pace.add(folder)
        print_line(f"{what}: {pace}")

    return on_end


def exit_if_failed(failed: Mapping[Any, str], advice: str = "") -> None:
    """Print, if something failed, what and why, then ``advice``, on standard error; exit with 1."""
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
        if record.get("metric"):  # the sites took it with this round's answers
            show_score_of(read_run(folder))
        last = last_round(record, self._weighed[folder])
        self._bars.update(self._of[folder], completed=record["round"] + 1, last=last)
        log.info("%s, round %d: %s", name or folder.name, record["round"], last)
        head = f"{name}, round {record['round']}" if name else f"round {record['round']}"
        for site, reason in record["rejected"].items():
            log.warning("%s: %s rejected: %s", head, site, reason)
            self._bars.console.print(printable(f"{head}: {site} rejected: {reason}"))
        for text in record.get("notes", ()):
            self._bars.console.print(printable(f"{head}: {text}"))
        for site in record["flagged"]:
            self._bars.console.print(printable(f"{head}: {site} flagged by the method"))

    def remove(self, folder: Path) -> None:
        """Remove the bar of a run that has ended."""
        if folder in self._of:
            self._bars.remove_task(self._of.pop(folder))


def run_with_progress(folder: Path, execute: Execute | None = None, command: str = "fedmerit run") -> None:
    """Execute one run with a bar; Ctrl-C ends the ``command`` with exit code 130, and a line on how to resume."""
    try:
        with progress() as bars:
            bar = RunBars(bars)
            bar.begin(folder)
            (execute or runs.execute)(folder, partial(bar.on_round, folder))
    except KeyboardInterrupt:
        done = complete_rounds(folder)
        after = f"after round {done - 1}" if done else "before the first round was complete"
        trust = " --trust" if "script" in read_run(folder) else ""
        again = f"{command} --resume{trust} --out {shlex.quote(str(folder))}"
        typer.echo(printable(f"stopped {after}; resume with: {again}"), err=True)
        raise typer.Exit(130) from None
