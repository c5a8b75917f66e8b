"""``fedmerit bench speed``."""

from typing import Annotated

import typer

from fedmerit_cli.app import Recipe, Settings, settings_of
from fedmerit_cli.bench_options import BenchFolder, BenchSites, Repetitions, Size, show_benchmark, sites_of, tell_case

commands = typer.Typer()


@commands.command()
def speed(
    out: BenchFolder,
    sites: BenchSites = None,
    size: Size = 64,
    rounds: Annotated[int, typer.Option(help="Of each training; the first is not counted.")] = 6,
    repetitions: Repetitions = 5,
    cases: Annotated[
        str, typer.Option(help="Of steps, local, sim, sim-2, peer, peer-1: docs/performance.md says what they are.")
    ] = "steps,local,sim,sim-2,peer,peer-1",
    to: Annotated[str, typer.Option(help="The case that ratios are to.")] = "peer-1",
    settings: Settings = None,
    recipe: Recipe = None,
) -> None:
    """Seconds of a FedCE round: the engines, and NVFlare's own FedCE in two settings. Takes minutes.

    Interrupted, the same command goes on.
    """
    from fedmerit_lab.benchmarks.speed import speed as measure

    found = measure(
        out,
        sites_of(sites, out, size),
        rounds,
        repetitions,
        [case.strip() for case in cases.split(",")],
        settings_of(settings, recipe),
        tell_case(repetitions),
    )
    show_benchmark(found, out, "seconds per round", to)
