"""``fedmerit job``: NVFlare jobs of a deployed federation, from export to the run folder."""

import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmerit.errors import BadInput, printable, require_known
from fedmerit.schema.configuration.options import JOB_WAITING, RunOptions
from fedmerit_cli.options import TASKS, run_options
from fedmerit_cli.terminal import Commands, console, print_line

if TYPE_CHECKING:
    from fedmerit.schema.configuration.run import RunConfiguration
    from fedmerit_deploy.commands.status_output import Receivers
    from fedmerit_deploy.status import FederationState

AdminKit = Annotated[Path, typer.Option(envvar="FEDMERIT_KIT", help="The admin's startup kit.")]
JobId = Annotated[str, typer.Argument(help="Id that `fedmerit job submit` printed.")]

Webhook = Annotated[
    str, typer.Option(metavar="URL", help='Address to which alerts are posted as {"text": ...}, as Slack takes it.')
]
Mail = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Address to which alerts are sent by this machine's sendmail.")
]

commands = Commands()
SHORT_ID = 8  # characters of a job's id that tell it from others
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
    seeds: Annotated[
        str | None, typer.Option(metavar="SEED,SEED", help="A job for each seed, in folders below --out.")
    ] = None,
    companions: Annotated[
        str | None,
        typer.Option("--with", metavar="METHOD,METHOD", help="Further methods, a job each, such as standalone."),
    ] = None,
) -> None:
    """Write an NVFlare job folder, ready to submit.

    --sites takes folders of any task, prepared as the hospitals' are: one hospital's, or generated ones. --server-sites
    takes the folders that the server's kit names as its own images, or only their site.json and datalist.json: the plan
    has their digest. With --with standalone and --seeds 0,1,2 the report
    on the fetched runs says whom the federation helped.
    """
    from fedmerit.engines.nvflare.recipe import export_job
    from fedmerit.files import folder_digest

    if (task is None) == (asked.sites is None):
        raise BadInput("--task or --sites: expected one of them; --sites takes folders of any task")
    if task is not None and task not in TASKS:
        raise BadInput(f"task {task!r}: unknown; expected one of {', '.join(TASKS)}, or --sites SITES")
    jobs = {out: asked} if seeds is None and companions is None else _several_jobs(asked, out, seeds, companions)
    prepared = {folder: _configure(options, task, study) for folder, options in jobs.items()}  # all, or none is written
    for folder, (config, filters) in prepared.items():
        job = folder.resolve()  # an earlier export there is moved away and replaced
        export_job(config, job, asked.waiting, byoc=byoc, privacy=filters, track=asked.track)
        console.print(f"job folder: {folder}\nSHA-256 of its files: {folder_digest(job)}", soft_wrap=True)


def _configure(asked: RunOptions, task: str | None, study: str) -> "tuple[RunConfiguration, list[str]]":
    """Return the configuration of a job and its privacy filters."""
    from fedmerit.engines.runs import job_configuration

    config, filters = job_configuration(asked, task)
    return replace(config, study=study), filters


def _several_jobs(asked: RunOptions, out: Path, seeds: str | None, companions: str | None) -> dict[Path, RunOptions]:
    """Return the options of a job for each method and seed, by its folder below ``out``.

    Companions of the method train with the same settings, without parameters that only that method has.
    """
    from fedmerit.methods.registry import METHODS
    from fedmerit.schema.declarations import parameters
    from fedmerit_evaluation.studies.study import parse_seeds

    method = str(asked.method)
    methods = [method, *(name.strip() for name in (companions or "").split(",") if name.strip())]
    require_known("--with: method", methods, METHODS)
    if len(set(methods)) < len(methods):
        raise BadInput(f"--with {companions}: a method is named twice, or is --method; name further ones")
    jobs = {}
    for name in methods:
        foreign = set(parameters(METHODS[method])) - set(parameters(METHODS[name]))
        settings = {key: value for key, value in asked.settings.items() if key not in foreign}
        for seed in [asked.seed] if seeds is None else parse_seeds(seeds):
            update = {"method": name, "settings": settings, "seed": seed}
            jobs[out / f"{name}_seed{seed}"] = asked.model_copy(update=update)
    return jobs


@commands.add("job submit jobs/fedce --kit admin@example.org")
def submit(
    job: Annotated[Path, typer.Argument(help="Job folder that `fedmerit job export` wrote, or a folder of such.")],
    kit: AdminKit,
) -> None:
    """Submit a job, or every job of a folder, to a deployed federation; prints the ids."""
    from fedmerit_deploy import session

    several = sorted(path.parent for path in job.glob("*/meta.json"))
    folders = [job] if (job / "meta.json").is_file() or not several else several
    with session.session(kit) as opened:
        for folder in folders:
            name = f"  ({folder.name})" if several else ""
            console.print(f"job: {session.submit(opened, folder)}{name}", soft_wrap=True)
        connected = session.connected(opened)
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
    webhook: Webhook = "",
    mail: Mail = "",
    every: Annotated[
        int, typer.Option(min=0, help="Seconds between looks of --html, --metrics and alerts; 0: once.")
    ] = 15,
) -> None:
    """Show sites and jobs: who is connected, how each site is, what to look at, how far jobs are and how they ended.

    With --webhook or --mail it looks until Ctrl-C, and alerts when a site falls silent or is back, and when a job ends.
    """
    from fedmerit_deploy import session
    from fedmerit_deploy.commands.status_output import Receivers, print_federation
    from fedmerit_deploy.job_ends import explain_end
    from fedmerit_deploy.status import read_federation

    receivers = Receivers(webhook, mail)
    state = read_federation(kit, job)
    if html is not None or metrics is not None or receivers:
        _keep_showing(kit, job, state, html, metrics, every, receivers)
    elif as_json:
        console.print_json(data=state.to_dict(), default=str)
    else:
        print_federation(state)
        for text in (*session.explain_refusal(state.jobs[0]), *explain_end(state.jobs[0])) if job else ():
            print_line(text)


def _keep_showing(
    kit: Path,
    job: str | None,
    state: "FederationState",
    html: Path | None,
    metrics: Path | None,
    every: int,
    receivers: "Receivers",
) -> None:
    """Write page and metrics again and again, with the last state while the server does not answer; send alerts."""
    from fedmerit.errors import RunFailed
    from fedmerit.files import write_text
    from fedmerit_deploy.commands.status_output import OUT_OF_REACH, describe_metrics, write_status_page
    from fedmerit_deploy.status import list_changes, read_federation

    problem, before, is_outage_reported = "", state, False
    for path in filter(None, (html, metrics) if every else ()):
        print_line(f"{path.resolve()}: written every {every} s, until Ctrl-C")
    while True:
        news = []
        if not problem:
            news = [*list_changes(before, state), *["the server answers again"] * is_outage_reported]
            before, is_outage_reported = state, False
        elif not is_outage_reported and time.time() - state.when >= OUT_OF_REACH:
            news, is_outage_reported = [f"the server does not answer: {problem}"], True
        for text in news if receivers else ():
            print_line(text)
            for failure in receivers.send(text):
                print_line(failure)
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
            problem = str(error)


@commands.add("job fetch 3f2a --kit admin@example.org --out runs/fedce")
def fetch(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB...", help="Ids that `fedmerit job submit` printed.")],
    kit: AdminKit,
    out: Annotated[Path, typer.Option(help="Run folder to write; of several jobs, the folder of their run folders.")],
) -> None:
    """Fetch the run folder of a finished job, or of several, each into a folder of the job's name."""
    from fedmerit_deploy import session
    from fedmerit_deploy.job_ends import explain_end

    with session.session(kit) as opened:
        for job in jobs:
            description = session.describe(opened, job)
            folder = out if len(jobs) == 1 else out / f"{description.get('name', 'job')}_{job[:SHORT_ID]}"
            session.fetch(opened, job, folder)
            console.print(f"run folder: {folder}", soft_wrap=True)
            for text in explain_end(description):
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
    webhook: Webhook = "",
    mail: Mail = "",
) -> None:
    """Keep a run at work: resume its job whenever it ended early, until it has come to its end.

    Not against an admin who stopped it, and not after an error that would repeat; then it exits with 1. With --webhook
    or --mail, an alert tells of each resumption and of the end.
    """
    from fedmerit_deploy.commands.status_output import Receivers
    from fedmerit_deploy.watch import Action, Decision, Supervisor
    from fedmerit_deploy.watch import watch as keep_at_work

    receivers = Receivers(webhook, mail)

    def show(job_id: str, decision: Decision) -> None:
        when = datetime.now().astimezone().isoformat(timespec="seconds")
        line = printable(f"{when} {job_id} {decision.action}: {decision.reason}")
        print_line(line)
        for failure in receivers.send(line) if decision.action is not Action.wait else ():
            print_line(failure)
        if log is not None:
            with log.open("a") as file:
                file.write(line + "\n")

    keep_at_work(kit, job, Supervisor(limit, site_timeout), show)
