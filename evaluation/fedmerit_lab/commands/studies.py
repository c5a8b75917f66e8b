"""``fedmerit lab``: papers' artefacts, scoring protocols, attacks, benchmarks. Only for studies, not for hospitals."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmerit.errors import BadInput, printable
from fedmerit.schema.configuration.options import RunOptions, parse_names
from fedmerit.schema.configuration.settings import PAPER, guarded
from fedmerit.schema.declarations import parse_assignments
from fedmerit_cli.options import (
    AllFolds,
    Cluster,
    Jobs,
    Methods,
    OutFolder,
    Seeds,
    make_workers,
    parse_integers,
    run_options,
)
from fedmerit_cli.results import RunFolder, RunFolders, Split, expand_runs
from fedmerit_cli.terminal import Commands, console

if TYPE_CHECKING:
    from fedmerit_lab.papers.artefact import Artefact, Paper

commands = Commands()


@commands.add("lab paper fedce --sites sites --out paper --only table1 --rounds 50")
@run_options("sites", "rounds", "device", "server_sites", "recipe", "preset", "settings")
def paper(
    asked: RunOptions,
    name: Annotated[
        str, typer.Argument(help="fedce, cgsv, fedave, fedsac or cycle.", metavar="PAPER", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder of trainings, tables and figures; finished trainings are reused.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="Only some: table1,figure3.", show_default="all")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List artefacts and costs; nothing is run.")] = False,
    seeds: Seeds = "0,1,2",
    into: Annotated[int, typer.Option(min=1, help="Sites, for papers that partition one data set.")] = 5,
    jobs: Jobs = None,
    cluster: Cluster = None,
) -> None:
    """Make a paper's tables and figures for these sites, with the paper's own numbers beside them.

    Interrupted, the same command resumes. Exits with 1 if a training failed or something could not be made.
    """
    from fedmerit_cli.printing import exit_if_failed, progress, resumable
    from fedmerit_evaluation.studies.study import parse_seeds
    from fedmerit_lab.papers.production import chosen, find_paper, produce
    from fedmerit_lab.papers.study import Study

    found = find_paper(name)
    artefacts = chosen(found, only)
    if listed:
        _print_list(found, artefacts if only else found.artefacts, artefacts, asked.sites, into)
        return
    if asked.sites is None or out is None:
        missing = "sites" if asked.sites is None else "out"
        raise BadInput(f"--{missing}: missing; --list shows the artefacts without them")
    workers = make_workers(jobs, cluster)
    preset = {"preset": name} if asked.preset == PAPER else {}
    settings = {**asked.all_settings, **preset}
    where: dict[str, Any] = {"device": asked.device or None, "server_sites": asked.server_sites}
    study = Study(out, asked.sites, asked.rounds, parse_seeds(seeds), into=into, settings=settings, **where)
    with workers, resumable(), progress() as bars:
        bar = bars.add_task("trainings", total=0, last="")
        made, failed = produce(
            found,
            artefacts,
            study,
            workers,
            on_begin=lambda number: bars.update(bar, total=number),
            on_end=lambda folder, error: bars.advance(bar),
        )
    console.print(f"page: {(out / 'page.html').resolve()}", soft_wrap=True)
    for left_out in dict.fromkeys(one.left_out for one in made if one.left_out):
        typer.echo(left_out, err=True)
    for one in made:
        if one.missing:
            typer.echo(f"missing: {one.artefact.name}: {one.missing}", err=True)
    exit_if_failed(failed)
    if any(one.missing for one in made):
        raise typer.Exit(1)


def _print_list(
    paper: "Paper", artefacts: "Sequence[Artefact]", asked: "Sequence[Artefact]", sites: Path | None, into: int
) -> None:
    """Print every artefact with its trainings per seed, all ``asked`` together, and what is not made."""
    import pandas as pd

    from fedmerit.schema.site_folder import open_sites
    from fedmerit_evaluation.figures.tables import Table, print_table
    from fedmerit_lab.papers.production import trainings_per_seed

    frame = pd.DataFrame(
        {
            "Artefact": [artefact.name + " *" * artefact.on_demand for artefact in artefacts],
            "What": [artefact.what for artefact in artefacts],
            "Trainings per seed": [artefact.cost for artefact in artefacts],
        }
    )
    print_table(Table("list", "", frame), console)
    if any(artefact.on_demand for artefact in artefacts):
        console.print("*: made if --only names it: it partitions the patients into a number of sites of its own.")
    for place, why in paper.absent.items():
        console.print(f"not made: {place}: {why}")
    if sites is None:
        console.print("N: number of sites. Artefacts share trainings; --sites SITES counts them.")
        return
    names = [folder.name for folder in open_sites(sites)]
    total = trainings_per_seed(asked, names, into)
    console.print(f"together, for {len(names)} sites: {total} trainings per seed, shared ones counted once")


@commands.add("lab run --out runs/attacked --method fedce --sites sites --attack site4=zero --engine local")
@run_options(*RunOptions.model_fields)
def run(
    asked: RunOptions,
    attack: Annotated[
        list[str] | None,
        typer.Option(help="Simulated attack of a site; may be repeated.", metavar="SITE=KIND[:NAME=VALUE]"),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last complete round of --out.")] = False,
) -> None:
    """Train one federation in which sites attack, on the local engine or the simulator."""
    from fedmerit.engines.resumption import needs_resuming
    from fedmerit_cli.printing import print_runs, run_with_progress
    from fedmerit_lab.attacks import attacked_runs

    given, specs = asked.given(), parse_assignments(attack or [], "--attack")
    if missing := [name for name in ("out", "method", "sites")[: 1 if resume else 3] if name not in given]:
        raise BadInput(f"--{missing[0]}: missing; a run of the laboratory needs it")
    folder = given.pop("out")
    if not resume:
        attacked_runs.create(folder, specs, **given | {"settings": guarded(given.get("settings", {}))})
    else:
        if specs:
            attacked_runs.require_same_attacks(folder, specs)
        if not needs_resuming(folder, given):
            console.print(f"{folder} has ended: nothing is left to train.", soft_wrap=True)
            print_runs([folder])
            return
    run_with_progress(folder, attacked_runs.execute, "fedmerit lab run")
    print_runs([folder])


@commands.add("lab attacks --sites sites --out attacks --kinds zero,noise:from=5 --attackers HK --methods fedce")
@run_options("sites", "rounds", "device", "server_sites", "recipe", "settings", required=["sites"])
def attacks(
    asked: RunOptions,
    out: OutFolder,
    kinds: Annotated[
        str, typer.Option(help="Attacks: all, or repeat, zero, noise, delta, ..., duplicate, split, with parameters.")
    ] = "all",
    methods: Methods = "fedavg,fedce,cgsv",
    attackers: Annotated[
        str | None, typer.Option(metavar="A,B", help="Sites that attack, one in each run.", show_default="all")
    ] = None,
    after: Annotated[str, typer.Option(help="Numbers of rounds at which detection is scored.")] = "10,30,50",
    seeds: Seeds = "0",
    folds: AllFolds = False,
    jobs: Jobs = None,
    cluster: Cluster = None,
) -> None:
    """Simulate attacks of every site under every method: the gain from the attack, and its detection.

    Prints and writes the matrix of methods and attacks, and detection rates. `fedmerit lab paper fedce` draws the
    paper's figures of free riders. Interrupted, the same command resumes. Exits with 1 if a run failed.
    """
    workers = make_workers(jobs, cluster)
    from fedmerit.schema.site_folder import open_sites
    from fedmerit_cli.printing import counting, exit_if_failed, show
    from fedmerit_evaluation.figures.tables import Table, write_tables
    from fedmerit_evaluation.studies.study import find_folds, parse_methods, parse_seeds
    from fedmerit_lab.attacks.attacked_runs import collect_results, execute_runs, parse_attack_kinds, prepare
    from fedmerit_lab.attacks.outcomes import detection_rates, outcomes, tables

    numbers = parse_integers(after, "--after", least=1)
    options = asked.for_study()
    sites = open_sites(options["sites"])
    names = [folder.name for folder in sites]
    try:
        chosen = parse_names(attackers) if attackers else names
    except ValueError as error:
        raise BadInput(f"--attackers {attackers}: {error}") from None
    items, wanted = parse_methods(methods, names, attacked=True), parse_attack_kinds(kinds, sites[0].labels)
    parts, settings = find_folds(options["sites"], folds), asked.all_settings
    runs = prepare(out, items, wanted, chosen, parse_seeds(seeds), settings, options, parts)
    left = sum(not run.finished for run in runs)
    with workers:
        console.print(f"{len(runs)} runs, {left} to do, {workers.number_for(runs[0].folder, left)} at a time")
        with counting("runs", left) as on_end:
            failed = execute_runs(runs, workers, on_end)
    exit_if_failed(failed)
    results = collect_results(runs)
    rates = detection_rates(runs, results, sorted({min(number, asked.rounds) for number in numbers}))
    show([*tables(runs, results), *[rates][: len(rates.frame)]], out)
    write_tables([Table("runs", "", outcomes(runs, results))], out / "tables")
    console.print(f"runs and tables: {out}", soft_wrap=True)


@commands.add("lab protocols runs/fedavg --sites sites")
def protocols(
    run: RunFolder,
    sites: Annotated[Path, typer.Option(help="Any site folders of the same task.")],
    names: Annotated[str, typer.Option("--protocols", metavar="all|NAME,NAME", help="As in docs/metrics.md.")] = "all",
    split: Annotated[Split, typer.Option(help="Cases to score.")] = "testing",
) -> None:
    """Score a run's final models by the scoring protocols of papers."""
    from fedmerit_cli.printing import show
    from fedmerit_evaluation.figures.tables import Table, with_headings
    from fedmerit_evaluation.results.evaluation import list_preparation_differences
    from fedmerit_lab.papers.scoring_protocols import audit

    caption = f"Dice [%] of the same final weights by protocol, {split} split"
    show([Table("protocols", caption, with_headings(audit(run, sites, names, split)), decimals=1)], run)
    for difference in list_preparation_differences(run, sites):
        typer.echo(printable(f"note: {difference}"), err=True)


@commands.add("lab contrasts comparison --baseline fedavg")
def contrasts(
    runs: RunFolders,
    baseline: Annotated[str, typer.Option(help="Label of the method that the others are compared with.")] = "fedavg",
) -> None:
    """Compare methods with a baseline over folds: test Dice of the mean and of the worst hospital, one family."""
    from fedmerit_evaluation.figures.tables import print_table
    from fedmerit_evaluation.results.runs import combine_results, open_runs
    from fedmerit_lab.benchmarks.contrasts import contrast_tables, prepared_folds

    opened = open_runs(expand_runs(runs))
    for table in contrast_tables(combine_results(opened), baseline, prepared_folds(opened)):
        print_table(table, console)


@commands.add("lab leaderboard benchmarks/contribution --add bench/sizes-sites4/entries.csv --task generated-sizes")
def leaderboard(
    folder: Annotated[Path, typer.Argument(help="Has tasks.json and results.csv.", show_default=False)],
    add: Annotated[
        Path | None, typer.Option(help="entries.csv of a scenario of `lab bench values`, to add.", show_default="none")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Task of tasks.json that --add measured.")] = None,
) -> None:
    """Add what was measured of contribution estimators to a leaderboard, and write its page."""
    from fedmerit_lab.benchmarks.leaderboard import add_entries, render

    if (add is None) != (task is None):
        raise BadInput(f"--{'task' if add else 'add'}: missing; --add and --task belong together")
    if add is not None and task is not None:
        add_entries(folder, add, task)
    console.print(f"page: {render(folder)}", soft_wrap=True)


@commands.add("lab inversion --sites sites --out inversion --cases sgd-1,default-patient --seeds 0,1,2")
def inversion(
    out: OutFolder,
    sites: Annotated[Path, typer.Option(help="Site folders to attack, of each seed another one.")],
    cases: Annotated[
        str, typer.Option(help="Some of those of docs/studies/gradient-inversion.md, or all.", metavar="all|NAME,NAME")
    ] = "all",
    seeds: Seeds = "0,1,2",
    iterations: Annotated[int, typer.Option(min=8, help="Of the attacker's optimiser.")] = 200,
    variation: Annotated[float, typer.Option(min=0, help="Weight of the total variation.")] = 0.01,
) -> None:
    """Reconstruct training images from a site's update (gradient inversion), and compare them with the images.

    Writes only numbers. Takes minutes to hours; interrupted, the same command resumes.
    """
    from fedmerit_evaluation.figures.tables import print_table
    from fedmerit_evaluation.studies.study import parse_seeds
    from fedmerit_lab.privacy.gradient_inversion import CASES, ImageSearch, measure, summarise

    chosen = list(CASES) if cases == "all" else parse_names(cases)
    how = ImageSearch(iterations, variation)
    rows = measure(out, sites, chosen, parse_seeds(seeds), how, lambda what: console.print(what, soft_wrap=True))
    print_table(summarise(rows), console)
    console.print(f"all measurements: {out}", soft_wrap=True)
