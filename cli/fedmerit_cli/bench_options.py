"""Options that benchmarks share, and how they show what they measured."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmerit_cli.app import console

if TYPE_CHECKING:
    import pandas as pd

    from fedmerit_lab.benchmarks.benchmark import Benchmark

BenchFolder = Annotated[Path, typer.Option("--out", help="Folder of the JSON, the table and the figures.")]
BenchSites = Annotated[
    Path | None, typer.Option("--sites", help="Folder of site folders.", show_default="six generated ones")
]
Repetitions = Annotated[int, typer.Option(help="Of every case, interleaved; medians of fewer than 5 say little.")]
Size = Annotated[int, typer.Option(help="Pixels of generated images.")]
WorldsFolder = Annotated[
    Path, typer.Option("--out", help="Folder of worlds, trainings and tables; what is done is not done again.")
]
Pool = Annotated[
    Path | None,
    typer.Option("--pool", help="Prepared sites whose patients are dealt.", show_default="generated, six hospitals"),
]
PoolSize = Annotated[int, typer.Option("--size", min=16, help="Pixels a side of generated images.")]
PoolPatients = Annotated[int, typer.Option("--patients", min=5, help="Mean of generated patients a hospital.")]
TrainingRounds = Annotated[int, typer.Option("--rounds", min=1, help="Of every training.")]


def sites_of(sites: Path | None, out: Path, size: int, server_share: float = 0.0) -> Path:
    """The sites asked for, or generated ones below ``out``, with a share of their images set aside for the server."""
    from fedmerit_lab.benchmarks.generated_sites import generated_sites

    return sites or generated_sites(out, size, server_share=server_share)


def tell_case(repetitions: int) -> Callable[[str, int], None]:
    """To be called before every measurement."""
    return lambda case, repetition: console.print(f"{repetition + 1} of {repetitions}: {case}")


def show_benchmark(benchmark: "Benchmark", out: Path, quantity: str | None = None, to: str | None = None) -> None:
    """Print the medians of a quantity, or of all; and the ratios to one case, if it was measured."""
    from fedmerit_evaluation.figures.tables import print_table

    table: pd.DataFrame = benchmark.table
    console.print(f"{benchmark.machine['processor']}, {benchmark.machine['cores']} cores")
    print_table(table if quantity is None else table[table["quantity"] == quantity], console)
    if quantity is not None and to in set(table["case"]):
        console.print(f"{quantity}, ratio to {to} within each repetition")
        print_table(benchmark.ratios(quantity, str(to)), console)
    console.print(f"all that was measured, and figures: {out}", soft_wrap=True)
