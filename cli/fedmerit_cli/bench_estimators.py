"""``fedmerit bench estimators``."""

from typing import Annotated

import typer

from fedmerit_cli.app import Recipe, Settings, console, parse_whole, settings_of
from fedmerit_cli.bench_options import BenchFolder, Repetitions, Size, tell_case

commands = typer.Typer()


@commands.command()
def estimators(
    out: BenchFolder,
    sites: Annotated[str, typer.Option(help="Numbers of sites.")] = "4,6,8,16",
    values: Annotated[
        str, typer.Option(help="What is observed, one at a time.")
    ] = "multi_round,one_round,leave_one_out_loss",
    size: Size = 64,
    rounds: Annotated[int, typer.Option(help="Of each training; the first is not counted.")] = 4,
    repetitions: Repetitions = 5,
    settings: Settings = None,
    recipe: Recipe = None,
) -> None:
    """CPU seconds of a FedAvg round in which values are observed, beside one without, by number of sites.

    Takes minutes to hours; interrupted, the same command goes on.
    """
    from fedmerit_evaluation.figures.tables import print_table
    from fedmerit_lab.benchmarks.round_costs import estimator_costs

    table = estimator_costs(
        out,
        parse_whole(sites, "--sites", least=2),
        [name.strip() for name in values.split(",")],
        size,
        rounds,
        repetitions,
        settings_of(settings, recipe),
        tell_case(repetitions),
    )
    print_table(table, console)
    console.print(f"all that was measured: {out}", soft_wrap=True)
