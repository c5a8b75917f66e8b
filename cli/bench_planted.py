"""``fedmerit bench planted``."""

from typing import Annotated

import typer

from cli.app import Cluster, Jobs, Recipe, Settings, console, settings_of, specs_of, workers_of
from cli.bench_options import Pool, PoolPatients, PoolSize, TrainingRounds, WorldsFolder
from fedmerit.configuration.recipes import ROUNDS

commands = typer.Typer()


@commands.command()
def planted(
    out: WorldsFolder,
    sites: Annotated[int, typer.Option(min=3, max=16, help="Of every world, a twin included.")] = 4,
    pool: Pool = None,
    estimators: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:PARAMETER=VALUE],...",
            help="Names as in docs/values_protocol.md.",
            show_default="all of ours but proxy",
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Of dealing and of training.")] = "0,1,2,3,4,5,6,7,8,9",
    rounds: TrainingRounds = ROUNDS,
    size: PoolSize = 64,
    patients: PoolPatients = 20,
    jobs: Jobs = None,
    cluster: Cluster = None,
    settings: Settings = None,
    recipe: Recipe = None,
) -> None:
    """Estimators of values where the answer was planted: noisy masks, twice the patients, a twin, an honest outlier.

    Says in how many seeds each estimator sees it. Interrupted, the same command goes on.
    """
    workers = workers_of(jobs, cluster)
    from cli.printing import show
    from evaluation.studies.requests import parse_seeds
    from evaluation.values.estimators import parse_all
    from evaluation.values.observed_trainings import ESTIMATORS
    from evaluation.values.planted_cases import PlantedCases, planted_tables, values_of
    from evaluation.values.worlds import generate

    chosen = specs_of(estimators) or list(ESTIMATORS)
    parse_all(chosen)
    dealt = pool or generate(out / "pool", size, patients)
    with workers:
        asked = PlantedCases(
            out, dealt, chosen, sites, parse_seeds(seeds), rounds, settings_of(settings, recipe), workers
        )
        values = values_of(asked, lambda done, of: console.print(f"trainings: {done} of {of} done", soft_wrap=True))
    show(planted_tables(values, sites), out)
    console.print(f"trainings and tables: {out}", soft_wrap=True)
