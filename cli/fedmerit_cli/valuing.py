"""Commands that train coalitions: loo and shapley for what sites are worth, generalise for unseen hospitals."""

from typing import Annotated

import typer

from fedmerit.configuration.recipes import ROUNDS
from fedmerit.errors import BadInput
from fedmerit_cli.app import (
    Cluster,
    Device,
    Jobs,
    OutFolder,
    Recipe,
    Rounds,
    ServerSites,
    Settings,
    SitesFolder,
    console,
    given,
    settings_of,
    workers_of,
)

MethodName = Annotated[str, typer.Option(help="One that gives all sites one global model.")]
Seeds = Annotated[str, typer.Option(help="Of the trainings of each coalition.")]

commands = typer.Typer()


@commands.command()
def loo(
    sites: SitesFolder,
    out: OutFolder,
    method: MethodName = "fedavg",
    rounds: Rounds = ROUNDS,
    seeds: Seeds = "0",
    jobs: Jobs = None,
    cluster: Cluster = None,
    device: Device = None,
    server_sites: ServerSites = None,
    settings: Settings = None,
    recipe: Recipe = None,
) -> None:
    """Leave-one-out: train all sites together, then without each; print Tables 4 and 5 of the FedCE paper for them.

    Interrupted, the same command goes on. Exits with 1 where a training failed.
    """
    workers = workers_of(jobs, cluster)
    from fedmerit_cli.coalition_study import CoalitionStudy
    from fedmerit_evaluation.ground_truth.semivalues import leave_one_out_weights, required_coalitions
    from fedmerit_evaluation.ground_truth.value_tables import ValueTables, leave_one_out_tables

    options = given(sites=sites, rounds=rounds, engine="local", device=device, server_sites=server_sites)
    with workers:
        study = CoalitionStudy(out, method, seeds, workers, settings_of(settings, recipe), options)
        study.train(required_coalitions(study.names, leave_one_out_weights))
        results = study.results()
        truths = ValueTables(results)
        study.show([*leave_one_out_tables(results), *truths.tables()], truths.rankings)


@commands.command()
def generalise(
    sites: SitesFolder,
    out: OutFolder,
    method: MethodName = "fedavg",
    rounds: Rounds = ROUNDS,
    seeds: Seeds = "0",
    jobs: Jobs = None,
    cluster: Cluster = None,
    device: Device = None,
    server_sites: ServerSites = None,
    settings: Settings = None,
    recipe: Recipe = None,
) -> None:
    """Unseen hospitals: leave each out of the training, and test the others' model on its patients.

    The trainings are those of loo, which takes them up where --out is the same. Interrupted, the same command goes on.
    Exits with 1 where a training failed.
    """
    workers = workers_of(jobs, cluster)
    from fedmerit.trainers.monai_trainer.data import open_sites
    from fedmerit_cli.coalition_study import CoalitionStudy
    from fedmerit_evaluation.ground_truth.unseen_sites import generalisation_tables, leave_each_out

    options = given(sites=sites, rounds=rounds, engine="local", device=device, server_sites=server_sites)
    with workers:
        study = CoalitionStudy(out, method, seeds, workers, settings_of(settings, recipe), options)
        study.train(leave_each_out(study.names))
        study.show(generalisation_tables(list(study.trainings.values()), open_sites(sites)))


@commands.command()
def shapley(
    sites: SitesFolder,
    out: OutFolder,
    method: MethodName = "fedavg",
    rounds: Rounds = ROUNDS,
    seeds: Seeds = "0",
    exact_up_to: Annotated[int, typer.Option(help="Sites; of more than these, permutations are sampled.")] = 6,
    truncation: Annotated[
        float, typer.Option(help="Sampling: within this Dice of all sites' model, the rest of an order counts as 0.")
    ] = 0.01,
    precision: Annotated[float, typer.Option(help="Sampling: largest standard error, of Dice, to stop at.")] = 0.005,
    most_permutations: Annotated[int, typer.Option(help="Sampling: the most to draw.")] = 1000,
    regression: Annotated[
        int | None,
        typer.Option(metavar="COALITIONS", help="In the place of sampling: a regression over so many (KernelSHAP)."),
    ] = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
    device: Device = None,
    server_sites: ServerSites = None,
    settings: Settings = None,
    recipe: Recipe = None,
) -> None:
    """Shapley values by retraining: all 2^N - 1 coalitions, or of many sites, permutations or a regression.

    What `loo` trained with the same --out is not trained again. Interrupted, the same command goes on.
    """
    workers = workers_of(jobs, cluster)
    from fedmerit_cli.coalition_study import CoalitionStudy
    from fedmerit_evaluation.ground_truth.semivalues import required_coalitions, shapley_weights
    from fedmerit_evaluation.ground_truth.shapley_approximations import (
        Sampling,
        coalitions_to_train,
        least_squares_values,
    )
    from fedmerit_evaluation.ground_truth.value_tables import ValueTables, sampled_tables, shapley_tables

    options = given(sites=sites, rounds=rounds, engine="local", device=device, server_sites=server_sites)
    with workers:
        study = CoalitionStudy(out, method, seeds, workers, settings_of(settings, recipe), options)
        number = len(study.names)
        if number <= exact_up_to:
            study.train(coalition for coalition in required_coalitions(study.names, shapley_weights) if coalition)
            results = study.results()
            truths = ValueTables(results)
            study.show([*shapley_tables(results), *truths.tables()], truths.rankings)
            return
        if regression is not None:
            study.train(coalitions_to_train(study.names, regression, 0))
            truths = ValueTables(study.results(), {"regression": least_squares_values})
            study.show(truths.tables(), truths.rankings)
            return
        if most_permutations < 2:
            raise BadInput(f"--most-permutations {most_permutations}: expected 2 or more")
        console.print(f"{number} sites: permutations are sampled; --exact-up-to {number} trains all")
        fewest = min(20, most_permutations)
        rule = Sampling(tuple(study.names), 0, truncation, precision, fewest, most_permutations)
        study.show(sampled_tables(study.names, study.sample(rule)))
