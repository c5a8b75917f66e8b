"""``fedmerit bench values``."""

from typing import Annotated

import typer

from fedmerit.configuration.recipes import ROUNDS
from fedmerit_cli.app import Cluster, Jobs, Recipe, Settings, console, settings_of, specs_of, workers_of
from fedmerit_cli.bench_options import Pool, PoolPatients, PoolSize, TrainingRounds, WorldsFolder

commands = typer.Typer()


@commands.command()
def values(
    out: WorldsFolder,
    worlds: Annotated[
        str,
        typer.Option(
            metavar="KIND[:sites=N],...|asis",
            help="equal, sizes, double, noise, shifted, duplicate, narrow, outlier, needed; asis: as they are.",
        ),
    ] = "sizes:sites=4,noise:sites=4,duplicate:sites=4",
    pool: Pool = None,
    estimators: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:PARAMETER=VALUE],...",
            help="Names as in docs/values_protocol.md.",
            show_default="all of ours",
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:SETTING=VALUE],...",
            help="Whose own contributions are judged, too, each in runs of its own.",
            show_default="none",
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Of training.")] = "0,1,2",
    rounds: TrainingRounds = ROUNDS,
    size: PoolSize = 64,
    patients: PoolPatients = 20,
    jobs: Jobs = None,
    cluster: Cluster = None,
    draws: Annotated[int, typer.Option(min=1, help="Of patients, for the intervals.")] = 500,
    most: Annotated[
        int, typer.Option(min=8, help="Coalitions that a truth takes; of more, so many are drawn for a regression.")
    ] = 256,
    settings: Settings = None,
    recipe: Recipe = None,
) -> None:
    """Estimators of values against retraining, world by world: agreement, its ceiling, cost, what paying does.

    docs/values_protocol.md says how. Interrupted, the same command goes on.
    """
    workers = workers_of(jobs, cluster)
    from fedmerit_cli.printing import show
    from fedmerit_evaluation.studies.study_folders import parse_methods, parse_seeds
    from fedmerit_lab.benchmarks.scenarios import generate
    from fedmerit_lab.benchmarks.value_benchmark import ESTIMATORS, Bench, bench_tables, judge, require_scenarios

    chosen, asked = specs_of(estimators) or list(ESTIMATORS), specs_of(worlds) or []
    items = parse_methods(methods) if methods else []
    require_scenarios(asked, chosen, items)
    dealt = pool or generate(out / "pool", size, patients)
    judged = []
    with workers:
        of_training = settings_of(settings, recipe)
        wanted = Bench(out, dealt, asked, chosen, items, parse_seeds(seeds), rounds, of_training, workers, draws, most)
        for world in asked:
            judged.append(
                judge(wanted, world, lambda what, done, of: console.print(f"{what}: {done} done", soft_wrap=True))
            )
            show(bench_tables(judged), out)
    console.print(f"trainings and tables: {out}", soft_wrap=True)
