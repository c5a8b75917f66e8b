"""Commands that train coalitions to learn what each site is worth: loo, shapley."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.app import (
    Device,
    Jobs,
    OutFolder,
    Rounds,
    ServerSites,
    Settings,
    SitesFolder,
    app,
    assignments,
    console,
    reports_bad_input,
    require_jobs,
)
from cli.progress import progress, resumable
from fedmerit.errors import BadInput

if TYPE_CHECKING:
    from evaluation.display.table import Table
    from evaluation.results.views import Results
    from evaluation.truth.coalitions import Training
    from evaluation.truth.semivalues import Coalition

MethodName = Annotated[str, typer.Option(help="One that gives all sites one global model.")]
Seeds = Annotated[str, typer.Option(help="Of the trainings of each coalition.")]


@app.command()
@reports_bad_input
def loo(
    sites: SitesFolder,
    out: OutFolder,
    method: MethodName = "fedavg",
    rounds: Rounds = 30,
    seeds: Seeds = "0",
    jobs: Jobs = None,
    device: Device = None,
    server_sites: ServerSites = None,
    settings: Settings = None,
) -> None:
    """Leave-one-out: train all sites together, then without each; print Tables 4 and 5 of the FedCE paper for them.

    Interrupted, the same command goes on. Exits with 1 where a training failed.
    """
    from evaluation.truth.semivalues import leave_one_out_weights, required
    from evaluation.truth.values import leave_one_out_tables

    study = _Study(sites, out, method, rounds, seeds, jobs, device, server_sites, settings)
    study.train(required(study.names, leave_one_out_weights), study.seeds)
    study.show(leave_one_out_tables(study.results()))


@app.command()
@reports_bad_input
def shapley(
    sites: SitesFolder,
    out: OutFolder,
    method: MethodName = "fedavg",
    rounds: Rounds = 30,
    seeds: Seeds = "0",
    exact_up_to: Annotated[int, typer.Option(help="Sites; of more than these, permutations are sampled.")] = 6,
    truncation: Annotated[
        float, typer.Option(help="Sampling: within this Dice of all sites' model, the rest of an order counts as 0.")
    ] = 0.01,
    precision: Annotated[float, typer.Option(help="Sampling: largest standard error, of Dice, to stop at.")] = 0.005,
    most_permutations: Annotated[int, typer.Option(help="Sampling: the most to draw.")] = 1000,
    jobs: Jobs = None,
    device: Device = None,
    server_sites: ServerSites = None,
    settings: Settings = None,
) -> None:
    """Shapley values by retraining: all 2^N - 1 coalitions, or of many sites, sampled permutations.

    What `loo` trained with the same --out is not trained again. Interrupted, the same command goes on.
    """
    from evaluation.truth.ground_truths import write_sampling
    from evaluation.truth.sampling import Sampling
    from evaluation.truth.semivalues import NOBODY, required, shapley_weights
    from evaluation.truth.utilities import coalition_utilities
    from evaluation.truth.values import sampled_tables, shapley_tables

    study = _Study(sites, out, method, rounds, seeds, jobs, device, server_sites, settings)
    if len(study.names) <= exact_up_to:
        everyone = [coalition for coalition in required(study.names, shapley_weights) if coalition]
        study.train(everyone, study.seeds)
        study.show(shapley_tables(study.results()))
        return
    if most_permutations < 2:
        raise BadInput(f"--most-permutations {most_permutations}: expected 2 or more")
    console.print(f"{len(study.names)} sites: permutations are sampled; --exact-up-to {len(study.names)} trains all")
    fewest = min(20, most_permutations)
    rule = Sampling(tuple(study.names), 0, truncation, precision, fewest, most_permutations)
    write_sampling(out, rule)
    ends = {}
    for seed in study.seeds:
        rule = replace(rule, seed=seed)
        estimate = rule.estimate({NOBODY: 0.0})
        while estimate.needed:
            study.train(estimate.needed, [seed])
            estimate = rule.estimate(coalition_utilities(study.results()).get(seed, {NOBODY: 0.0}))
        console.print(f"seed {seed}: {estimate.ended}")
        ends[seed] = estimate
    study.show(sampled_tables(study.names, ends))


class _Study:
    """A folder of trained coalitions, as the options of a command ask for it."""

    def __init__(
        self,
        sites: Path,
        out: Path,
        method: str,
        rounds: int,
        seeds: str,
        jobs: int | None,
        device: str | None,
        server_sites: Path | None,
        settings: list[str] | None,
    ):
        from evaluation.studies.requests import parse_seeds
        from fedmerit.training.data import open_sites

        require_jobs(jobs)
        self.out, self.method, self.jobs, self.settings = out, method, jobs, assignments(settings)
        given = {"device": device, "server_sites": server_sites}
        self.options = {"sites": sites, "rounds": rounds, "engine": "local"} | {
            name: value for name, value in given.items() if value is not None
        }
        self.names = [site.name for site in open_sites(sites)]
        if len(self.names) < 2:
            raise BadInput(f"{sites}: holds {self.names[0]} alone; what a site is worth shows beside others")
        self.seeds = parse_seeds(seeds)
        self.trainings: dict[Path, Training] = {}

    def train(self, coalitions: "Iterable[Coalition]", seeds: Sequence[int]) -> None:
        """Train what is missing; `typer.Exit` with 1 where a training failed."""
        from evaluation.studies.pool import workers_for
        from evaluation.truth import coalitions as trained

        planned = trained.prepare(self.out, coalitions, seeds, self.method, self.settings, self.options)
        self.trainings |= {training.folder: training for training in planned}
        cost = trained.cost(planned)
        if not cost.trainings:
            return
        workers = min(self.jobs or workers_for(planned[0].folder), cost.trainings)
        console.print(
            f"{cost.trainings} of {len(planned)} trainings to do, {cost.images:,} images in all: "
            f"about {_duration(cost.hours / workers)} with {workers} at a time"
        )
        left = [training for training in planned if not training.finished]
        started, before = time.monotonic(), trained.own_seconds(left)
        with resumable(), progress() as bars:
            bar = bars.add_task("trainings", total=cost.trainings, last="")
            failed = trained.work_off(left, workers, lambda folder, error: bars.advance(bar))
        took, own = time.monotonic() - started, trained.own_seconds(left) - before
        if own > 0 and not failed:  # nothing is left to compare with where models were only tested
            console.print(
                f"took {_duration(took / 3600)}: {took * workers / own - 1:+.1%} over the sites' own time, "
                f"{_duration(own / 3600)} / {workers}"
            )
        trained.write_results(self.out)
        for folder, error in failed.items():
            typer.echo(f"failed: {folder}: {error}", err=True)
        if failed:
            typer.echo("the same command goes on from what is done", err=True)
            raise typer.Exit(1)

    def results(self) -> "Results":
        """Of the trainings that this command asked for."""
        from evaluation.truth.coalitions import results_of

        return results_of(list(self.trainings.values()))

    def show(self, tables: "Sequence[Table]") -> None:
        """Print the tables; write them, and the results they come from."""
        from evaluation.display.table import print_table, write_tables
        from evaluation.truth.coalitions import write_results

        write_results(self.out)
        write_tables(tables, self.out / "tables")
        for table in tables:
            print_table(table, console)
        console.print(f"trainings, results and tables: {self.out}", soft_wrap=True)


def _duration(hours: float) -> str:
    return f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes" if hours > 1.5 / 60 else "a minute"
