"""``fedmerit job``: NVFlare jobs of a deployed federation, from export to the run folder."""

import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmerit.errors import BadInput, printable
from fedmerit.schema.configuration.options import JOB_WAITING, RunOptions
from fedmerit_cli.options import TASKS, run_options
from fedmerit_cli.terminal import Commands, console, print_line

if TYPE_CHECKING:
    from fedmerit_deploy.status import FederationState

AdminKit = Annotated[Path, typer.Option(envvar="FEDMERIT_KIT", help="The admin's startup kit.")]
JobId = Annotated[str, typer.Argument(help="Id that `fedmerit job submit` printed.")]

commands = Commands("Jobs of a deployed federation: export, submit, follow, fetch, resume.")
HERE = ("out", "engine", "only", "threads", "device")  # options of runs on this machine
EXPORTED = [name for name in RunOptions.model_fields if name not in HERE]


@commands.add("job export --method fedce --task prostate --out jobs/fedce --min-sites 4")
@run_options(*EXPORTED, required=["method"], defaults=JOB_WAITING._asdict())
def export(
    asked: RunOptions,
    out: Annotated[Path, typer.Option(help="Job folder to write.")],
    task: Annotated[str | None, typer.Option(metavar="NAME", help=f"{', '.join(TASKS)}; or give --sites.")] = None,
    study: Annotated[
        str, typer.Option(help="That it is for, as hospitals that bind themselves to studies name it.")
    ] = "",
    byoc: Annotated[bool, typer.Option("--byoc", help="Include fedmerit's code, for machines that allow it.")] = False,
) -> None:
    """Write an NVFlare job folder, ready to submit.

    --sites takes folders of any task, prepared as the hospitals' are: one hospital's, or generated ones. --server-sites
    says that the server has images of its own, which its kit names.
    """
    from fedmerit.engines.nvflare.recipe import export_job
    from fedmerit.engines.runs import job_configuration
    from fedmerit.files import folder_digest

    if (task is None) == (asked.sites is None):
        raise BadInput("--task or --sites: expected one of them; --sites takes folders of any task")
    if task is not None and task not in TASKS:
        raise BadInput(f"task {task!r}: unknown; expected one of {', '.join(TASKS)}, or --sites SITES")
    config, filters = job_configuration(asked, task)
    config = replace(config, study=study)
    job = out.resolve()  # an earlier export there is moved away and replaced
    export_job(config, job, asked.waiting, byoc=byoc, privacy=filters, track=asked.track)
    console.print(f"job folder: {out}\nSHA-256 of its files: {folder_digest(job)}", soft_wrap=True)


@commands.add("job submit jobs/fedce --kit admin@example.org")
def submit(
    job: Annotated[Path, typer.Argument(help="Job folder that `fedmerit job export` wrote.")], kit: AdminKit
) -> None:
    """Submit a job to a deployed federation; prints its id."""
    from fedmerit_deploy import session

    with session.session(kit) as opened:
        job_id = session.submit(opened, job)
        connected = session.connected(opened)
    console.print(f"job: {job_id}", soft_wrap=True)
    console.print(f"connected sites: {', '.join(connected) or 'none yet; the job waits for them'}", soft_wrap=True)


@commands.add("job status --kit admin@example.org")
def status(
    kit: AdminKit,
    job: Annotated[str | None, typer.Argument(help="Id of one job; without it, all jobs.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write it as a page that refreshes itself, until Ctrl-C.")] = None,
    metrics: Annotated[
        Path | None,
        typer.Option(metavar="FILE.prom", help="Write it for Prometheus, whose node exporter reads it, until Ctrl-C."),
    ] = None,
    every: Annotated[int, typer.Option(min=0, help="Seconds between looks of --html and --metrics; 0: once.")] = 15,
) -> None:
    """Show sites and jobs: who is connected, how each site is, what to look at, how far jobs are and how they ended."""
    from fedmerit_deploy import session
    from fedmerit_deploy.commands.status_output import print_federation
    from fedmerit_deploy.job_ends import explain_end
    from fedmerit_deploy.status import read_federation

    state = read_federation(kit, job)
    if html is not None or metrics is not None:
        _keep_showing(kit, job, state, html, metrics, every)
    elif as_json:
        console.print_json(data=state.to_dict(), default=str)
    else:
        print_federation(state)
        for text in (*session.explain_refusal(state.jobs[0]), *explain_end(state.jobs[0])) if job else ():
            print_line(text)


def _keep_showing(
    kit: Path, job: str | None, state: "FederationState", html: Path | None, metrics: Path | None, every: int
) -> None:
    """Write page and metrics again and again; while the server does not answer, with the last state."""
    from fedmerit.errors import RunFailed
    from fedmerit.files import write_text
    from fedmerit_deploy.commands.status_output import describe_metrics, write_status_page
    from fedmerit_deploy.status import read_federation

    problem = ""
    while True:
        if html is not None:
            write_status_page(html, state, every, problem)
        if metrics is not None:
            write_text(metrics, describe_metrics(state))
        if not every:
            return
        time.sleep(every)
        try:
            state, problem = read_federation(kit, job), ""
        except (BadInput, RunFailed) as error:
            problem = f"not of now: {error}"


@commands.add("job fetch 3f2a --kit admin@example.org --out runs/fedce")
def fetch(job: JobId, kit: AdminKit, out: Annotated[Path, typer.Option(help="Run folder to write.")]) -> None:
    """Fetch the run folder of a finished job."""
    from fedmerit_deploy import session
    from fedmerit_deploy.job_ends import explain_end

    with session.session(kit) as opened:
        session.fetch(opened, job, out)
        ended = explain_end(session.job(opened, job))
    console.print(f"run folder: {out}", soft_wrap=True)
    for text in ended:
        print_line(text)


@commands.add("job abort 3f2a --kit admin@example.org")
def abort(job: JobId, kit: AdminKit) -> None:
    """Stop a job."""
    from fedmerit_deploy import session

    with session.session(kit) as opened:
        session.abort(opened, job)
    console.print(f"stopped: {job}", soft_wrap=True)


@commands.add("job resume 3f2a --kit admin@example.org")
def resume(job: JobId, kit: AdminKit) -> None:
    """Resume the run of a job that ended early, or that lost a site which is back: a new job, the same run."""
    from fedmerit_deploy import session

    with session.session(kit) as opened:
        new = session.resume(opened, job)
    console.print(f"job: {new}", soft_wrap=True)


@commands.add("job remove 3f2a HK --kit admin@example.org")
def remove(
    job: JobId, site: Annotated[str, typer.Argument(metavar="SITE", help="Site to leave out.")], kit: AdminKit
) -> None:
    """Repeat a run without a site, from round 0: a model that never saw it.

    A job at work is stopped; its run stays at the server, with its ledger.
    """
    from fedmerit_deploy import session
    from fedmerit_deploy.session import remove_site

    with session.session(kit) as opened:
        new = remove_site(opened, job, site)
    console.print(f"job: {new}", soft_wrap=True)


@commands.add("job watch 3f2a --kit admin@example.org --log watch.log")
def watch(
    job: JobId,
    kit: AdminKit,
    log: Annotated[Path | None, typer.Option(help="File to which each decision is added.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Resumptions in a row without a complete round.")] = 10,
    site_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for the last round's sites; then --min-sites do.")
    ] = 600.0,
) -> None:
    """Keep a run at work: resume its job whenever it ended early, until it has come to its end.

    Not against an admin who stopped it, and not after an error that would repeat; then it exits with 1.
    """
    from fedmerit_deploy.watch import Decision, Supervisor
    from fedmerit_deploy.watch import watch as keep_at_work

    def show(job_id: str, decision: Decision) -> None:
        when = datetime.now().astimezone().isoformat(timespec="seconds")
        line = printable(f"{when} {job_id} {decision.action}: {decision.reason}")
        print_line(line)
        if log is not None:
            with log.open("a") as file:
                file.write(line + "\n")

    keep_at_work(kit, job, Supervisor(limit, site_timeout), show)
