"""``fedmerit lab bench``, the benchmarks of costs: seconds and memory of rounds, of methods, of preparation."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmerit.schema.configuration.options import RunOptions
from fedmerit_cli.options import parse_integers, run_options
from fedmerit_cli.terminal import Commands, console

if TYPE_CHECKING:
    import pandas as pd

    from fedmerit_lab.benchmarks.benchmark import Benchmark

commands = Commands("Measure speed, memory, valuation and detectors.")

OutFolder = Annotated[Path, typer.Option("--out", help="Folder of the JSON, the table and the figures.")]
Sites = Annotated[Path | None, typer.Option("--sites", help="Folder of site folders.", show_default="six generated")]
Repetitions = Annotated[int, typer.Option(min=1, help="Interleaved repetitions of every case; take 5 or more.")]
Size = Annotated[int, typer.Option(min=16, help="Side of generated images in pixels.")]
Rounds = Annotated[int, typer.Option(min=2, help="Rounds of each training; the first is not counted.")]
takes_settings = run_options("recipe", "settings")


def _sites(sites: Path | None, out: Path, size: int, server_share: float = 0.0) -> Path:
    """Return the given sites, or generated ones below ``out`` with a share of images set aside for the server."""
    from fedmerit_lab.benchmarks.generated_sites import generated_sites

    return sites or generated_sites(out, size, server_share=server_share)


def _on_case(repetitions: int) -> Callable[[str, int], None]:
    """Return a function that prints what is measured next."""
    return lambda case, repetition: console.print(f"{repetition + 1} of {repetitions}: {case}")


def _show(benchmark: "Benchmark", out: Path, quantity: str | None = None, to: str | None = None) -> None:
    """Print the medians of a quantity, or of all; and the ratios to one case, if it was measured."""
    from fedmerit_evaluation.figures.tables import print_table

    table: pd.DataFrame = benchmark.table
    console.print(f"{benchmark.machine['processor']}, {benchmark.machine['cores']} cores")
    print_table(table if quantity is None else table[table["quantity"] == quantity], console)
    if quantity is not None and to in set(table["case"]):
        console.print(f"{quantity}, ratio to {to} within each repetition")
        print_table(benchmark.ratios(quantity, str(to)), console)
    console.print(f"all measurements and figures: {out}", soft_wrap=True)


def _split(text: str) -> list[str]:
    return [one.strip() for one in text.split(",")]


@commands.add("lab bench speed --out speed --rounds 6 --repetitions 5")
@takes_settings
def speed(
    asked: RunOptions,
    out: OutFolder,
    sites: Sites = None,
    size: Size = 64,
    rounds: Rounds = 6,
    repetitions: Repetitions = 5,
    cases: Annotated[
        str, typer.Option(help="Some of steps, local, sim, sim-2, peer, peer-1: docs/studies/performance.md.")
    ] = "steps,local,sim,sim-2,peer,peer-1",
    to: Annotated[str, typer.Option(help="The case that ratios are to.")] = "peer-1",
) -> None:
    """Measure seconds of a FedCE round: the engines, and NVFlare's own FedCE in two settings. Takes minutes.

    Interrupted, the same command resumes.
    """
    from fedmerit_lab.benchmarks.speed import speed as measure

    folder, settings = _sites(sites, out, size), asked.all_settings
    found = measure(out, folder, rounds, repetitions, _split(cases), settings, _on_case(repetitions))
    _show(found, out, "seconds per round", to)


@commands.add("lab bench memory --out memory --rounds 500")
@run_options("method", "recipe", "settings", defaults={"method": "fedce"})
def memory(
    asked: RunOptions,
    out: OutFolder,
    sites: Sites = None,
    size: Size = 64,
    rounds: Annotated[
        int, typer.Option(min=2, help="Rounds of each training; a fifth of them is not in the slope.")
    ] = 500,
    repetitions: Repetitions = 1,
) -> None:
    """Measure memory of the local engine over many rounds: the maximum, and the growth per round."""
    from fedmerit_lab.benchmarks.growth import memory as measure

    folder, method, settings = _sites(sites, out, size), str(asked.method), asked.all_settings
    _show(measure(out, folder, method, rounds, repetitions, settings, _on_case(repetitions)), out)


@commands.add("lab bench growth --out growth --sites 2,4,8 --width 4,8")
@run_options("method", "engine", "recipe", "settings", defaults={"method": "fedce", "engine": "local"})
def growth(
    asked: RunOptions,
    out: OutFolder,
    sites: Annotated[str, typer.Option(help="Numbers of sites.")] = "2,4,8,16,32,64",
    width: Annotated[str, typer.Option(help="Channels of the network's first level.")] = "4,8,16,32,64",
    size: Annotated[str, typer.Option(help="Sides of images in pixels.")] = "64,128,256",
    rounds: Annotated[str, typer.Option(help="Numbers of rounds.")] = "10,50,200",
    repetitions: Repetitions = 5,
) -> None:
    """Measure seconds and memory of a round by sites, network, image size and rounds. Takes hours.

    An empty option leaves its numbers out. Interrupted, the same command resumes.
    """
    from fedmerit_lab.benchmarks.growth import growth as measure

    axes = {"sites": sites, "width": width, "size": size, "rounds": rounds}
    numbers = {axis: parse_integers(text, f"--{axis}", least=1) for axis, text in axes.items() if text}
    method, settings, on_case = str(asked.method), asked.all_settings, _on_case(repetitions)
    _show(measure(out, numbers, method, repetitions, settings, on_case, engine=asked.engine), out, "seconds per round")


@commands.add("lab bench aggregation --out aggregation --methods fedavg,fedce")
def aggregation(
    out: OutFolder,
    methods: Annotated[str, typer.Option(help="Methods whose rounds need only updates.")] = "fedavg,fedce,cgsv",
    sites: Annotated[int, typer.Option(min=1, help="Number of updates.")] = 6,
    parameters: Annotated[int, typer.Option(min=1, help="Parameters of each update.")] = 7_800_000,
    repetitions: Repetitions = 7,
) -> None:
    """Measure the server's work on updates, compared with reading them once and with NVFlare's aggregator."""
    from fedmerit_lab.benchmarks.aggregation import aggregation as measure

    found = measure(out, _split(methods), sites, parameters, repetitions, _on_case(repetitions))
    _show(found, out, "seconds", "read once")


@commands.add("lab bench methods --out methods --methods fedce,cgsv")
@takes_settings
def methods(
    asked: RunOptions,
    out: OutFolder,
    sites: Sites = None,
    size: Size = 64,
    names: Annotated[
        str, typer.Option("--methods", help="Methods to compare with fedavg; steps: bare steps on pooled images.")
    ] = "fedce,cgsv,cffl,fedave,fedsac,fedci,cycle",
    rounds: Rounds = 6,
    repetitions: Repetitions = 5,
    threads: Annotated[int, typer.Option(min=1, help="Sites at work at a time.")] = 1,
) -> None:
    """Measure seconds of a round by method, compared with FedAvg. Takes minutes; the same command resumes.

    CPU seconds; of several sites at a time, seconds of the clock.
    """
    from fedmerit_lab.benchmarks.round_costs import BASE, SECONDS, WALL, method_costs

    folder, settings = _sites(sites, out, size, server_share=0.2), asked.all_settings
    found = method_costs(out, folder, _split(names), rounds, repetitions, settings, _on_case(repetitions), threads)
    _show(found, out, SECONDS if threads == 1 else WALL, BASE)


@commands.add("lab bench prepare --out preparation --size 256 --jobs 2")
def prepare(
    out: OutFolder,
    kind: Annotated[str, typer.Option(help="Layout of the raw data, as of `fedmerit prepare`.")] = "prostate-multisite",
    source: Annotated[
        Path | None, typer.Option(help="Folder of the raw data.", show_default="generated prostate volumes")
    ] = None,
    size: Annotated[int, typer.Option(help="Height and width of the prepared slices in pixels.")] = 256,
    patients: Annotated[int, typer.Option(help="Mean number of generated patients at each of six hospitals.")] = 6,
    jobs: Annotated[int, typer.Option(min=1, help="Processes of the parallel case.")] = 2,
    repetitions: Repetitions = 5,
) -> None:
    """Measure the preparation of site folders, with one process and several, compared with only decoding."""
    from fedmerit_data.preparation import Preparation
    from fedmerit_lab.benchmarks.preparation_costs import BASE, generated_source, preparation_costs

    source = source or generated_source(out, patients)
    asked = Preparation(kind, source=source, size=size, ratios=(0, 0, 1))  # so that every site can be split
    _show(preparation_costs(out, asked, jobs, repetitions, _on_case(repetitions)), out, "seconds", BASE)


@commands.add("lab bench estimators --out estimators --sites 4,8")
@takes_settings
def estimators(
    asked: RunOptions,
    out: OutFolder,
    sites: Annotated[str, typer.Option(help="Numbers of sites.")] = "4,6,8,16",
    values: Annotated[
        str, typer.Option(help="Estimators, observed one at a time.")
    ] = "multi_round,one_round,leave_one_out_loss",
    size: Size = 64,
    rounds: Rounds = 4,
    repetitions: Repetitions = 5,
) -> None:
    """Measure CPU seconds of a FedAvg round with and without observed values, by number of sites.

    Takes minutes to hours; interrupted, the same command resumes.
    """
    from fedmerit_evaluation.figures.tables import print_table
    from fedmerit_lab.benchmarks.round_costs import estimator_costs

    numbers, settings = parse_integers(sites, "--sites", least=2), asked.all_settings
    table = estimator_costs(out, numbers, _split(values), size, rounds, repetitions, settings, _on_case(repetitions))
    print_table(table, console)
    console.print(f"all measurements: {out}", soft_wrap=True)
