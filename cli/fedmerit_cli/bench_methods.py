"""``fedmerit bench methods``."""

from typing import Annotated

import typer

from fedmerit_cli.app import Recipe, Settings, settings_of
from fedmerit_cli.bench_options import BenchFolder, BenchSites, Repetitions, Size, show_benchmark, sites_of, tell_case

commands = typer.Typer()


@commands.command()
def methods(
    out: BenchFolder,
    sites: BenchSites = None,
    size: Size = 64,
    names: Annotated[
        str, typer.Option("--methods", help="Beside fedavg.")
    ] = "fedce,cgsv,cffl,fedave,fedsac,fedci,cycle",
    rounds: Annotated[int, typer.Option(help="Of each training; the first is not counted.")] = 6,
    repetitions: Repetitions = 5,
    settings: Settings = None,
    recipe: Recipe = None,
) -> None:
    """CPU seconds of a round by method, beside FedAvg's. Takes minutes; interrupted, it goes on."""
    from fedmerit_lab.benchmarks.round_costs import BASE, method_costs

    chosen = [name.strip() for name in names.split(",")]
    found = method_costs(
        out,
        sites_of(sites, out, size, server_share=0.2),
        chosen,
        rounds,
        repetitions,
        settings_of(settings, recipe),
        tell_case(repetitions),
    )
    show_benchmark(found, out, "CPU seconds per round", BASE)
