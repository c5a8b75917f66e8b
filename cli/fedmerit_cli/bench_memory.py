"""``fedmerit bench memory``."""

from typing import Annotated

import typer

from fedmerit_cli.app import Method, Recipe, Settings, settings_of
from fedmerit_cli.bench_options import BenchFolder, BenchSites, Repetitions, Size, show_benchmark, sites_of, tell_case

commands = typer.Typer()


@commands.command()
def memory(
    out: BenchFolder,
    sites: BenchSites = None,
    size: Size = 64,
    method: Annotated[str, Method] = "fedce",
    rounds: Annotated[int, typer.Option(help="Of each training; a fifth of them is not in the slope.")] = 500,
    repetitions: Repetitions = 1,
    settings: Settings = None,
    recipe: Recipe = None,
) -> None:
    """Memory of the local engine over many rounds: the most, and what a round leaves behind."""
    from fedmerit_lab.benchmarks.growth import memory as measure

    chosen = settings_of(settings, recipe)
    found = measure(out, sites_of(sites, out, size), method, rounds, repetitions, chosen, tell_case(repetitions))
    show_benchmark(found, out)
