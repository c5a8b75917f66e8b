"""``fedmerit deploy``: startup kits, and the machines of hospitals and server."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from fedmerit.errors import BadInput
from fedmerit_cli.terminal import Commands, console, plain_table

if TYPE_CHECKING:
    from fedmerit.flare.deploy.check_result import CheckResult
    from fedmerit.flare.deploy.provision import Kit

AnyKit = Annotated[Path, typer.Option(help="The startup kit, unpacked.")]
Byoc = Annotated[
    bool, typer.Option("--byoc", help="Allow jobs with code of their own (`job export --byoc`): no rule binds it.")
]
Offline = Annotated[bool, typer.Option("--offline", help="The server need not be running yet.")]
KitDevice = Annotated[str, typer.Option(metavar="DEVICE", help="cuda:0, cpu, ... on this machine.")]
DEFAULT_NAME, DEFAULT_PORT = "fedmerit", "8002"  # of a federation, and of its organisation
COLOURS: Mapping[str, str] = {"ok": "green", "warn": "yellow", "fail": "bold red"}
RECIPIENTS: Mapping[str, str] = {
    "server": "the server's machine",
    "client": "the hospital",
    "admin": "the admin, on any machine",
}

commands = Commands("A federation of separate machines: startup kits, hospitals, server.")


@commands.add("deploy init --out federation --sites HK,BIDMC --server fed.example.org")
def init(
    out: Annotated[Path, typer.Option(help="Folder to write; with --add, the existing project.")],
    sites: Annotated[
        str, typer.Option(metavar="A,B:ORG", help="Sites, by the names of their folders; without ORG, one each.")
    ],
    server: Annotated[str | None, typer.Option(help="Host name at which the sites reach the server.")] = None,
    org: Annotated[
        str | None, typer.Option(help="Organisation of server and admins.", show_default=DEFAULT_NAME)
    ] = None,
    admin: Annotated[
        list[str] | None,
        typer.Option(metavar="EMAIL:ROLE", help="project_admin, org_admin, lead or member; may be repeated."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the federation.", show_default=DEFAULT_NAME)] = None,
    ports: Annotated[
        str | None,
        typer.Option(metavar="PORT[,PORT]", help="One for sites and admins, or one each.", show_default=DEFAULT_PORT),
    ] = None,
    he: Annotated[bool, typer.Option("--he", help="With keys for encrypted jobs (`job export --privacy he`).")] = False,
    add: Annotated[bool, typer.Option("--add", help="Add the sites to the project in --out.")] = False,
) -> None:
    """Write NVFlare's project.yml and the startup kits of server, sites and admins."""
    from fedmerit.flare.deploy.project import PROJECT_FILE, make_project, organisations
    from fedmerit.flare.deploy.provision import add_sites
    from fedmerit.flare.deploy.provision import init as write_project
    from fedmerit.records.ciphertexts import require_tenseal

    stated = _organisations(sites)
    if add:
        if he or admin or not all(option is None for option in (server, org, name, ports)):
            raise BadInput("--add: only adds sites; leave out --server, --org, --admin, --name, --ports and --he")
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
    console.print(f"keep private, it holds the keys that sign certificates: {private}", soft_wrap=True)


@commands.add("deploy renew --out federation --names HK")
def renew(
    out: Annotated[Path, typer.Option(help="Folder that `deploy init` wrote.")],
    names: Annotated[str, typer.Option(metavar="A,B", help="Sites, the server or admins, by the names of their kits.")],
) -> None:
    """Make new keys and certificates for some participants, before the old ones expire; all others are unchanged."""
    from fedmerit.flare.deploy.provision import renew as renewed

    kits = renewed(out, [name.strip() for name in names.split(",")])
    _print_kits(kits)
    console.print(
        "each participant replaces startup/ by the new kit's and restarts; local/, runs and logs stay", soft_wrap=True
    )
    if any(kit.kind == "server" for kit in kits):
        console.print("after the server has a new key, every site has to restart, renewed or not", soft_wrap=True)


def _organisations(sites: str) -> dict[str, str]:
    """Organisation by site; "" if none is given."""
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
    from fedmerit.flare.deploy.kits import kit_digest

    table = plain_table("kit", "of", "organisation", "send securely to")
    for kit in kits:
        of = {"server": "server", "client": "site", "admin": kit.role}[kit.kind]
        table.add_row(kit.name, of, kit.org, RECIPIENTS[kit.kind])
    console.print(table)
    for kit in kits:
        console.print(f"{kit.name}: {kit.path}\n  SHA-256 {kit_digest(kit.path)}", soft_wrap=True)
    console.print(
        "tell each recipient the SHA-256 of its kit by another channel than the kit, such as by telephone; "
        "`fedmerit deploy check --kit KIT --digest SHA256` compares",
        soft_wrap=True,
    )


@commands.add("deploy site --kit HK --sites-folder /data/sites")
def site(
    kit: AnyKit,
    sites_folder: Annotated[Path | None, typer.Option(help="Folder of site folders that includes this site's.")] = None,
    site_folder: Annotated[Path | None, typer.Option(help="Or the site folder itself.")] = None,
    device: KitDevice = "auto",
    evaluations: Annotated[
        str | None,
        typer.Option(
            metavar="SPLIT=NUMBER,...",
            help="Maximum models a round to evaluate for the server: validation=8,testing=4.",
            show_default="as before; at first 64 each",
        ),
    ] = None,
    byoc: Byoc = False,
    surveys: Annotated[
        bool | None,
        typer.Option(
            "--surveys/--no-surveys",
            help="Answer `fedmerit data survey` here, or not.",
            show_default="as before; at first --surveys",
        ),
    ] = None,
    offline: Offline = False,
) -> None:
    """Prepare one hospital's machine, and check it; exits with 1 if a check fails."""
    from fedmerit.flare.deploy.kit_files import read_name, require_kind
    from fedmerit.flare.deploy.kits import prepare_site
    from fedmerit.flare.deploy.preflight import preflight

    require_kind(kit, "client")
    if (sites_folder is None) == (site_folder is None):
        raise BadInput("--sites-folder or --site-folder: expected one of them")
    folder = (site_folder or Path(sites_folder or "") / read_name(kit)).resolve()
    prepare_site(kit, folder, device, byoc, surveys, evaluations)
    _report([*preflight(kit, offline), *_data(folder)])
    console.print(f"start: {kit / 'startup' / 'start.sh'}", soft_wrap=True)


@commands.add("deploy server --kit fed.example.org --runs /data/runs", "server")
def prepare_the_server(
    kit: AnyKit,
    runs: Annotated[
        Path | None, typer.Option(help="Folder for the run folders, by job id.", show_default="in the kit")
    ] = None,
    server_sites: Annotated[Path | None, typer.Option(help="Site folders of the server's own, to validate on.")] = None,
    device: KitDevice = "auto",
    byoc: Byoc = False,
) -> None:
    """Prepare the server's machine, and check it; exits with 1 if a check fails."""
    from fedmerit.flare.deploy.kits import prepare_server
    from fedmerit.flare.deploy.preflight import preflight

    prepare_server(kit, server_sites, runs, device, byoc)
    _report(preflight(kit))
    console.print(f"start: {kit / 'startup' / 'start.sh'}", soft_wrap=True)


@commands.add("deploy approve mypackage.methods:SoftCos --kit HK")
def approve(
    parts: Annotated[list[str], typer.Argument(metavar="PACKAGE.MODULE:NAME...", help="Or scripts, SCRIPT.py.")],
    kit: AnyKit,
    sha256: Annotated[
        str | None, typer.Option(help="Digest of the distribution that you reviewed; others are refused.")
    ] = None,
) -> None:
    """Allow jobs to use a plugin (method, network, loss, optimiser) on this machine, in the version installed here."""
    from fedmerit.flare.deploy.kits import approve as approve_parts
    from fedmerit.plugins import approvable

    found = [approvable(text) for text in parts]
    for part in found:
        if sha256 not in (None, part.digest):
            raise BadInput(f"{part}: has SHA-256 {part.digest}, not {sha256}; review what is installed here")
    approve_parts(kit, found)
    for part in found:
        console.print(f"approved: {part}, SHA-256 {part.digest}", soft_wrap=True)


@commands.add("deploy check --kit HK", "check")
def check_kit(
    kit: AnyKit,
    offline: Offline = False,
    digest: Annotated[
        str | None,
        typer.Option(metavar="SHA256", help="Of the kit, as the coordinator tells it; of a new kit only this."),
    ] = None,
) -> None:
    """Check a kit against its SHA-256, and a prepared machine again; changes nothing."""
    from fedmerit.flare.deploy.kits import is_prepared, read_manifest, require_digest
    from fedmerit.flare.deploy.preflight import preflight

    if digest is not None:
        require_digest(kit, digest)
        console.print(f"{kit}: unchanged since the coordinator wrote it", soft_wrap=True)
        if not is_prepared(kit):
            return
    folder = read_manifest(kit).site_folder
    _report([*preflight(kit, offline), *(_data(Path(folder)) if folder else [])])


def _data(folder: Path) -> list["CheckResult"]:
    """The findings of `fedmerit check` on only this site folder, in a line or two."""
    from fedmerit.flare.deploy.check_result import CheckResult, State
    from fedmerit_data.check import examine_folders
    from fedmerit_data.checking.findings import Severity

    # The folder may have another name than the site, which is compared with the kit's.
    found = [finding for finding in examine_folders([folder]).findings if finding.kind != "site name"]
    lines = []
    for severity, state in ((Severity.error, State.fail), (Severity.warning, State.warn)):
        if chosen := [finding for finding in found if finding.severity == severity]:
            text = f"{len(chosen)} {severity}s, the first: {chosen[0]}; `fedmerit check {folder.parent}` lists them"
            lines.append(CheckResult("data", state, text))
    return lines or [CheckResult("data", State.ok, f"{folder}: nothing wrong")]


def _report(lines: list["CheckResult"]) -> None:
    table = plain_table("", "", "")
    table.show_header = False
    for line in lines:
        table.add_row(line.what, Text(line.state, style=COLOURS[line.state]), Text(line.message))
    console.print(table)
    if failed := sum(line.state == "fail" for line in lines):
        typer.echo(f"not ready: {failed} {'problem' if failed == 1 else 'problems'}", err=True)
        raise typer.Exit(1)
