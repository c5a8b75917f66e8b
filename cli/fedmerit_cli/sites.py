"""Commands on site folders: prepare, check."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from fedmerit.errors import BadInput, printable
from fedmerit.schema.declarations import parameters
from fedmerit_cli.options import takes
from fedmerit_cli.terminal import Commands, console, option_in, plain_table
from fedmerit_data.options import PreparationOptions

if TYPE_CHECKING:
    from fedmerit_data.checking.findings import Examination, Finding
    from fedmerit_deploy.job_plan import JobPage

PLANS = "A job before it runs"
SHOWN = 3  # warnings and notes of a kind that `check` prints

commands = Commands()


OPTIONS = tuple(name for name in parameters(PreparationOptions) if name != "kind")


@commands.add("prepare generic --source raw --out sites --labels disc=1+2,cup=2 --size 256")
@takes(PreparationOptions, *OPTIONS)
def prepare(
    kind: Annotated[str, typer.Argument(help="Layout of the raw data; an unknown word prints the list.")],
    asked: PreparationOptions,
    out: Annotated[Path | None, typer.Option(help="Folder to write the site folders into.")] = None,
    plan: Annotated[Path | None, typer.Option(help="Plan of `fedmerit data plan`, for volumes.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Concurrent processes.", show_default="cores")] = None,
    pictures: Annotated[bool, typer.Option("--pictures/--no-pictures", help="Draw OUT/overview.")] = True,
    describe: Annotated[
        bool, typer.Option("--describe", help="Show what would be read, one case of each site, and write pairs.csv.")
    ] = False,
) -> None:
    """Convert raw data into site folders. Interrupted, the same command resumes from the last finished cases."""
    from fedmerit.machine import cores

    jobs = cores() if jobs is None else jobs
    if jobs > 1 and not describe:
        from fedmerit_data.preparing.case_processes import begin_processes

        begin_processes(["__main__"])  # which import at the same time as this one, below
    from fedmerit.schema.configuration.data import load_data_plan
    from fedmerit_cli.printing import print_sites
    from fedmerit_data.folders import OVERVIEW
    from fedmerit_data.kinds import GENERIC
    from fedmerit_data.preparation import Preparation
    from fedmerit_data.prepare import describe as describe_sites
    from fedmerit_data.prepare import prepare as prepare_sites
    from fedmerit_data.prepare import write_pairs
    from fedmerit_data.preparing.resumption import count_finished_cases
    from fedmerit_data.readers.lists import PAIRS

    if plan is not None and (asked.size != PreparationOptions.size or asked.field_of_view is not None):
        raise BadInput("--plan: decides size and field of view; leave --size and --field-of-view out")
    data_plan = None if plan is None else load_data_plan(plan)
    preparation = Preparation(**{**vars(asked), "kind": kind}, pictures=pictures, data_plan=data_plan)
    if describe:
        if kind == GENERIC and asked.pairs is None and not Path(PAIRS).exists():
            rows = write_pairs(preparation, Path(PAIRS))
            console.print(
                f"{PAIRS}: {rows} rows, relative to {asked.source}; correct it and give it back with --pairs {PAIRS}",
                soft_wrap=True,
            )
        found = describe_sites(preparation)
        for one in found:
            console.print("\n".join(one.lines(preparation.layout.labels)), soft_wrap=True)
        if any(one.faults for one in found):
            raise typer.Exit(1)
        return
    if out is None:
        raise BadInput("--out: missing; name the folder to write the site folders into, or only --describe")
    try:
        folders = prepare_sites(preparation, out, jobs=jobs)
    except KeyboardInterrupt:
        typer.echo(
            f"stopped; {count_finished_cases(out)} finished cases are kept, and the same command resumes from them",
            err=True,
        )
        raise typer.Exit(130) from None
    print_sites(out, len(folders))
    if pictures:
        console.print(f"pictures: {out / OVERVIEW}; private, they show images of patients", soft_wrap=True)


@commands.add("check sites --out quality")
def check(
    sites: Annotated[Path | None, typer.Argument(help="Folder of site folders.")] = None,
    max_empty: Annotated[
        float, typer.Option(min=0, max=1, help="Largest share of a site's cases with an empty mask.")
    ] = 0.1,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for a report to share: quality.json, .html, .csv; it names no file, case or patient."
        ),
    ] = None,
    private: Annotated[
        Path | None, typer.Option(help="CSV file for the hospital itself: every finding with its file.")
    ] = None,
    names: Annotated[
        bool, typer.Option("--names/--no-names", help="Name files, cases and patients on this terminal.")
    ] = True,
    plan: Annotated[
        Path | None, option_in(PLANS, "Instead of site folders: a job folder, or a run's run.json.", metavar="JOB")
    ] = None,
    kit: Annotated[
        Path | None, option_in(PLANS, "The site's startup kit, whose rules apply.", show_default="the default rules")
    ] = None,
) -> None:
    """Check site folders, or with --plan what a job would do at a site; exits with 1 on an error or a refusal.

    Site folders: complete, unmodified, plausible. A job: what it trains, what leaves the site, what others receive, and
    which rules of the site's manifest allow or refuse it.
    """
    if (sites is None) == (plan is None) or (kit and not plan):
        raise BadInput("SITES or --plan JOB: expected one of them; --kit goes with --plan")
    if plan is not None:
        from fedmerit_deploy.job_plan import examine_job

        page = examine_job(plan, kit)
        _print_job(page)
        raise typer.Exit(int(bool(page.refused)))
    assert sites is not None
    from fedmerit_data.check import examine, write_private, write_shareable
    from fedmerit_data.checking.findings import Severity

    found = examine(sites, max_empty=max_empty)
    _print_findings(found.findings, names)
    console.print(_table(found))
    if out is not None:
        for path in write_shareable(found, out):
            console.print(f"to share: {path}", soft_wrap=True)
    if private is not None:
        write_private(found.findings, private)
        console.print(f"private, names files and patients: {private}", soft_wrap=True)
    errors, warnings, notes = (len(found.of(severity)) for severity in Severity)
    where = f"{sites}: " if names else ""
    if errors:
        console.print(f"{where}{errors} errors, {warnings} warnings, {notes} notes", soft_wrap=True)
        raise typer.Exit(1)
    beyond = f" beyond {warnings} warnings and {notes} notes" if warnings or notes else ""
    console.print(f"{where}nothing wrong{beyond}", soft_wrap=True)


def _print_findings(findings: "Sequence[Finding]", names: bool) -> None:
    """Print every error, and of warnings and notes the first of each kind, with the number of the others."""
    from fedmerit_data.checking.findings import Severity

    kinds = Counter(finding.kind for finding in findings)
    printed: Counter[str] = Counter()
    for finding in findings:
        printed[finding.kind] += 1
        if finding.severity is Severity.error or printed[finding.kind] <= SHOWN:
            typer.echo(printable(f"{finding.severity}: {finding if names else _anonymous_text(finding)}"), err=True)
        elif printed[finding.kind] == kinds[finding.kind]:
            sites = len({other.site for other in findings if other.kind == finding.kind})
            count = f"{kinds[finding.kind] - SHOWN} more {finding.kind!r}, {kinds[finding.kind]} in {sites} site(s)"
            typer.echo(f"{finding.severity}: {count}; --private FILE lists all", err=True)


def _anonymous_text(finding: "Finding") -> str:
    """Return a finding without the names of files, cases and patients."""
    from fedmerit_data.checking.findings import KINDS

    place = " ".join(part for part in (finding.site, finding.split, finding.position) if part)
    return ": ".join(part for part in (place, finding.kind, finding.detail or KINDS[finding.kind][1]) if part)


def _print_job(page: "JobPage") -> None:
    points = plain_table("", "")
    points.show_header = False
    for title, text in page.points:
        points.add_row(Text(title, style="bold"), text)
    console.print(points)
    rules = plain_table("rule", "the job asks for", "this site allows", "")
    for check in page.checks:
        verdict = Text("allowed", style="green") if check.passes else Text("REFUSED", style="bold red")
        rules.add_row(check.rule, check.requested, check.allowed, verdict)
    console.print(rules)
    for check in page.refused:
        console.print(f"refused: {check.sentence}", soft_wrap=True)
    console.print(f"{'refused' if page.refused else 'allowed'} by {page.rules}", soft_wrap=True)


def _table(found: "Examination") -> Table:
    """Return cases and findings of every site by severity, and whether it is unchanged since it was prepared."""
    from fedmerit_data.checking.findings import Severity

    table = plain_table("site", "cases", *(f"{severity}s" for severity in Severity), "arrays", "digest")
    for site in found.sites:
        counts = [str(sum(item.site == site.name for item in found.of(severity))) for severity in Severity]
        state = "as prepared" if site.unchanged else "changed"
        table.add_row(site.name, str(sum(site.cases.values())), *counts, state, site.short_digest)
    return table
