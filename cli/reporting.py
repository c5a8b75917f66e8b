"""Commands on finished runs: evaluate, report, dossier, figure, verify."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from cli.app import Truth, console

commands = typer.Typer()


class Split(StrEnum):
    """A part of a site's cases."""

    training = "training"
    validation = "validation"
    testing = "testing"
    server_validation = "server_validation"


class PaperFigure(StrEnum):
    """A figure of a paper that needs no images."""

    cgsv_approximation = "cgsv-approximation"


@commands.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    sites: Annotated[Path, typer.Option(help="Folder of any site folders of the same task.")],
    split: Annotated[Split, typer.Option(help="Which cases.")] = Split.testing,
    protocols: Annotated[
        str | None,
        typer.Option(metavar="all|NAME,NAME", help="Score the same weights as papers do: docs/protocols.md."),
    ] = None,
) -> None:
    """Dice, HD95 and NSD of a run's final model, or models, on any site folders."""
    from cli.printing import show
    from evaluation.display.table import Table, print_table
    from evaluation.results.dice import Dice
    from evaluation.results.evaluate import evaluate as evaluate_run
    from evaluation.results.protocols import audit

    if protocols is not None:
        caption = f"Dice [%] of the same final weights by protocol, {split.value} split"
        show([Table("protocols", caption, audit(run, sites, protocols, split.value), decimals=1)], run)
        return
    print_table(Dice(evaluate_run(run, sites, split.value), split.value).sites, console)


@commands.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    out: Annotated[Path | None, typer.Option(help="Folder to write report.html into, or an .html file.")] = None,
    sites: Annotated[
        Path | None, typer.Option(help="Site folders to draw overlays from, if not the run's own.")
    ] = None,
    images: Annotated[bool, typer.Option(help="Overlays of image, reference and prediction.")] = True,
    truth: Truth = None,
    site: Annotated[
        str | None, typer.Option(help="For this hospital alone: itself by name, of the others a rounded median.")
    ] = None,
) -> None:
    """One self-contained HTML report of one or several runs, its tables and figures beside it."""
    from evaluation.report.all_sites import write_report
    from evaluation.report.one_site import write_site_report

    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        out = out / "report.html"
    if site is None:
        path = write_report(runs, out, sites=sites, images=images, truth=truth)
    else:
        path = write_site_report(runs, site, out, sites=sites, images=images, truth=truth)
    console.print(f"report: {path.resolve()}", soft_wrap=True)


@commands.command()
def dossier(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    out: Annotated[Path, typer.Option(help="Folder to write dossier.html and its tables into.")],
    sites: Annotated[Path | None, typer.Option(help="Site folders, if not the run's own.")] = None,
) -> None:
    """What journals and regulators ask for: CLAIM, TRIPOD+AI, FUTURE-AI, a model card, EU AI Act, HL7 FLUTE.

    Every item with the evidence that runs and site folders hold, or whom to ask.
    """
    from evaluation.dossier.dossier import write_dossier

    console.print(f"dossier: {write_dossier(runs, out, sites=sites).resolve()}", soft_wrap=True)


@commands.command()
def figure(
    name: Annotated[PaperFigure, typer.Argument(help="Which.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder to write the CSV and the PNG into.")] = Path("figures"),
    repeats: Annotated[int, typer.Option(help="Draws of random updates to average over.")] = 10,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    largest_sites: Annotated[int, typer.Option(help="Largest N; exact values take 2^N coalitions.")] = 20,
) -> None:
    """Reproduce a figure of a paper on random updates: Figure 1 of CGSV, error and time of Shapley values."""
    from rich.progress import track

    from evaluation.display.table import print_table
    from evaluation.papers import approximation

    cells = approximation.grid(largest_sites)
    bar = partial(track, description=name.value, console=console)
    table = approximation.compare(cells, repeats=repeats, seed=seed, track=bar)
    print_table(approximation.shown(table), console)
    for path in approximation.write(table, out):
        console.print(str(path), soft_wrap=True)


@commands.command()
def verify(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    site_log: Annotated[
        list[Path] | None,
        typer.Option(
            help="A site's own site_log.jsonl, to compare with the ledger; of several sites, repeated, also with "
            "each other."
        ),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(help="The server's certificate, or the rootCA.pem of a startup kit: who must have signed."),
    ] = None,
) -> None:
    """Recompute the hash chain of a run's ledger, check its signatures, compare it with sites' own logs."""
    from fedmerit.federation.verification import verify_run

    found = verify_run(run, site_log or (), certificate)
    console.print(f"{run}: {found.records} records, the chain is whole", soft_wrap=True)
    if found.signer:
        console.print(f"signed by {found.signer}", soft_wrap=True)
    else:
        console.print("not signed: the run was made without a server certificate", soft_wrap=True)
    for path, (site, updates) in zip(site_log or (), found.updates.items(), strict=True):
        console.print(f"{path}: the log of {site} is whole and agrees: {updates} updates in both", soft_wrap=True)
    for given in found.peer_models:
        told = f"{given.giver} gave {given.receiver} a model in {given.models} rounds, by the logs of both"
        rounds = ", ".join(map(str, given.lost))
        lost = f"; in rounds {rounds} what left did not arrive, by the log of {given.receiver}" if rounds else ""
        console.print(told + lost, soft_wrap=True)
