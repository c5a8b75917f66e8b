"""The command that makes a paper's tables and figures for other sites: paper."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmerit.configuration.recipes import PAPER, ROUNDS
from fedmerit.errors import BadInput
from fedmerit_cli.app import (
    Cluster,
    Device,
    Jobs,
    Preset,
    Recipe,
    ServerSites,
    Settings,
    Sites,
    console,
    settings_of,
    workers_of,
)

if TYPE_CHECKING:
    from fedmerit_lab.papers.artefact import Artefact, Paper

commands = typer.Typer()


@commands.command()
def paper(
    name: Annotated[
        str, typer.Argument(help="fedce, cgsv, fedave, fedsac or cycle.", metavar="PAPER", show_default=False)
    ],
    sites: Annotated[Path | None, Sites] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of trainings, tables and figures; what is trained stays.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="Some: table1,figure3.", show_default="all")] = None,
    listed: Annotated[bool, typer.Option("--list", help="What there is, and what it costs; nothing is run.")] = False,
    rounds: Annotated[int, typer.Option(help="Rounds of each training.")] = ROUNDS,
    seeds: Annotated[str, typer.Option(help="Of each training.")] = "0,1,2",
    into: Annotated[int, typer.Option(help="Sites that papers which deal one data set deal it into.")] = 5,
    jobs: Jobs = None,
    cluster: Cluster = None,
    device: Device = None,
    server_sites: ServerSites = None,
    settings: Settings = None,
    recipe: Recipe = None,
    preset: Preset = None,
) -> None:
    """Make a paper's tables and figures for these sites, with the paper's own numbers beside them.

    Interrupted, the same command goes on. Exits with 1 where a training failed or something could not be made.
    """
    from fedmerit_cli.progress import exit_if_failed, progress, resumable
    from fedmerit_evaluation.studies.study_folders import parse_seeds
    from fedmerit_lab.papers.production import chosen, find_paper, produce
    from fedmerit_lab.papers.study import Study

    found = find_paper(name)
    artefacts = chosen(found, only)
    if listed:
        _print_list(found, artefacts if only else found.artefacts, artefacts, sites, into)
        return
    if sites is None or out is None:
        raise BadInput(f"--{'sites' if sites is None else 'out'}: missing; --list shows what there is without them")
    workers = workers_of(jobs, cluster)
    for option, value in (("--rounds", rounds), ("--into", into)):
        if value < 1:
            raise BadInput(f"{option} {value}: expected 1 or more")
    study = Study(
        out,
        sites,
        rounds,
        parse_seeds(seeds),
        into=into,
        settings=settings_of(settings, recipe, preset=name if preset == PAPER else preset),
        device=device,
        server_sites=server_sites,
    )
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
    """Every artefact with the trainings of one seed that it takes, all ``asked`` together, and what is not made."""
    import pandas as pd

    from fedmerit.trainers.monai_trainer.data import open_sites
    from fedmerit_evaluation.figures.tables import Table, print_table
    from fedmerit_lab.papers.production import trainings_per_seed

    frame = pd.DataFrame(
        {
            "Artefact": [artefact.name + " *" * artefact.on_demand for artefact in artefacts],
            "What": [artefact.what for artefact in artefacts],
            "Trainings of a seed": [artefact.cost for artefact in artefacts],
        }
    )
    print_table(Table("list", "", frame), console)
    if any(artefact.on_demand for artefact in artefacts):
        console.print("*: made where --only names it: it deals the patients into a number of sites of its own.")
    for place, why in paper.absent.items():
        console.print(f"not made: {place}: {why}")
    if sites is None:
        console.print("N: number of sites. Artefacts share trainings; --sites SITES counts them.")
        return
    names = [folder.name for folder in open_sites(sites)]
    total = trainings_per_seed(asked, names, into)
    console.print(f"together, for {len(names)} sites: {total} trainings of a seed, shared ones counted once")
