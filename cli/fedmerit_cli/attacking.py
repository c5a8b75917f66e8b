"""Commands on free riders and worse: attack, freeriders."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmerit.configuration.recipes import ROUNDS
from fedmerit.errors import BadInput
from fedmerit_cli.app import (
    Cluster,
    Device,
    Jobs,
    Methods,
    OutFolder,
    Recipe,
    Rounds,
    ServerSites,
    Settings,
    SitesFolder,
    console,
    given,
    parse_names,
    parse_whole,
    settings_of,
    workers_of,
)

if TYPE_CHECKING:
    from fedmerit_evaluation.studies.cluster import Workers
    from fedmerit_lab.attacks.attacked_runs import Attack

KINDS = "repeat, zero, noise, delta, ..., duplicate, split, each with parameters where wanted: noise:from=5."

commands = typer.Typer()


@commands.command()
def attack(
    kind: Annotated[str, typer.Option(help=f"One of {KINDS}")],
    site: Annotated[str, typer.Option(help="The site that attacks.")],
    sites: SitesFolder,
    out: OutFolder,
    method: Annotated[str, typer.Option(help="With parameters where wanted: fedce:combine=plus.")] = "fedce",
    rounds: Rounds = ROUNDS,
    seed: Annotated[int, typer.Option(help="Of both runs.")] = 0,
    jobs: Jobs = None,
    cluster: Cluster = None,
    device: Device = None,
    server_sites: ServerSites = None,
    settings: Settings = None,
    recipe: Recipe = None,
) -> None:
    """One run in which a site attacks, beside the same run in which all are honest: who was flagged, and when.

    Interrupted, the same command goes on. Exits with 1 where a run failed.
    """
    workers = workers_of(jobs, cluster)
    from fedmerit_cli.printing import show
    from fedmerit_lab.attacks.attacked_runs import results_of
    from fedmerit_lab.attacks.outcomes import compare_with_honest

    for option, value in (("--kind", kind), ("--method", method)):
        if "," in value or value == "all":
            raise BadInput(f"{option} {value}: expected one; `fedmerit freeriders` takes several")
    options = given(sites=sites, rounds=rounds, device=device, server_sites=server_sites)
    control, attacked = _train(out, method, kind, [site], str(seed), workers, settings_of(settings, recipe), options)
    show([compare_with_honest(attacked, control, results_of([control, attacked]))], out)
    _say_where(out)


@commands.command()
def freeriders(
    sites: SitesFolder,
    out: OutFolder,
    kinds: Annotated[str, typer.Option(help=f"Attacks: all, or some of {KINDS}")] = "all",
    methods: Methods = "fedavg,fedce,cgsv",
    riding: Annotated[str | None, typer.Option(help="Sites that attack in turn: A,B.", show_default="all")] = None,
    rounds: Rounds = ROUNDS,
    after: Annotated[str, typer.Option(help="Rounds after which the rider is to be named.")] = "10,30,50",
    seeds: Annotated[str, typer.Option(help="Of every run.")] = "0",
    jobs: Jobs = None,
    cluster: Cluster = None,
    device: Device = None,
    server_sites: ServerSites = None,
    settings: Settings = None,
    recipe: Recipe = None,
) -> None:
    """Every site in turn makes every attack under every method: what it pays, and what tells.

    Prints the matrix of methods and attacks; writes tables, Figures 4 and 7 of the FedCE paper, and how often each rule
    names whom. Interrupted, the same command goes on. Exits with 1 where a run failed.
    """
    workers = workers_of(jobs, cluster)
    from fedmerit.trainers.monai_trainer.data import open_sites
    from fedmerit_cli.printing import show
    from fedmerit_evaluation.figures.drawing import png
    from fedmerit_evaluation.figures.pages import save_png
    from fedmerit_evaluation.figures.tables import Table, file_name, write_tables
    from fedmerit_lab.attacks.attacked_runs import results_of
    from fedmerit_lab.attacks.detection_rules import detection_rates
    from fedmerit_lab.attacks.figures import detection_rate_figures, figures
    from fedmerit_lab.attacks.outcomes import outcomes, rocs, tables

    numbers = parse_whole(after, "--after", least=1)
    names = [folder.name for folder in open_sites(sites)] if riding is None else parse_names(riding, "--riding")
    options = given(sites=sites, rounds=rounds, device=device, server_sites=server_sites)
    attacks = _train(out, methods, kinds, names, seeds, workers, settings_of(settings, recipe), options)
    results = results_of(attacks)
    named = detection_rates(attacks, results, sorted({min(number, rounds) for number in numbers}))
    show([*tables(attacks, results), *[named][: len(named.frame)]], out)
    details = {"runs": outcomes(attacks, results), "roc": rocs(attacks, results)}
    write_tables([Table(name, "", frame) for name, frame in details.items()], out / "tables")
    for name, figure in (figures(attacks, results) | detection_rate_figures(named.frame)).items():
        save_png(out / "figures" / f"{file_name(name)}.png", png(figure))
    _say_where(out)


def _train(
    out: Path,
    methods: str,
    kinds: str,
    riding: Sequence[str],
    seeds: str,
    workers: "Workers",
    settings: Mapping[str, str],
    options: Mapping[str, Any],
) -> "list[Attack]":
    """All runs, controls first, those that are missing trained; exit code 1 where one failed."""
    from fedmerit.trainers.monai_trainer.data import open_sites
    from fedmerit_cli.progress import counting, exit_if_failed
    from fedmerit_evaluation.studies.study_folders import parse_methods, parse_seeds
    from fedmerit_lab.attacks.attacked_runs import parse_attack_kinds, prepare, work_off

    folders = open_sites(options["sites"])
    items = parse_methods(methods, [folder.name for folder in folders], attacked=True)
    chosen = parse_attack_kinds(kinds, folders[0].labels)
    attacks = prepare(out, items, chosen, riding, parse_seeds(seeds), settings, options)
    left = sum(not attack.finished for attack in attacks)
    with workers:
        console.print(f"{len(attacks)} runs, {left} to do, {workers.number_for(attacks[0].folder, left)} at a time")
        with counting("runs", left) as on_end:
            failed = work_off(attacks, workers, on_end)
    exit_if_failed(failed)
    return attacks


def _say_where(out: Path) -> None:
    console.print(f"runs, tables and figures: {out}", soft_wrap=True)
