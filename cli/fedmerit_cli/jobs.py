"""``fedmerit job``: NVFlare jobs of a deployed federation, from export to the run folder."""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmerit.errors import BadInput, printable
from fedmerit.options import JOB_WAITING, RunOptions
from fedmerit_cli.options import TASKS, run_options
from fedmerit_cli.terminal import Commands, console, last_round, plain_table, print_line

if TYPE_CHECKING:
    from fedmerit.flare.deploy.site_states import SiteState

AdminKit = Annotated[Path, typer.Option(envvar="FEDMERIT_KIT", help="The admin's startup kit.")]
JobId = Annotated[str, typer.Argument(help="Id that `fedmerit job submit` printed.")]

commands = Commands("Jobs of a deployed federation: export, submit, follow, fetch, resume.")
HERE = ("out", "engine", "only", "threads", "device", "attacks")  # options of runs on this machine
EXPORTED = [name for name in RunOptions.model_fields if name not in HERE]


@commands.add("job export --method fedce --task prostate --out jobs/fedce --min-sites 4")
@run_options(*EXPORTED, required=["method"], defaults=JOB_WAITING._asdict())
def export(
    asked: RunOptions,
    out: Annotated[Path, typer.Option(help="Job folder to write.")],
    task: Annotated[str | None, typer.Option(metavar="NAME", help=f"{', '.join(TASKS)}; or give --sites.")] = None,
    byoc: Annotated[bool, typer.Option("--byoc", help="Include fedmerit's code, for machines that allow it.")] = False,
) -> None:
    """Write an NVFlare job folder, ready to submit.

    --sites takes folders of any task, prepared as the hospitals' are: one hospital's, or generated ones. --server-sites
    says that the server has images of its own, which its kit names.
    """
    from fedmerit.engines.runs import job_configuration
    from fedmerit.files import folder_digest
    from fedmerit.flare.recipe import export_job

    if (task is None) == (asked.sites is None):
        raise BadInput("--task or --sites: expected one of them; --sites takes folders of any task")
    if task is not None and task not in TASKS:
        raise BadInput(f"task {task!r}: unknown; expected one of {', '.join(TASKS)}, or --sites SITES")
    config, filters = job_configuration(asked, task)
    job = out.resolve()  # an earlier export there is moved away and replaced
    export_job(config, job, asked.waiting, byoc=byoc, privacy=filters, track=asked.track)
    console.print(f"job folder: {out}\nSHA-256 of its files: {folder_digest(job)}", soft_wrap=True)


@commands.add("job submit jobs/fedce --kit admin@example.org")
def submit(
    job: Annotated[Path, typer.Argument(help="Job folder that `fedmerit job export` wrote.")], kit: AdminKit
) -> None:
    """Submit a job to a deployed federation; prints its id."""
    from fedmerit.flare.deploy import session

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
) -> None:
    """Sites and jobs: who is connected, how each site is, what to look at, how far jobs are and how they ended."""
    from fedmerit.flare.deploy import session
    from fedmerit.flare.deploy.site_states import ask_sites, judge_sites
    from fedmerit.flare.job_ends import explain_end

    with session.session(kit) as opened:
        silent, facts = ask_sites(opened, now := time.time())
        jobs = [session.job(opened, job)] if job else session.jobs(opened)
        running = [str(one["job_id"]) for one in jobs if one["status"] == "RUNNING"]
        progress = {name: state for name in running if (state := session.progress(opened, name))}
    records = [state["record"] for state in progress.values() if state["record"]]
    expected = {site for record in records for site in (*record["participants"], *record["rejected"])}
    absent = {site: why for state in progress.values() for site, why in state["absent"].items()}
    states = judge_sites(sorted(expected), silent, facts, absent, now)
    if as_json:
        sites = {site: {"connection": state.connection, **vars(state)} for site, state in states.items()}
        console.print_json(data={"sites": sites, "jobs": jobs, "progress": progress}, default=str)
        return
    connected = ", ".join(site for site, state in states.items() if state.silent is not None)
    console.print(f"connected sites: {connected or 'none'}", soft_wrap=True)
    _print_sites(states)
    _print_jobs(jobs, progress)
    for text in (*session.explain_refusal(jobs[0]), *explain_end(jobs[0])) if job else ():
        print_line(text)


def _print_sites(states: Mapping[str, "SiteState"]) -> None:
    table = plain_table("site", "is", "versions", "GiB free", "clock", "last error")
    for site, state in states.items():
        versions = [f"{name} {state.facts[name]}" for name in ("fedmerit", "torch", "python") if name in state.facts]
        clock = "" if state.clock_offset is None else f"{state.clock_offset:+.0f} s"
        room = str(state.facts.get("disk", ""))
        table.add_row(site, state.connection, ", ".join(versions), room, clock, str(state.facts.get("last_error", "")))
    if states:
        console.print(table)
    for site, state in states.items():
        for flag in state.flags:
            print_line(f"look at {site}: {flag}")


def _print_jobs(jobs: Sequence[Mapping[str, Any]], progress: Mapping[str, Mapping[str, Any]]) -> None:
    table = plain_table("job", "name", "status", "submitted", "by", "took")
    table.columns[0].no_wrap = True
    for one in jobs:
        when = datetime.fromisoformat(one["submit_time_iso"]).astimezone().strftime("%Y-%m-%d %H:%M")
        took = str(one.get("duration", "")).partition(".")[0]
        cells = (one["job_id"], one["name"] if "name" in one else one["job_name"], one["status"], when)
        table.add_row(*cells, one.get("submitter_name", ""), took)
    console.print(table if jobs else "no jobs")
    for name, state in progress.items():
        if state["record"]:
            record, rounds = state["record"], state["rounds"]
            is_weighted = "weight" not in state["undefined"]
            done = f"{name}: round {record['round'] + 1} of {rounds}, {last_round(record, is_weighted)}"
            console.print(done, soft_wrap=True)


@commands.add("job fetch 3f2a --kit admin@example.org --out runs/fedce")
def fetch(job: JobId, kit: AdminKit, out: Annotated[Path, typer.Option(help="Run folder to write.")]) -> None:
    """Fetch the run folder of a finished job."""
    from fedmerit.flare.deploy import session
    from fedmerit.flare.job_ends import explain_end

    with session.session(kit) as opened:
        session.fetch(opened, job, out)
        ended = explain_end(session.job(opened, job))
    console.print(f"run folder: {out}", soft_wrap=True)
    for text in ended:
        print_line(text)


@commands.add("job abort 3f2a --kit admin@example.org")
def abort(job: JobId, kit: AdminKit) -> None:
    """Stop a job."""
    from fedmerit.flare.deploy import session

    with session.session(kit) as opened:
        session.abort(opened, job)
    console.print(f"stopped: {job}", soft_wrap=True)


@commands.add("job resume 3f2a --kit admin@example.org")
def resume(job: JobId, kit: AdminKit) -> None:
    """Resume the run of a job that ended early, or that lost a site which is back: a new job, the same run."""
    from fedmerit.flare.deploy import session

    with session.session(kit) as opened:
        new = session.resume(opened, job)
    console.print(f"job: {new}", soft_wrap=True)


@commands.add("job watch 3f2a --kit admin@example.org --log watch.log")
def watch(
    job: JobId,
    kit: AdminKit,
    log: Annotated[Path | None, typer.Option(help="File to which each decision is added.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Resumptions in a row without a complete round.")] = 10,
    site_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for all sites; then --min-sites are enough.")
    ] = 600.0,
) -> None:
    """Keep a run at work: resume its job whenever it ended early, until it has come to its end.

    Not against an admin who stopped it, and not after an error that would repeat; then it exits with 1.
    """
    from fedmerit.flare.deploy.watch import Decision, Supervisor
    from fedmerit.flare.deploy.watch import watch as keep_at_work

    def show(job_id: str, decision: Decision) -> None:
        when = datetime.now().astimezone().isoformat(timespec="seconds")
        line = printable(f"{when} {job_id} {decision.action}: {decision.reason}")
        print_line(line)
        if log is not None:
            with log.open("a") as file:
                file.write(line + "\n")

    keep_at_work(kit, job, Supervisor(limit, site_timeout), show)
