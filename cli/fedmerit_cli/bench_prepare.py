"""``fedmerit bench prepare``."""

from pathlib import Path
from typing import Annotated

import typer

from fedmerit_cli.bench_options import BenchFolder, Repetitions, show_benchmark, tell_case

commands = typer.Typer()


@commands.command()
def prepare(
    out: BenchFolder,
    kind: Annotated[str, typer.Option(help="Layout of the raw data, as of `fedmerit prepare`.")] = "prostate-multisite",
    source: Annotated[
        Path | None, typer.Option(help="Folder of the raw data.", show_default="generated prostate volumes")
    ] = None,
    size: Annotated[int, typer.Option(help="Height and width of the prepared slices in pixels.")] = 256,
    patients: Annotated[int, typer.Option(help="Mean of generated patients a hospital, of which there are six.")] = 6,
    jobs: Annotated[int, typer.Option(min=1, help="Processes of the case that shares the work.")] = 2,
    repetitions: Repetitions = 5,
) -> None:
    """Preparing site folders, with one process and several, beside decoding the same files and nothing else."""
    from fedmerit_data.preparation import Preparation
    from fedmerit_lab.benchmarks.preparation_costs import BASE, generated_source, preparation_costs

    source = source or generated_source(out, patients)
    asked = Preparation(kind, source=source, size=size, ratios=(0, 0, 1))  # so that every site can be split
    found = preparation_costs(out, asked, jobs, repetitions, tell_case(repetitions))
    show_benchmark(found, out, "seconds", BASE)
