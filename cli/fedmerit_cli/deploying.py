"""Commands of a federation of separate machines: deploy, submit, status, fetch, resume, abort."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from fedmerit.errors import BadInput
from fedmerit_cli.app import ServerSites, console, given, last_round, plain_table, tell

if TYPE_CHECKING:
    from fedmerit.flare.deploy.check_result import CheckResult
    from fedmerit.flare.deploy.provision import Kit

commands = typer.Typer()
deploy = typer.Typer(
    no_args_is_help=True, help="Prepare a federation of separate machines: startup kits, sites, server."
)
commands.add_typer(deploy, name="deploy")

AnyKit = Annotated[Path, typer.Option(help="The startup kit, unpacked.")]
AdminKit = Annotated[Path, typer.Option(envvar="FEDMERIT_KIT", help="The admin's startup kit.")]
JobId = Annotated[str, typer.Argument(help="As `submit` printed it.")]
Byoc = Annotated[bool, typer.Option("--byoc", help="Let jobs bring code of their own (`export --byoc`).")]
Offline = Annotated[bool, typer.Option("--offline", help="The server need not be started yet.")]
KitDevice = Annotated[str, typer.Option(help="cuda:0, cpu, ... on this machine.")]
DEFAULT_NAME, DEFAULT_PORT = "fedmerit", "8002"  # of a federation, and of its organisation
COLOURS: Mapping[str, str] = {"ok": "green", "warn": "yellow", "fail": "bold red"}
SHARES: Mapping[str, str] = {
    "server": "the server's machine",
    "client": "the hospital",
    "admin": "the admin, on any machine",
}


@deploy.command()
def init(
    out: Annotated[Path, typer.Option(help="Folder to write; with --add, the one written before.")],
    sites: Annotated[
        str, typer.Option(metavar="A,B:ORG", help="Sites, by the names of their folders; without ORG, of their own.")
    ],
    server: Annotated[str | None, typer.Option(help="Host name at which the sites reach the server.")] = None,
    org: Annotated[
        str | None, typer.Option(help="Organisation of server and admins.", show_default=DEFAULT_NAME)
    ] = None,
    admin: Annotated[
        list[str] | None,
        typer.Option(metavar="EMAIL:ROLE", help="project_admin, org_admin, lead or member; several times."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the federation.", show_default=DEFAULT_NAME)] = None,
    ports: Annotated[
        str | None,
        typer.Option(metavar="PORT[,PORT]", help="Of sites and admins, or of each.", show_default=DEFAULT_PORT),
    ] = None,
    he: Annotated[bool, typer.Option("--he", help="With keys for encrypted jobs (`export --privacy he`).")] = False,
    add: Annotated[bool, typer.Option("--add", help="Add the sites to the project in --out.")] = False,
) -> None:
    """Write NVFlare's project.yml and the startup kits of server, sites and admins."""
    from fedmerit.flare.deploy.project import PROJECT_FILE, make_project, organisations
    from fedmerit.flare.deploy.provision import add_sites
    from fedmerit.flare.deploy.provision import init as write_project
    from fedmerit.records.ciphertexts import require_tenseal

    stated = _stated(sites)
    if add:
        if he or admin or not all(option is None for option in (server, org, name, ports)):
            raise BadInput("--add: adds sites alone; leave out --server, --org, --admin, --name, --ports and --he")
        kits = add_sites(out, stated)
    else:
        if server is None:
            raise BadInput("--server: missing; name the host at which the sites reach the server")
        org, name = org or DEFAULT_NAME, name or DEFAULT_NAME
        admins = _admins(admin or [f"admin@{org.replace('_', '-')}.org:project_admin"])
        if he:
            require_tenseal("--he")
        encryption: dict[str, str] | None = {} if he else None
        project = make_project(
            organisations(stated), server, org, admins, name, _ports(ports or DEFAULT_PORT), encryption
        )
        kits = write_project(out, project)
    _print_kits(kits)
    console.print(f"project: {out / PROJECT_FILE}", soft_wrap=True)
    private = kits[0].path.parents[1] / "state"
    console.print(f"keep to yourself, it holds the keys that make certificates: {private}", soft_wrap=True)


@deploy.command()
def renew(
    out: Annotated[Path, typer.Option(help="Folder that `deploy init` wrote.")],
    names: Annotated[str, typer.Option(metavar="A,B", help="Sites, the server or admins, by the names of their kits.")],
) -> None:
    """Make new keys and certificates for some participants, before the old ones end; all others stay as they are."""
    from fedmerit.flare.deploy.provision import renew as renewed

    kits = renewed(out, [name.strip() for name in names.split(",")])
    _print_kits(kits)
    console.print(
        "each puts the new kit's startup/ in the place of the old one, and starts again; local/, runs and logs stay",
        soft_wrap=True,
    )
    if any(kit.kind == "server" for kit in kits):
        console.print("once the server has a new key, every site has to start again, renewed or not", soft_wrap=True)


def _stated(sites: str) -> dict[str, str]:
    """Organisation by site; "" of one that states none."""
    found: dict[str, str] = {}
    for part in sites.split(","):
        name, _, own = part.strip().partition(":")
        if not name or name in found:
            raise BadInput(f"--sites {sites}: expected names such as A,B or A:ORG,B:ORG, each once")
        found[name] = own
    return found


def _admins(admins: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in admins:
        email, colon, role = text.rpartition(":")
        if not colon or email in found:
            raise BadInput(f"--admin {text}: expected EMAIL:ROLE, every address once")
        found[email] = role
    return found


def _ports(text: str) -> tuple[int, int]:
    try:
        ports = [int(part) for part in text.split(",")]
    except ValueError:
        ports = []
    if len(ports) not in (1, 2):
        raise BadInput(f"--ports {text}: expected one port, or two such as 8002,8003")
    return ports[0], ports[-1]


def _print_kits(kits: list["Kit"]) -> None:
    table = plain_table("kit", "of", "organisation", "goes to, by a private way")
    for kit in kits:
        of = {"server": "server", "client": "site", "admin": kit.role}[kit.kind]
        table.add_row(kit.name, of, kit.org, SHARES[kit.kind])
    console.print(table)
    for kit in kits:
        console.print(f"{kit.name}: {kit.path}", soft_wrap=True)


@deploy.command()
def site(
    kit: AnyKit,
    sites_folder: Annotated[Path | None, typer.Option(help="Folder of site folders that holds this site's.")] = None,
    site_folder: Annotated[Path | None, typer.Option(help="Or the site folder itself.")] = None,
    device: KitDevice = "auto",
    evaluations: Annotated[
        str | None,
        typer.Option(
            metavar="SPLIT=NUMBER,...",
            help="Evaluate at most so many models a round for the server: validation=8,testing=4.",
            show_default="as many as the run needs",
        ),
    ] = None,
    byoc: Byoc = False,
    surveys: Annotated[
        bool | None,
        typer.Option(
            "--surveys/--no-surveys",
            help="Whether `fedmerit survey` gets an answer here.",
            show_default="as before; at first it does",
        ),
    ] = None,
    offline: Offline = False,
) -> None:
    """Prepare one hospital's machine, and check it; exits with 1 where something is in the way."""
    from fedmerit.flare.deploy.kits import prepare_site, read_name, require_kind
    from fedmerit.flare.deploy.preflight import preflight

    require_kind(kit, "client")
    if (sites_folder is None) == (site_folder is None):
        raise BadInput("--sites-folder or --site-folder: expected one of them")
    folder = (site_folder or Path(sites_folder or "") / read_name(kit)).resolve()
    prepare_site(kit, folder, device, byoc, surveys, **given(evaluations=evaluations))
    _report([*preflight(kit, offline), *_data(folder)])
    console.print(f"start: {kit / 'startup' / 'start.sh'}", soft_wrap=True)


@deploy.command("server")
def prepare_the_server(
    kit: AnyKit,
    runs: Annotated[
        Path | None, typer.Option(help="Folder for the run folders, by job id.", show_default="in the kit")
    ] = None,
    server_sites: ServerSites = None,
    device: KitDevice = "auto",
    byoc: Byoc = False,
) -> None:
    """Prepare the server's machine, and check it; exits with 1 where something is in the way."""
    from fedmerit.flare.deploy.kits import prepare_server
    from fedmerit.flare.deploy.preflight import preflight

    prepare_server(kit, server_sites, runs, device, byoc)
    _report(preflight(kit))
    console.print(f"start: {kit / 'startup' / 'start.sh'}", soft_wrap=True)


@deploy.command()
def approve(
    parts: Annotated[list[str], typer.Argument(metavar="PACKAGE.MODULE:NAME...", help="Or scripts, SCRIPT.py.")],
    kit: AnyKit,
    sha256: Annotated[str | None, typer.Option(help="Of the distribution that was looked at; refuses others.")] = None,
) -> None:
    """Let jobs name a method, network, loss or optimiser of others on this machine, in the version installed here."""
    from fedmerit.flare.deploy.kits import approve as approve_parts
    from fedmerit.plugins import approvable

    found = [approvable(text) for text in parts]
    for part in found:
        if sha256 not in (None, part.digest):
            raise BadInput(f"{part}: has SHA-256 {part.digest}, not {sha256}; look at what is installed here")
    approve_parts(kit, found)
    for part in found:
        console.print(f"approved: {part}, SHA-256 {part.digest}", soft_wrap=True)


@deploy.command("check")
def check_kit(
    kit: AnyKit,
    offline: Offline = False,
) -> None:
    """Check a machine that was prepared, once more; changes nothing."""
    from fedmerit.flare.deploy.kits import read_manifest
    from fedmerit.flare.deploy.preflight import preflight

    folder = read_manifest(kit).get("site_folder")
    _report([*preflight(kit, offline), *(_data(Path(folder)) if folder else [])])


def _data(folder: Path) -> list["CheckResult"]:
    """What `fedmerit check` says of one site folder alone, in a line or two."""
    from fedmerit.flare.deploy.check_result import CheckResult, State
    from fedmerit_data.check import examine_folders
    from fedmerit_data.checking.findings import Severity

    # The folder may have another name than the site, which is compared with the kit's.
    found = [finding for finding in examine_folders([folder]).findings if finding.kind != "site name"]
    lines = []
    for severity, state in ((Severity.error, State.fail), (Severity.warning, State.warn)):
        of_it = [finding for finding in found if finding.severity == severity]
        if of_it:
            told = f"{len(of_it)} {severity}s, the first: {of_it[0]}; `fedmerit check {folder.parent}` lists them"
            lines.append(CheckResult("data", state, told))
    return lines or [CheckResult("data", State.ok, f"{folder}: nothing wrong")]


def _report(lines: list["CheckResult"]) -> None:
    table = plain_table("", "", "")
    table.show_header = False
    for line in lines:
        table.add_row(line.what, Text(line.state, style=COLOURS[line.state]), Text(line.message))
    console.print(table)
    if failed := sum(line.state == "fail" for line in lines):
        typer.echo(f"not ready: {failed} to put right", err=True)
        raise typer.Exit(1)


@commands.command()
def submit(
    job: Annotated[Path, typer.Argument(help="Job folder that `fedmerit export` wrote.")],
    kit: AdminKit,
) -> None:
    """Submit a job to a deployed federation; prints its id."""
    from fedmerit.flare.deploy import session

    with session.session(kit) as opened:
        job_id = session.submit(opened, job)
        there = session.connected(opened)
    console.print(f"job: {job_id}", soft_wrap=True)
    console.print(f"connected sites: {', '.join(there) or 'none yet; the job waits for them'}", soft_wrap=True)


@commands.command()
def status(
    kit: AdminKit,
    job: Annotated[str | None, typer.Argument(help="Id of one job; all where not given.")] = None,
) -> None:
    """Sites that are connected, and how jobs are."""
    from fedmerit.flare.deploy import session
    from fedmerit_evaluation.results.run_folders import undefined_quantities

    with session.session(kit) as opened:
        there = session.connected(opened)
        jobs = [session.job(opened, job)] if job else session.jobs(opened)
        running = [str(one["job_id"]) for one in jobs if one["status"] == "RUNNING"]
        told = {name: session.progress(opened, name) for name in running}
    console.print(f"connected sites: {', '.join(there) or 'none'}", soft_wrap=True)
    table = plain_table("job", "name", "status", "submitted", "by", "took")
    table.columns[0].no_wrap = True
    for one in jobs:
        when = datetime.fromisoformat(one["submit_time_iso"]).astimezone().strftime("%Y-%m-%d %H:%M")
        took = str(one.get("duration", "")).partition(".")[0]
        cells = (one["job_id"], one["name"] if "name" in one else one["job_name"], one["status"], when)
        table.add_row(*cells, one.get("submitter_name", ""), took)
    console.print(table if jobs else "no jobs")
    for name, how_far in told.items():
        if how_far and how_far["record"]:
            record, rounds = how_far["record"], how_far["rounds"]
            weighed = "weight" not in undefined_quantities(how_far.get("method", ""))
            done = f"{name}: round {record['round'] + 1} of {rounds}, {last_round(record, weighed)}"
            console.print(done, soft_wrap=True)
    for text in session.explain_refusal(jobs[0]) if job else []:
        tell(text)


@commands.command()
def fetch(
    job: JobId,
    kit: AdminKit,
    out: Annotated[Path, typer.Option(help="Run folder to write.")],
) -> None:
    """Fetch the run folder of a job that is over."""
    from fedmerit.flare.deploy import session

    with session.session(kit) as opened:
        session.fetch(opened, job, out)
    console.print(f"run folder: {out}", soft_wrap=True)


@commands.command()
def abort(job: JobId, kit: AdminKit) -> None:
    """Stop a job."""
    from fedmerit.flare.deploy import session

    with session.session(kit) as opened:
        session.abort(opened, job)
    console.print(f"stopped: {job}", soft_wrap=True)


@commands.command()
def resume(job: JobId, kit: AdminKit) -> None:
    """Go on with the run of a job that ended early, or that lost a site which is back: a new job, the same run."""
    from fedmerit.flare.deploy import session

    with session.session(kit) as opened:
        new = session.resume(opened, job)
    console.print(f"job: {new}", soft_wrap=True)
