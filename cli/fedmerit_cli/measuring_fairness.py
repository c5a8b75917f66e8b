"""Command on finished runs: fairness."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedmerit_cli.app import Truth, console

commands = typer.Typer()


class Cases(StrEnum):
    """Which test cases a site's final model is measured on."""

    testing = "testing"
    union = "union"


@commands.command()
def fairness(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of run folders as `compare` writes.")],
    standalone: Annotated[
        list[str] | None,
        typer.Option(help="Training alone: a method's label, or run folders.", show_default="runs of standalone"),
    ] = None,
    ground_truth: Truth = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write the tables into, as CSV and LaTeX.")] = None,
    split: Annotated[Cases, typer.Option(help="Each site's own test cases, or those of all.")] = Cases.testing,
    label: Annotated[str | None, typer.Option(help="Of one label.", show_default="mean over labels")] = None,
    draws: Annotated[int, typer.Option(help="Of seeds and cases, for the intervals.")] = 2000,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
) -> None:
    """How fair methods are: Tables 2 and 3 of the FedCE paper and what other papers ask, each with an interval."""
    from fedmerit_evaluation.fairness.run_fairness import measure_runs, write_fairness
    from fedmerit_evaluation.figures.tables import print_table

    found, notes = measure_runs(runs, standalone or [], ground_truth, split=split.value, label=label, draws=draws, seed=seed)
    for table in found.tables:
        print_table(table, console)
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    if out:
        write_fairness(found, notes, out)
        console.print(f"tables: {out}", soft_wrap=True)
