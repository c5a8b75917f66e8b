"""Commands on finished runs: fairness, report, verify, evaluate."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedmerit.errors import BadInput, printable
from fedmerit_cli.options import Draws, GroundTruth
from fedmerit_cli.terminal import Commands, console, option_in, print_error, print_line

if TYPE_CHECKING:
    import pandas as pd

    from fedmerit.evidence.verification.run import Verification

RunFolder = Annotated[Path, typer.Argument(help="Run folder.")]
RunFolders = Annotated[list[Path], typer.Argument(help="Run folders, or folders of them as `compare` writes.")]
Split = Literal["training", "validation", "testing", "server_validation"]

commands = Commands()

REPORT_PARTS = ("report.html", "report-files", "figures", "tables")  # a report among runs, which `runs/*` names too


def expand_runs(paths: Sequence[Path]) -> list[Path]:
    """Return the run folders among ``paths``, those of ``compare`` in the order of its methods, others by name.

    Raises:
        BadInput: a path is of site folders.
    """
    from fedmerit_evaluation.studies.comparison import in_order_of_methods

    found: list[Path] = []
    runs = [path for path in paths if path.name not in REPORT_PARTS or (path / "run.json").exists()]
    for path in runs or paths:
        below = sorted(file.parent for file in path.glob("*/run.json"))
        is_run = (path / "run.json").exists()
        if not (is_run or below) and ((path / "site.json").exists() or any(path.glob("*/site.json"))):
            raise BadInput(f"{path}: these are site folders; name a run folder, which `fedmerit run` wrote")
        found += [path] if is_run or not below else in_order_of_methods(path, below)
    return found


@commands.add("fairness cmp --ground-truth values --out tables", reads_records=True)
def fairness(
    runs: RunFolders,
    standalone: Annotated[
        list[str] | None,
        typer.Option(help="Local training: a method's label, or run folders.", show_default="runs of standalone"),
    ] = None,
    ground_truth: GroundTruth = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write the tables into, as CSV and LaTeX.")] = None,
    split: Annotated[
        Literal["testing", "union"], typer.Option(help="Each site's own test cases, or those of all sites.")
    ] = "testing",
    label: Annotated[str | None, typer.Option(help="Only this label.", show_default="mean over labels")] = None,
    draws: Draws = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the intervals.")] = 0,
) -> None:
    """Measure how fair methods are, with 95 % CIs: Tables 2 and 3 of the FedCE paper, and further measures."""
    from fedmerit_evaluation.fairness.measurement import measure_runs, write_fairness
    from fedmerit_evaluation.figures.tables import print_table

    found, notes = measure_runs(runs, standalone or [], ground_truth, split=split, label=label, draws=draws, seed=seed)
    for table in found.tables:
        print_table(table, console)
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    if out:
        write_fairness(found, notes, out)
        console.print(f"tables: {out}", soft_wrap=True)


@commands.add("report runs/fedce runs/standalone --out report.html --no-images", reads_records=True)
def report(
    runs: RunFolders,
    out: Annotated[Path | None, typer.Option(help="Folder to write report.html into, or an .html file.")] = None,
    sites: Annotated[Path | None, typer.Option(help="Site folders for overlays, if not the run's own.")] = None,
    images: Annotated[bool, typer.Option(help="Overlays of image, reference and prediction.")] = True,
    ground_truth: GroundTruth = None,
    site: Annotated[
        str | None, typer.Option(help="Only for this hospital: itself by name, the others as a rounded median.")
    ] = None,
    failure: Annotated[
        float, typer.Option(min=0, max=1, help="Patients with a Dice below this count as failed segmentations.")
    ] = 0.5,
    verify: Annotated[
        bool, typer.Option("--verify", help="Verify the runs before, with the sites' logs in their folders.")
    ] = False,
) -> None:
    """Write one self-contained HTML report of one or several runs, with tables and figures beside it."""
    from fedmerit_evaluation.report.report import write_report

    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        out = out / "report.html"
    folders = expand_runs(runs)
    path = write_report(
        folders, out, site=site, sites=sites, images=images, ground_truth=ground_truth, failure=failure, verify=verify
    )
    console.print(f"report: {path.resolve()}", soft_wrap=True)


@commands.add("verify runs/fedce --site-log HK/site_log.jsonl --certificate kit/startup/rootCA.pem")
def verify(
    run: RunFolder,
    site_log: Annotated[
        list[Path] | None,
        typer.Option(help="A site's own site_log.jsonl to compare with the ledger; may be repeated for several sites."),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(help="The rootCA.pem of a startup kit, or the server's certificate: who must have signed."),
    ] = None,
    server: Annotated[
        str | None, typer.Option(help="The server's name.", show_default="as in the kit of --certificate")
    ] = None,
    at: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d"], help="Day on which certificates have to be valid.", show_default="today"),
    ] = None,
    payout: Annotated[
        Path | None,
        typer.Option(help="A payout.json to recompute from this run and those beside it; give the logs of all."),
    ] = None,
) -> None:
    """Recompute the hash chain of a run's ledger; check signatures, results, models and sites' logs against it.

    Exit codes: 0, all is shown; 3, nothing contradicts, but the outcome rests on the server's word; 1, contradicted.
    """
    from fedmerit.evidence.signatures import Trust
    from fedmerit.evidence.verification.run import examine_run

    if certificate is None and (server or at):
        raise BadInput("--server, --at: they belong to --certificate; give that too")
    trust = Trust(certificate, server, at and at.replace(tzinfo=UTC)) if certificate else None
    logs = site_log or []
    if payout:
        from fedmerit_dossier.payout_statement import divide_logs

        with ended_by_contradiction():
            logs = divide_logs(payout, run, logs)[run.resolve()]
    found = examine_run(run, logs, trust)
    if found.faults:
        print_faults(found)
        raise typer.Exit(1)
    print_line(f"{run}: {found.records} records, the hash chain is intact")
    unsigned = "not signed: anybody with access to the run folder could have written it"
    print_line(f"signed by {found.signer}" if found.signer else unsigned)
    for path, (site, updates) in zip(logs, found.updates.items(), strict=True):
        agreement = f"{updates} updates in both, {found.answers.get(site, 0)} of its measurements in results.csv"
        print_line(f"{path}: the log of {site}, its hash chain intact, agrees: {agreement}")
    for given in found.peer_models:
        text = f"{given.giver} gave {given.receiver} a model in {given.models} rounds, by the logs of both"
        rounds = ", ".join(map(str, given.lost))
        lost = f"; in rounds {rounds} the model did not arrive, by the log of {given.receiver}" if rounds else ""
        print_line(text + lost)
    for shown in found.work:
        by = f", by {shown.auditor}" if shown.auditor else ""
        print_line(f"{shown.site}: {len(shown.repeated)} of {len(shown.drawn)} drawn steps repeated{by}")
    for question in found.unproven:
        print_line(f"not shown: {question}{question.moved.text if question.moved else ''}")
    if payout:
        from fedmerit_dossier.payout_statement import verify_payout

        others: list[str] = []
        with ended_by_contradiction():
            signed = verify_payout(payout, run, trust, site_log or (), others.append)
        by = f"signed by {signed}" if signed else "not signed"
        print_line(f"{payout}: recomputed from its runs, the same values, amounts and card; {by}")
        for other in others:
            print_line(f"not shown: {other}")
        if others and not found.unproven:
            print_line("nothing contradicts; but other runs of the payout rest on the server's word")
            raise typer.Exit(NOT_SHOWN)
    if found.unproven:
        print_line(f"nothing contradicts; but the outcome rests on the server's word: {rests_on(found)}")
        raise typer.Exit(NOT_SHOWN)
    print_line("all is shown")


NOT_SHOWN = 3  # exit code of `verify`: nothing contradicts, and something rests on one side's word
MOST_OF_KIND = 5  # contradictions of a kind that are printed


@contextmanager
def ended_by_contradiction() -> Iterator[None]:
    """Print a contradiction of the block as an error, and end the command with 1."""
    from fedmerit.evidence.verification.findings import Contradiction

    try:
        yield
    except Contradiction as error:
        print_error(str(error))
        raise typer.Exit(1) from None


def print_faults(found: "Verification") -> None:
    """Print contradictions as errors, each with whose signature convicts whom; of each kind the first few."""
    for kind in dict.fromkeys(fault.kind for fault in found.faults):
        faults = [fault for fault in found.faults if fault.kind == kind]
        for fault in faults[:MOST_OF_KIND]:
            print_error(str(BadInput(f"{fault} [{found.attribute(fault)}]")))
        if len(faults) > MOST_OF_KIND:
            print_error(f"{len(faults) - MOST_OF_KIND} more of this kind: {kind}")


def rests_on(found: "Verification") -> str:
    """Return how far what a verification leaves open could have moved a weight."""
    moved = found.moved
    place = f" ({moved.site}, round {moved.round})" if moved.site else ""
    if not moved.weight:
        return "what is not shown moves no weight"
    return f"what is not shown could have moved a weight by up to {moved.weight:.3f}{place}"


RAW_IMAGES = "Raw images"


@commands.add("evaluate runs/fedce --sites other_hospitals", reads_records=True)
def evaluate(
    sites: Annotated[Path, typer.Option(help="Any site folders of the same task.")],
    run: Annotated[Path | None, typer.Argument(help="Run folder; with --masks none.")] = None,
    split: Annotated[Split, typer.Option(help="Cases to evaluate on.")] = "testing",
    estimate_statistics: Annotated[
        bool,
        typer.Option(
            "--estimate-statistics",
            help="Estimate BatchNorm statistics on each site's training images, without labels: for unseen hospitals.",
        ),
    ] = False,
    metric: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A metric to add, nsd_area or a plugin's; may be repeated.")
    ] = None,
    masks: Annotated[
        Path | None, option_in(RAW_IMAGES, "Score masks of another program: files CASE_LABEL, or CASE, of raw images.")
    ] = None,
    grid: Annotated[
        Literal["stored", "own"], option_in(RAW_IMAGES, "own: also on the grid of each raw image.")
    ] = "stored",
    source: Annotated[
        Path | None, option_in(RAW_IMAGES, "The raw data that the sites were prepared from, for the two above.")
    ] = None,
    out: Annotated[
        Path | None, option_in(RAW_IMAGES, "Folder for the tables of the two above.", show_default="RUN/evaluation")
    ] = None,
) -> None:
    """Compute Dice, HD95 [mm] and NSD of a run's final models, or of masks, on any site folders."""
    from fedmerit_evaluation.results.evaluation import evaluate as evaluate_run
    from fedmerit_evaluation.results.evaluation import list_preparation_differences

    if (run is None) == (masks is None):
        raise BadInput("RUN or --masks FOLDER: expected one of them")
    if (masks or grid == "own") and source is None:
        raise BadInput("--source: missing; name the raw data that the sites were prepared from")
    if source is not None and not (masks or grid == "own"):
        raise BadInput(
            "--source: belongs to --grid own or --masks, which read raw data; give one of them or leave it out"
        )
    if masks and out is None:
        raise BadInput("--out: missing; name a folder for the tables")
    if (masks or grid == "own") and estimate_statistics:
        raise BadInput("--estimate-statistics: belongs to models on the stored grid; leave it out")
    added = metric or ()
    if run is not None:
        scores = evaluate_run(run, sites, split, estimated=estimate_statistics, metrics=added, note=_warn)
        _print_scores(scores, split, added)
        for difference in list_preparation_differences(run, sites):
            typer.echo(printable(f"note: {difference}"), err=True)
    for one in ["stored"] * (masks is not None) + ["own"] * (grid == "own"):
        assert source is not None
        _score_raw(run, masks, sites, source, split, one, added, out)


def _warn(text: str) -> None:
    typer.echo(printable(f"WARNING: {text}"), err=True)


def _score_raw(
    run: Path | None,
    masks: Path | None,
    sites: Path,
    source: Path,
    split: str,
    grid: str,
    metrics: Sequence[str],
    out: Path | None,
) -> None:
    """Score a run's models or masks of another program by the raw images, and write the table."""
    from fedmerit_data.tables import write_csv
    from fedmerit_evaluation.models import own_grid

    if masks is not None:
        table = own_grid.evaluate_masks(masks, sites, source, split, grid, metrics)
    else:
        assert run is not None
        table = own_grid.evaluate_run(run, sites, source, split, grid, metrics, _warn)
    file = (out or Path(str(run)) / "evaluation") / f"{split}-{sites.resolve().name}-{grid}-grid.csv"
    write_csv(file, table)
    console.print(f"on the {grid} grid: {file}", soft_wrap=True)
    _print_scores(table, split, metrics)


def _print_scores(rows: "pd.DataFrame", split: str, metrics: Sequence[str]) -> None:
    from fedmerit_evaluation.figures.tables import print_table
    from fedmerit_evaluation.results.views import Dice

    print_table(Dice(rows, split).sites, console)
    if metrics:
        means = rows[rows["quantity"].isin(metrics)].groupby(["site", "quantity"])["value"].mean().unstack()
        print_table(means.reset_index(), console)
