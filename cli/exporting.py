"""Commands about methods: what there is, and as NVFlare job folders."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from cli.app import (
    TASKS,
    Contributions,
    Method,
    Privacy,
    RoundTimeout,
    Settings,
    Track,
    assignments,
    console,
    with_contributions,
)
from fedmerit.errors import BadInput

commands = typer.Typer()


@commands.command()
def methods() -> None:
    """The methods and how they differ."""
    from fedmerit.methods.registry import METHODS

    table = Table(show_lines=True)
    for header in ("method", "contribution", "weights", "download", "site work", "parameters", "paper"):
        table.add_column(header, no_wrap=header == "parameters")
    for name, entry in METHODS.items():
        values = {
            key: f"{value:g}" if isinstance(value, float) else value for key, value in vars(entry.method()).items()
        }
        parameters = "\n".join(f"{key}={value}" for key, value in values.items())
        table.add_row(
            name, entry.contribution, entry.weights, entry.download, entry.site_work, parameters or "none", entry.paper
        )
    Console(width=max(console.width, 128)).print(table)  # narrower, words are cut


@commands.command()
def export(
    method: Annotated[str, Method],
    task: Annotated[str, typer.Option(help=", ".join(TASKS))],
    out: Annotated[Path, typer.Option(help="Job folder to write.")],
    rounds: Annotated[int, typer.Option(help="Rounds to train.")] = 30,
    seed: Annotated[int, typer.Option(help="Of the run.")] = 0,
    min_sites: Annotated[
        int, typer.Option(help="Sites that have to be there for the job to start, and answer for a round to end.")
    ] = 2,
    round_timeout: RoundTimeout = None,
    contributions: Contributions = None,
    settings: Settings = None,
    privacy: Privacy = None,
    track: Track = None,
    byoc: Annotated[bool, typer.Option("--byoc", help="Bring fedmerit's code, for machines that allow that.")] = False,
) -> None:
    """Write an NVFlare job folder, ready to submit."""
    from fedmerit.configuration import run
    from fedmerit.configuration.filters import require_privacy
    from fedmerit.configuration.tracking import require_tracking
    from fedmerit.files import folder_digest
    from fedmerit.flare.recipe import export_job
    from fedmerit.records.results import read_run

    if task not in TASKS:
        raise BadInput(f"task {task!r}: unknown; expected one of {', '.join(TASKS)}")
    chosen = assignments(settings)
    if contributions:  # in the order of names, as the sites of the job will stand
        chosen = with_contributions(chosen, contributions, read_run(contributions)["sites"])
    config = run.make_configuration(method, task, rounds, seed, run.TASKS[task], chosen)
    filters = require_privacy(privacy or [], method, config.build_method())
    trackers = require_tracking(track or [], "prod")
    export_job(config, out, min_sites, byoc, round_timeout or 0, privacy=filters, track=trackers)
    console.print(f"job folder: {out}\nSHA-256 of its files: {folder_digest(out)}", soft_wrap=True)
