"""Commands on finished runs: evaluate, report, dossier, figure, verify."""

from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedmerit.errors import BadInput, printable
from fedmerit_cli.app import Truth, console, tell

RunFolder = Annotated[Path, typer.Argument(help="Run folder.")]
RunFolders = Annotated[list[Path], typer.Argument(help="Run folders.")]

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
    run: RunFolder,
    sites: Annotated[Path, typer.Option(help="Folder of any site folders of the same task.")],
    split: Annotated[Split, typer.Option(help="Which cases.")] = Split.testing,
    protocols: Annotated[
        str | None,
        typer.Option(metavar="all|NAME,NAME", help="Score the same weights as papers do: docs/protocols.md."),
    ] = None,
    estimate_statistics: Annotated[
        bool,
        typer.Option(
            "--estimate-statistics",
            help="BatchNorm statistics by each site's own training images, no label read: for hospitals that took no "
            "part.",
        ),
    ] = False,
    metric: Annotated[
        list[str] | None, typer.Option(help="A metric of others to add, by name: docs/extending.md.")
    ] = None,
) -> None:
    """Dice, HD95 and NSD of a run's final model, or models, on any site folders."""
    from fedmerit_cli.printing import show
    from fedmerit_evaluation.figures.tables import Table, print_table, with_headings
    from fedmerit_evaluation.results.dice import Dice
    from fedmerit_evaluation.results.evaluation import evaluate as evaluate_run
    from fedmerit_evaluation.results.evaluation import list_preparation_differences
    from fedmerit_evaluation.results.scoring_protocols import audit

    if protocols is not None and estimate_statistics:
        raise BadInput("--estimate-statistics: not with --protocols, which score the model as it is; leave one out")
    if protocols is not None and metric:
        raise BadInput(f"--metric {metric[0]}: not with --protocols, which tell Dice, HD95 and NSD; leave one out")
    if protocols is not None:
        caption = f"Dice [%] of the same final weights by protocol, {split.value} split"
        show([Table("protocols", caption, with_headings(audit(run, sites, protocols, split.value)), decimals=1)], run)
    else:
        rows = evaluate_run(run, sites, split.value, estimated=estimate_statistics, metrics=metric or ())
        print_table(Dice(rows, split.value).sites, console)
        if metric:
            means = rows[rows["quantity"].isin(metric)].groupby(["site", "quantity"])["value"].mean().unstack()
            print_table(means.reset_index(), console)
    for unlike in list_preparation_differences(run, sites):
        typer.echo(printable(f"note: {unlike}"), err=True)


@commands.command()
def report(
    runs: RunFolders,
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
    from fedmerit_evaluation.report.all_sites import write_report
    from fedmerit_evaluation.report.one_site import write_site_report

    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        out = out / "report.html"
    if site is None:
        path = write_report(runs, out, sites=sites, images=images, ground_truth=truth)
    else:
        path = write_site_report(runs, site, out, sites=sites, images=images, ground_truth=truth)
    console.print(f"report: {path.resolve()}", soft_wrap=True)


@commands.command()
def dossier(
    runs: RunFolders,
    out: Annotated[Path, typer.Option(help="Folder to write dossier.html and its tables into.")],
    sites: Annotated[Path | None, typer.Option(help="Site folders, if not the run's own.")] = None,
) -> None:
    """What journals and regulators ask for: CLAIM, TRIPOD+AI, FUTURE-AI, a model card, EU AI Act, HL7 FLUTE.

    Every item with the evidence that runs and site folders hold, or whom to ask.
    """
    from fedmerit_evaluation.dossier.dossier import write_dossier

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

    from fedmerit_evaluation.figures.tables import print_table
    from fedmerit_lab.papers import approximation

    cells = approximation.grid(largest_sites)
    bar = partial(track, description=name.value, console=console)
    table = approximation.compare(cells, repeats=repeats, seed=seed, track=bar)
    print_table(approximation.shown(table), console)
    for path in approximation.write(table, out):
        console.print(str(path), soft_wrap=True)


@commands.command()
def verify(
    run: RunFolder,
    site_log: Annotated[
        list[Path] | None,
        typer.Option(
            help="A site's own site_log.jsonl, to compare with the ledger; of several sites, repeated, also with "
            "each other."
        ),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(help="The rootCA.pem of a startup kit, or the server's certificate: who must have signed."),
    ] = None,
    server: Annotated[
        str | None, typer.Option(help="The server's name.", show_default="as the kit of --certificate has it")
    ] = None,
    at: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d"], help="A day on which the run was there: certificates have to be valid then, not now."
        ),
    ] = None,
) -> None:
    """Recompute the hash chain of a run's ledger; check signatures, results, models, and sites' own logs against it."""
    from fedmerit.records.certificates import Trust
    from fedmerit.verification.run import verify_run

    if certificate is None and (server or at):
        raise BadInput("--server, --at: say more of --certificate; give that too")
    trust = Trust(certificate, server, at and at.replace(tzinfo=UTC)) if certificate else None
    found = verify_run(run, site_log or (), trust)
    tell(f"{run}: {found.records} records, the chain is whole")
    unsigned = "not signed: whoever had the run folder could have written it"
    tell(f"signed by {found.signer}" if found.signer else unsigned)
    for path, (site, updates) in zip(site_log or (), found.updates.items(), strict=True):
        answers = found.answers.get(site, 0)
        told = f"{updates} updates in both, {answers} of its measurements in results.csv"
        tell(f"{path}: the log of {site}, its chain whole, agrees: {told}")
    for given in found.peer_models:
        told = f"{given.giver} gave {given.receiver} a model in {given.models} rounds, by the logs of both"
        rounds = ", ".join(map(str, given.lost))
        lost = f"; in rounds {rounds} what left did not arrive, by the log of {given.receiver}" if rounds else ""
        tell(told + lost)
    for sentence in found.unproven:
        tell(f"not shown: {sentence}")
