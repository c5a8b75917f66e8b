"""``fedmerit bench aggregation``."""

from typing import Annotated

import typer

from fedmerit_cli.bench_options import BenchFolder, Repetitions, show_benchmark, tell_case

commands = typer.Typer()


@commands.command()
def aggregation(
    out: BenchFolder,
    methods: Annotated[str, typer.Option(help="Whose rounds need updates alone.")] = "fedavg,fedce,cgsv",
    sites: Annotated[int, typer.Option(help="Number of updates.")] = 6,
    parameters: Annotated[int, typer.Option(help="Of each of them.")] = 7_800_000,
    repetitions: Repetitions = 7,
) -> None:
    """The server's work on a round's updates, beside reading them once and NVFlare's aggregator."""
    from fedmerit_lab.benchmarks.aggregation import aggregation as measure

    names = [name.strip() for name in methods.split(",")]
    found = measure(out, names, sites, parameters, repetitions, tell_case(repetitions))
    show_benchmark(found, out, "seconds", "read once")
