"""``fedmerit value``: data valuation by retraining coalitions, and by estimators of finished runs."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmerit.errors import BadInput
from fedmerit.schema.configuration.options import OF_SCRIPTS, RunOptions, split_specs
from fedmerit.schema.configuration.settings import ROUNDS
from fedmerit_cli.options import (
    Cluster,
    Draws,
    Folds,
    Jobs,
    OutFolder,
    Seeds,
    make_workers,
    parse_integers,
    run_options,
)
from fedmerit_cli.terminal import Commands, console

if TYPE_CHECKING:
    from fedmerit.evidence.signatures import Signer
    from fedmerit_cli.coalition_study import CoalitionStudy

INF = float("inf")
Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Finished runs that differ in seeds or folds.")]
commands = Commands()
trains_coalitions = run_options(
    "sites", *OF_SCRIPTS, "method", "rounds", "device", "server_sites", "recipe", "settings",
    defaults={"method": "fedavg"},
)  # fmt: skip


@contextmanager
def _study(
    asked: RunOptions, out: Path, seeds: str, jobs: int | None, cluster: str | None, folds: bool | None
) -> "Iterator[CoalitionStudy]":
    """Open the coalitions of the sites, with the processes that train them."""
    asked.require_sites()
    asked = asked.with_given(RunOptions(engine="local"))
    workers = make_workers(jobs, cluster, asked)
    from fedmerit_cli.coalition_study import CoalitionStudy

    with workers:
        options = asked.for_study()
        study = CoalitionStudy(out, str(asked.method), seeds, workers, asked.all_settings, options, folds)
        study.print_precision()
        yield study


@commands.add("value leave-one-out --sites sites --out values --rounds 50 --seeds 0,1,2", "leave-one-out")
@trains_coalitions
def leave_one_out(
    asked: RunOptions,
    out: OutFolder,
    seeds: Seeds = "0",
    folds: Folds = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
) -> None:
    """Compute leave-one-out values: train all sites together, then without each; Tables 4 and 5 of the FedCE paper.

    Interrupted, the same command resumes. Exits with 1 if a training failed.
    """
    with _study(asked, out, seeds, jobs, cluster, folds) as study:
        from fedmerit.contract.semivalues import leave_one_out_weights, required_coalitions
        from fedmerit_evaluation.ground_truth.value_tables import ValueTables, leave_one_out_tables

        study.train(required_coalitions(study.names, leave_one_out_weights))
        results = study.results()
        values = ValueTables(results)
        study.show([*leave_one_out_tables(results), *values.tables()], values.rankings)


@commands.add("value shapley --sites sites --out values --rounds 50 --seeds 0,1,2")
@trains_coalitions
def shapley(
    asked: RunOptions,
    out: OutFolder,
    seeds: Seeds = "0",
    folds: Folds = None,
    exact_up_to: Annotated[int, typer.Option(min=1, help="Sites; for more, permutations are sampled.")] = 6,
    truncation: Annotated[
        float, typer.Option(min=0, help="Sampling: within this Dice of all sites' model, later marginals count as 0.")
    ] = 0.01,
    precision: Annotated[
        float, typer.Option(min=0, help="Sampling: stop at this largest standard error, in Dice.")
    ] = 0.005,
    most_permutations: Annotated[int, typer.Option(min=2, help="Sampling: maximum permutations.")] = 1000,
    regression: Annotated[
        int | None,
        typer.Option(metavar="COALITIONS", help="Instead of sampling: a regression over so many (KernelSHAP)."),
    ] = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
) -> None:
    """Compute Shapley values by retraining all 2^N - 1 coalitions, or for many sites by permutations or a regression.

    Trainings of `value leave-one-out` with the same --out are reused. Interrupted, the same command resumes.
    """
    with _study(asked, out, seeds, jobs, cluster, folds) as study:
        from fedmerit.contract.semivalues import Sampling, required_coalitions, shapley_weights
        from fedmerit_evaluation.ground_truth import shapley_approximations as approximations
        from fedmerit_evaluation.ground_truth.value_tables import ValueTables, sampled_tables, shapley_tables

        number = len(study.names)
        if number <= exact_up_to:
            study.train(coalition for coalition in required_coalitions(study.names, shapley_weights) if coalition)
            results = study.results()
            values = ValueTables(results)
            study.show([*shapley_tables(results), *values.tables()], values.rankings)
            return
        if regression is not None:
            study.train(approximations.coalitions_to_train(study.names, regression, 0))
            values = ValueTables(study.results(), {"regression": approximations.least_squares_values})
            study.show(values.tables(), values.rankings)
            return
        console.print(f"{number} sites: permutations are sampled; --exact-up-to {number} trains all")
        fewest = min(20, most_permutations)
        rule = Sampling(tuple(study.names), 0, truncation, precision, fewest, most_permutations)
        study.show(sampled_tables(study.names, study.sample(rule)))


@commands.add("value estimate runs/fedce-seed0 runs/fedce-seed1 --out values", reads_records=True)
def estimate(
    runs: Runs,
    estimators: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:PARAMETER=VALUE],...",
            help="Names as in docs/valuation.md, or `all` that need no images.",
            show_default="what the runs observed, contribution if the method has one, data_size",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of tables and figure.", show_default="RUN/values")] = None,
    sites: Annotated[
        Path | None, typer.Option(help="The runs' site folders.", show_default="where they were when the runs began")
    ] = None,
    draws: Draws = 500,
) -> None:
    """Estimate the values of sites of finished runs: ranks, and which sites differ significantly.

    Values that were not observed are computed afterwards, if the run kept its updates. Interrupted, the same command
    resumes.
    """
    from fedmerit_cli.printing import progress, show
    from fedmerit_evaluation.figures.dots_and_bars import value_ranges
    from fedmerit_evaluation.figures.drawing import png
    from fedmerit_evaluation.figures.pages import save_png
    from fedmerit_evaluation.valuation.valued_runs import default_estimators, units, value_runs, value_tables

    named = [None if estimators == "all" else spec for spec in split_specs(estimators or "")]
    specs = [spec for spec in named if spec] or default_estimators(runs, everything=estimators == "all")
    with progress() as bars:
        bar = bars.add_task("evaluating coalitions", total=None, last="", visible=False)
        valued = value_runs(
            runs, specs, draws, lambda name, done, of: bars.update(bar, completed=done, total=of, visible=True), sites
        )
    folder = out or runs[0] / "values"
    if out is None:  # a folder of its own, which may have the tables of an earlier call
        shutil.rmtree(folder / "tables", ignore_errors=True)
    show(value_tables(valued), folder)
    save_png(folder / "figures" / "values.png", png(value_ranges(valued.shown, units(valued))))
    console.print(f"tables and figure: {folder}", soft_wrap=True)


@commands.add("value replay ws/fedavg/server/simulate_job/kept_updates --out replayed", reads_records=True)
def replay(
    kept: Annotated[Path, typer.Argument(metavar="FOLDER", help="Updates that fedmerit.keep_updates kept of a job.")],
    out: Annotated[Path, typer.Option(help="Folder to write: a run a rule, replay.html, tables.")],
    rules: Annotated[str, typer.Option(metavar="NAME,...", help="Some of these.")] = "fedavg,cgsv,shapfed,fedce",
    score: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME", help="Function of a state_dict that returns its score, 0 to 1: one-round values."
        ),
    ] = None,
) -> None:
    """Replay the kept updates of any NVFlare job: contributions, duplicates, free riders, weights by other rules."""
    from fedmerit.engines.script_sites import load_named
    from fedmerit_cli.printing import show
    from fedmerit_data.pages import write_page
    from fedmerit_evaluation.valuation.replay import find_kept, one_round_values, replay_rules, replay_tables

    job = find_kept(kept)
    function = load_named(score, "--score") if score else None
    folders = replay_rules(job, split_specs(rules), out)
    tables = replay_tables(job, folders, one_round_values(job, function) if function else None)
    show(tables, out)
    content = {"sites": len(job.sites), "rounds": len(job.rounds), "folder": str(job.folder), "notes": []}
    page = out / "replay.html"
    write_page(page, "fedmerit_evaluation.report", "replay.html.j2", tables=tables, **content)
    console.print(f"report: {page}; by round: fedmerit report {' '.join(map(str, folders.values()))}", soft_wrap=True)


@commands.add("value payout runs/fedavg-seed0 runs/fedavg-seed1 runs/fedavg-seed2 --budget 100000", reads_records=True)
def payout(
    runs: Runs,
    budget: Annotated[int, typer.Option(min=1, help="Money to share, in whole units.")],
    estimators: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:PARAMETER=VALUE],...",
            help="The first decides, the others are compared; local_only:voice=others is another utility.",
            show_default="what the runs observed, contribution if the method has one, data_size",
        ),
    ] = None,
    floor: Annotated[float, typer.Option(min=0, max=1, help="Least amount, of an equal share.")] = 0.0,
    cap: Annotated[float, typer.Option(min=1, help="Largest amount, of an equal share.", show_default="none")] = INF,
    slope: Annotated[
        float, typer.Option(min=0, max=10, help="Of shares by retraining on the estimator's, as benchmarked.")
    ] = 1.0,
    audited: Annotated[
        Path | None,
        typer.Option(
            help="Count only rounds whose drawn steps an auditor with a certificate of this rootCA.pem repeated."
        ),
    ] = None,
    kit: Annotated[Path | None, typer.Option(help="Startup kit of who states it, whose key signs.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write into.", show_default="RUN/payout")] = None,
    draws: Draws = 500,
) -> None:
    """Write a payout statement: shares in proportion to values, shrunk to equal ones by the values' reliability.

    Anybody with the run folders recomputes it: `fedmerit verify RUN --payout payout.json`.
    """
    from fedmerit.evidence.signatures import Trust
    from fedmerit_cli.printing import show
    from fedmerit_dossier.payout_statement import write_payout
    from fedmerit_evaluation.valuation.payout import Rule
    from fedmerit_evaluation.valuation.valued_runs import default_estimators

    specs = split_specs(estimators or "") or default_estimators(runs)
    folder = out or runs[0] / "payout"
    signer = _signer(kit) if kit else None
    auditors, rule = Trust(audited) if audited else None, Rule(budget, floor, cap, slope)
    paid, tables, page = write_payout(runs, specs, rule, folder, draws, signer, auditors)
    show(tables, folder)
    console.print(paid.sentence, soft_wrap=True)
    console.print(f"statement: {page}, {page.with_suffix('.json').name}", soft_wrap=True)


def _signer(kit: Path) -> "Signer":
    from fedmerit.evidence.signatures import Signer
    from fedmerit_deploy.kit_files import CERTIFICATES, read_kind

    own = kit / "startup" / CERTIFICATES[read_kind(kit)]
    return Signer(own.with_suffix(".key"), own.with_suffix(".crt"))


@commands.add("value power --seed-sd 1.2 --patient-sd 8 --patients 10,20 --seeds 3,5")
def power(
    pilot: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of `value leave-one-out` or `shapley` to take variances from."),
    ] = None,
    seed_sd: Annotated[
        float | None,
        typer.Option(min=0, help="Standard deviation of a difference of two sites over seeds, Dice points."),
    ] = None,
    patient_sd: Annotated[
        float | None, typer.Option(min=0, help="The same over patients, of one test patient a site, Dice points.")
    ] = None,
    round_sd: Annotated[
        float | None, typer.Option(min=0, help="The same over rounds, of one round; for values observed in a run.")
    ] = None,
    patients: Annotated[str, typer.Option(help="Test patients a site to plan for.")] = "2,5,10,20,50",
    seeds: Annotated[str, typer.Option(help="Numbers of seeds to plan for.")] = "2,3,5,10",
    hospitals: Annotated[
        int | None,
        typer.Option(min=2, help="Hospitals that are compared, each with each.", show_default="the pilot's, or 2"),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to plan for, if --round-sd is given.")] = ROUNDS,
    out: Annotated[Path | None, typer.Option(help="Folder to write the table into.")] = None,
) -> None:
    """Print the minimum detectable difference (MDD) of two sites' values, by numbers of patients, seeds and rounds.

    From a pilot's variances, or from standard deviations that you state before anything is trained.
    """
    from fedmerit_evaluation.figures.tables import print_table, write_tables
    from fedmerit_evaluation.ground_truth.reliability import Variances, pilot_variances, power_table

    stated = {
        name: sd for name, sd in (("seed", seed_sd), ("patient", patient_sd), ("round", round_sd)) if sd is not None
    }
    if any(sd == float("inf") for sd in stated.values()):
        raise BadInput("--seed-sd, --patient-sd, --round-sd: expected a standard deviation in points, 0 or more")
    if pilot is None and not {"seed", "patient"} <= set(stated):
        raise BadInput("value power: give --pilot DIR, or state --seed-sd and --patient-sd")
    found = Variances(0.0, 0.0) if pilot is None else pilot_variances(pilot)
    variances = found.with_overrides(**{name: (sd / 100) ** 2 for name, sd in stated.items()})
    if hospitals is not None:
        variances = variances.with_overrides(sites=hospitals)
    by_patients, by_seeds = (
        sorted(set(parse_integers(text, option, least=1)))
        for text, option in ((patients, "--patients"), (seeds, "--seeds"))
    )
    table = power_table(variances, by_patients, by_seeds, rounds)
    print_table(table, console)
    if out:
        write_tables([table], out)


@commands.add("value unseen --sites sites --out values --rounds 50 --seeds 0,1,2")
@trains_coalitions
def unseen(
    asked: RunOptions,
    out: OutFolder,
    seeds: Seeds = "0",
    folds: Folds = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
) -> None:
    """Evaluate unseen hospitals: leave each out of the training, and test the others' model on its patients.

    The trainings are those of `value leave-one-out`; with the same --out they are reused. Interrupted, the same command
    resumes. Exits with 1 if a training failed.
    """
    with _study(asked, out, seeds, jobs, cluster, folds) as study:
        from fedmerit_evaluation.ground_truth.coalitions import generalisation_tables, leave_each_out

        study.train(leave_each_out(study.names))
        study.show(generalisation_tables(list(study.trainings.values()), asked.sites))
