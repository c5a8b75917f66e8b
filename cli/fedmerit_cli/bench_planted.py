"""``fedmerit bench planted``."""

from typing import Annotated

import typer

from fedmerit.configuration.recipes import ROUNDS
from fedmerit_cli.app import Cluster, Jobs, Recipe, Settings, console, settings_of, specs_of, workers_of
from fedmerit_cli.bench_options import Pool, PoolPatients, PoolSize, TrainingRounds, WorldsFolder

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
    from fedmerit_cli.printing import show
    from fedmerit_evaluation.studies.study_folders import parse_seeds
    from fedmerit_evaluation.valuation.estimators import parse_all
    from fedmerit_lab.benchmarks.known_answers import KnownAnswerBenchmark, compute_values, known_answer_tables
    from fedmerit_lab.benchmarks.observed_trainings import ESTIMATORS
    from fedmerit_lab.benchmarks.scenarios import generate

    chosen = specs_of(estimators) or list(ESTIMATORS)
    parse_all(chosen)
    dealt = pool or generate(out / "pool", size, patients)
    with workers:
        asked = KnownAnswerBenchmark(
            out, dealt, chosen, sites, parse_seeds(seeds), rounds, settings_of(settings, recipe), workers
        )
        values = compute_values(
            asked, lambda done, of: console.print(f"trainings: {done} of {of} done", soft_wrap=True)
        )
    show(known_answer_tables(values, sites), out)
    console.print(f"trainings and tables: {out}", soft_wrap=True)
