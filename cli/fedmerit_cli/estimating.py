"""Commands that say what sites are worth without training every coalition: value, power."""

import math
import shutil
from pathlib import Path
from typing import Annotated

import typer

from fedmerit.configuration.recipes import ROUNDS
from fedmerit.errors import BadInput
from fedmerit_cli.app import console, parse_whole, specs_of

commands = typer.Typer()


@commands.command()
def value(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Finished runs that differ in their seeds.")],
    estimators: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:PARAMETER=VALUE],...",
            help="What says it; `all` of those that look at no image, or names as in docs/values.md.",
            show_default="what the runs observed, contribution where the method has one, data_size",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of tables and figure.", show_default="RUN/values")] = None,
    sites: Annotated[
        Path | None,
        typer.Option(help="Where the runs' site folders are.", show_default="where they were when the runs began"),
    ] = None,
    draws: Annotated[int, typer.Option(min=1, help="Of patients and rounds, for the intervals.")] = 500,
) -> None:
    """What each site of a run is worth by an estimator, which sites cannot be told apart, and in which ranks they are.

    What was not observed is made afterwards, where the run kept its updates. Interrupted, the same command goes on.
    """
    from fedmerit_cli.printing import show
    from fedmerit_cli.progress import progress
    from fedmerit_evaluation.figures.dots_and_bars import value_ranges
    from fedmerit_evaluation.figures.drawing import png
    from fedmerit_evaluation.figures.pages import save_png
    from fedmerit_evaluation.valuation.valued_runs import default_estimators, units, value_runs, value_tables

    asked = [None if estimators == "all" else spec for spec in specs_of(estimators) or []]
    specs = [spec for spec in asked if spec] or default_estimators(runs, everything=estimators == "all")
    with progress() as bars:
        bar = bars.add_task("evaluating coalitions", total=None, last="", visible=False)
        valued = value_runs(
            runs, specs, draws, lambda name, done, of: bars.update(bar, completed=done, total=of, visible=True), sites
        )
    folder = out or runs[0] / "values"
    if out is None:  # a folder of its own, with the tables of an earlier call on other runs or by other estimators
        shutil.rmtree(folder / "tables", ignore_errors=True)
    show(value_tables(valued), folder)
    save_png(folder / "figures" / "values.png", png(value_ranges(valued.shown, units(valued))))
    console.print(f"tables and figure: {folder}", soft_wrap=True)


@commands.command()
def power(
    pilot: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="What `loo` or `shapley` wrote: variances are taken from its seeds and cases."
        ),
    ] = None,
    seed_sd: Annotated[
        float | None,
        typer.Option(help="Stated: standard deviation of a difference of two sites over seeds, points."),
    ] = None,
    patient_sd: Annotated[
        float | None,
        typer.Option(help="Stated: likewise over patients, of one test patient a site, points."),
    ] = None,
    round_sd: Annotated[
        float | None, typer.Option(help="Stated: likewise over rounds, of one round, points; values told in a run.")
    ] = None,
    patients: Annotated[str, typer.Option(help="Test patients a site, to plan for.")] = "2,5,10,20,50",
    seeds: Annotated[str, typer.Option(help="Seeds to plan for.")] = "2,3,5,10",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to plan for, where --round-sd is stated.")] = ROUNDS,
    out: Annotated[Path | None, typer.Option(help="Folder to write the table into.")] = None,
) -> None:
    """The smallest difference of worth between two sites that so many patients, seeds and rounds can tell.

    Before anything is trained by stated variances, or by those of a pilot.
    """
    from fedmerit_evaluation.figures.tables import print_table, write_tables
    from fedmerit_evaluation.ground_truth.power import Variances, pilot_variances, power_table

    stated = {
        name: sd for name, sd in (("seed", seed_sd), ("patient", patient_sd), ("round", round_sd)) if sd is not None
    }
    for name, sd in stated.items():
        if not 0 <= sd < math.inf:
            raise BadInput(f"--{name}-sd {sd:g}: expected a standard deviation in points, 0 or more")
    if pilot is None and not {"seed", "patient"} <= set(stated):
        raise BadInput("power: give --pilot DIR, or state --seed-sd and --patient-sd")
    found = Variances(0.0, 0.0) if pilot is None else pilot_variances(pilot)
    variances = found.with_overrides(**{name: (sd / 100) ** 2 for name, sd in stated.items()})
    table = power_table(variances, _numbers(patients, "--patients"), _numbers(seeds, "--seeds"), rounds)
    print_table(table, console)
    if out:
        write_tables([table], out)


def _numbers(text: str, option: str) -> list[int]:
    return sorted(set(parse_whole(text, option, least=1)))
