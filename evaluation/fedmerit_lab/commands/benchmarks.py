"""``fedmerit lab bench``: costs in seconds and memory, estimators of values, detection of attacks, and pay."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmerit.errors import BadInput
from fedmerit.schema.configuration.options import RunOptions, split_specs
from fedmerit.schema.configuration.settings import ROUNDS, GuardSettings
from fedmerit.schema.declarations import read
from fedmerit_cli.options import (
    AllFolds,
    Cluster,
    Draws,
    Jobs,
    Methods,
    Seeds,
    make_workers,
    parse_integers,
    run_options,
)
from fedmerit_cli.terminal import Commands, console

if TYPE_CHECKING:
    import pandas as pd

    from fedmerit_lab.benchmarks.benchmark import Benchmark

commands = Commands()
group = Commands()
group.add_typer(commands, name="bench", help="Measure speed, memory, valuation and detectors.")

OutFolder = Annotated[Path, typer.Option("--out", help="Folder of the JSON and the table.")]
Sites = Annotated[Path | None, typer.Option("--sites", help="Folder of site folders.", show_default="six generated")]
Repetitions = Annotated[int, typer.Option(min=1, help="Interleaved repetitions of every case; take 5 or more.")]
Size = Annotated[int, typer.Option(min=16, help="Side of generated images in pixels.")]
Rounds = Annotated[int, typer.Option(min=2, help="Rounds of each training; the first is not counted.")]
takes_settings = run_options("recipe", "settings")
ROUNDS_SMALL = 20
ScenarioFolder = Annotated[
    Path, typer.Option("--out", help="Folder of scenarios, trainings and tables; finished trainings are reused.")
]
Pool = Annotated[
    Path | None,
    typer.Option("--pool", help="Prepared sites whose patients are split.", show_default="six generated hospitals"),
]
PoolSize = Annotated[int, typer.Option("--size", min=16, help="Side of generated images in pixels.")]
PoolPatients = Annotated[int, typer.Option("--patients", min=5, help="Mean number of generated patients a hospital.")]
TrainingRounds = Annotated[int, typer.Option("--rounds", min=1, help="Rounds of every training.")]
Estimators = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[:PARAMETER=VALUE],...",
        help="Names of docs/studies/estimator-protocol.md.",
        show_default="all of ours",
    ),
]


def _sites(sites: Path | None, out: Path, size: int, server_share: float = 0.0) -> Path:
    """Return the given sites, or generated ones below ``out`` with a share of images set aside for the server."""
    from fedmerit_lab.benchmarks.costs import generated_sites

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
    console.print(f"all measurements: {out}", soft_wrap=True)


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
    from fedmerit_lab.benchmarks.costs import speed as measure

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
    from fedmerit_lab.benchmarks.costs import memory as measure

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
    from fedmerit_lab.benchmarks.costs import growth as measure

    axes = {"sites": sites, "width": width, "size": size, "rounds": rounds}
    numbers = {axis: parse_integers(text, f"--{axis}", least=1) for axis, text in axes.items() if text}
    method, settings, on_case = str(asked.method), asked.all_settings, _on_case(repetitions)
    _show(measure(out, numbers, method, repetitions, settings, on_case, engine=asked.engine), out, "seconds per round")


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
    from fedmerit_lab.benchmarks.costs import BASE, SECONDS, WALL, method_costs

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
    from fedmerit_lab.benchmarks.costs import DECODED, generated_source, preparation_costs

    source = source or generated_source(out, patients)
    asked = Preparation(kind, source=source, size=size, ratios=(0, 0, 1))  # so that every site can be split
    _show(preparation_costs(out, asked, jobs, repetitions, _on_case(repetitions)), out, "seconds", DECODED)


@commands.add("lab bench values --out values --scenarios sizes:sites=4,noise:sites=4")
@takes_settings
def values(
    asked: RunOptions,
    out: ScenarioFolder,
    scenarios: Annotated[
        str,
        typer.Option(
            metavar="KIND[:sites=N],...|asis",
            help="equal, sizes, double, noise, shifted, expert, duplicate, narrow, outlier, needed; asis: unchanged "
            "sites.",
        ),
    ] = "sizes:sites=4,noise:sites=4,duplicate:sites=4",
    pool: Pool = None,
    other_pool: Annotated[
        Path | None,
        typer.Option(help="The pool's cases with other masks, such as by one expert, for expert.", show_default="none"),
    ] = None,
    estimators: Estimators = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:SETTING=VALUE],...",
            help="Methods whose own contributions are judged too, each in its own runs.",
            show_default="none",
        ),
    ] = None,
    seeds: Seeds = "0,1,2",
    folds: AllFolds = False,
    rounds: TrainingRounds = ROUNDS,
    size: PoolSize = 64,
    patients: PoolPatients = 20,
    jobs: Jobs = None,
    cluster: Cluster = None,
    draws: Draws = 500,
    most: Annotated[
        int, typer.Option(min=8, help="Most coalitions of a ground truth; beyond, a regression on a sample.")
    ] = 256,
) -> None:
    """Compare estimators of values with retraining, by scenario: agreement, noise ceiling, cost, misallocation.

    docs/studies/estimator-protocol.md has the protocol. Interrupted, the same command resumes.
    """
    workers = make_workers(jobs, cluster)
    from fedmerit_cli.printing import counted_lines, show
    from fedmerit_evaluation.studies.study import find_folds, parse_methods, parse_seeds
    from fedmerit_lab.benchmarks.leaderboard import ENTRIES, make_entries, write_entries
    from fedmerit_lab.benchmarks.scenarios import generate
    from fedmerit_lab.benchmarks.value_benchmark import (
        ESTIMATORS,
        Bench,
        bench_tables,
        judge,
        require_scenarios,
        scenario_folder,
    )

    chosen, wanted = split_specs(estimators or "") or list(ESTIMATORS), split_specs(scenarios)
    items = parse_methods(methods) if methods else []
    require_scenarios(wanted, chosen, items, other_pool)
    if folds and pool is None:
        raise BadInput("--folds: generated hospitals have one split; expected a --pool that has folds")
    parts = find_folds(pool, folds)
    source, settings = pool or generate(out / "pool", size, patients), asked.all_settings
    judged = []
    with workers:
        training = rounds, settings, workers, draws, most, parts, other_pool
        bench = Bench(out, source, wanted, chosen, items, parse_seeds(seeds), *training)
        for scenario in wanted:
            judged.append(judge(bench, scenario, counted_lines))
            write_entries(scenario_folder(out, scenario) / ENTRIES, make_entries(judged[-1]))
            show(bench_tables(judged), out)
    console.print(f"trainings and tables: {out}", soft_wrap=True)


@commands.add("lab bench detection --out detection --methods fedavg --attacks 'zero update' --seeds 0,1")
@run_options("recipe", "settings")
def detection(
    asked: RunOptions,
    out: OutFolder,
    methods: Methods = "fedavg,fedce,cgsv",
    attacks: Annotated[
        str, typer.Option(metavar="all|NAME;NAME", help="Attacks by name, or specs of attacks.")
    ] = "all",
    seeds: Seeds = "0,1,2",
    sizes: Annotated[str, typer.Option(help="Numbers of sites of small trainings.")] = "3,4,6,10,20",
    rounds: Annotated[int, typer.Option(min=4, help="Rounds of every federation.")] = ROUNDS_SMALL,
) -> None:
    """Measure false alarms of the guard, its power by attack, and the gain from attacks, in small trainings.

    There are 20 honest scenarios and 47 attacks; detectors of other packages see them, too. docs/guard.md describes
    the guard. On site folders `fedmerit lab attacks` measures attacks. Interrupted, the same command resumes.
    """
    from fedmerit_cli.printing import show
    from fedmerit_evaluation.studies.study import parse_methods, parse_seeds
    from fedmerit_lab.benchmarks.arena_benchmark import ArenaBench, arena_tables, play_all
    from fedmerit_lab.detection.scenarios import ATTACKS

    names = list(ATTACKS) if attacks == "all" else [name.strip() for name in attacks.split(";") if name.strip()]
    guard = read(GuardSettings, {"guard": "on", **asked.all_settings}, "settings of small trainings", texts=True)
    chosen, numbers = parse_methods(methods, attacked=True), parse_seeds(seeds)
    bench = ArenaBench(chosen, names, parse_counts(sizes), numbers, rounds, guard)
    show(arena_tables(play_all(bench, out, _on_federation)), out)
    console.print(f"all measurements: {out}", soft_wrap=True)


def _on_federation(case: str, done: int, total: int) -> None:
    """Print which federation is played next."""
    console.print(f"{done + 1} of {total}: {case}", soft_wrap=True)


@commands.add("lab bench pay --out pay --seeds 0,1 --sizes 4,6")
def pay(
    out: OutFolder,
    seeds: Seeds = "0,1,2",
    sizes: Annotated[str, typer.Option(help="Numbers of sites.")] = "4,6,10",
    rounds: Annotated[int, typer.Option(min=4, help="Rounds of every federation.")] = ROUNDS_SMALL,
    images: Annotated[int, typer.Option(min=8, help="Images of the server.")] = 200,
    retrained: Annotated[
        int, typer.Option(min=0, help="Seeds whose honest federations are retrained for Shapley values.")
    ] = 2,
) -> None:
    """Measure what innovation pays to attackers, and to unusual honest sites beside Shapley values by retraining.

    Small trainings, as of `lab bench detection`. Interrupted, the same command resumes.
    """
    from fedmerit_cli.printing import show
    from fedmerit_evaluation.studies.study import parse_seeds
    from fedmerit_lab.benchmarks.pay_benchmark import PayBench, pay_tables, play_all

    bench = PayBench(parse_counts(sizes), parse_seeds(seeds), rounds, images, retrained)
    show(pay_tables(play_all(bench, out, _on_federation)), out)
    console.print(f"all measurements: {out}", soft_wrap=True)


def parse_counts(text: str) -> list[int]:
    """Return numbers of sites, 3 to 100; raise `BadInput` for any other."""
    try:
        counts = [int(one) for one in text.split(",")]
    except ValueError:
        counts = []
    if not counts or not all(3 <= count <= 100 for count in counts):
        raise BadInput(f"--sizes {text}: expected whole numbers from 3 to 100, separated by commas")
    return counts
