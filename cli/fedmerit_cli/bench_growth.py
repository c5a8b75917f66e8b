"""``fedmerit bench growth``."""

from typing import Annotated

import typer

from fedmerit_cli.app import Engine, Method, Recipe, Settings, parse_whole, settings_of
from fedmerit_cli.bench_options import BenchFolder, Repetitions, show_benchmark, tell_case

commands = typer.Typer()


@commands.command()
def growth(
    out: BenchFolder,
    sites: Annotated[str, typer.Option(help="Numbers of sites.")] = "2,4,8,16,32,64",
    width: Annotated[str, typer.Option(help="Channels of the network's first level.")] = "4,8,16,32,64",
    size: Annotated[str, typer.Option(help="Pixels.")] = "64,128,256",
    rounds: Annotated[str, typer.Option(help="Numbers of rounds.")] = "10,50,200",
    method: Annotated[str, Method] = "fedce",
    engine: Annotated[Engine, typer.Option(help="The engine that is measured.")] = Engine.local,
    repetitions: Repetitions = 5,
    settings: Settings = None,
    recipe: Recipe = None,
) -> None:
    """Seconds and memory of a round by sites, network, image size and rounds, one at a time. Takes hours.

    An option that is empty leaves its numbers out. Interrupted, the same command goes on.
    """
    from fedmerit_lab.benchmarks.growth import growth as measure

    axes = {"sites": sites, "width": width, "size": size, "rounds": rounds}
    numbers = {axis: parse_whole(text, f"--{axis}", least=1) for axis, text in axes.items() if text}
    found = measure(
        out, numbers, method, repetitions, settings_of(settings, recipe), tell_case(repetitions), engine=engine
    )
    show_benchmark(found, out, "seconds per round")
