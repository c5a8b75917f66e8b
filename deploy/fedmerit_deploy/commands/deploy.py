"""``fedmerit deploy``: the machines of hospitals and server, and a rehearsal. Startup kits: `provisioning`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from fedmerit.errors import BadInput
from fedmerit_cli.terminal import console, plain_table
from fedmerit_deploy.commands import provisioning

if TYPE_CHECKING:
    from fedmerit_deploy.checks import CheckResult

AnyKit = Annotated[Path, typer.Option(help="The startup kit, unpacked.")]
Byoc = Annotated[
    bool, typer.Option("--byoc", help="Allow jobs with code of their own (`job export --byoc`): no rule binds it.")
]
Offline = Annotated[bool, typer.Option("--offline", help="The server need not be running yet.")]
KitDevice = Annotated[str, typer.Option(metavar="DEVICE", help="cuda:0, cpu, ... on this machine.")]
commands = provisioning.commands
COLOURS: Mapping[str, str] = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@commands.add("deploy site --kit HK --sites-folder /data/sites")
def site(
    kit: AnyKit,
    sites_folder: Annotated[Path | None, typer.Option(help="Folder of site folders that includes this site's.")] = None,
    site_folder: Annotated[Path | None, typer.Option(help="Or the site folder itself.")] = None,
    device: KitDevice = "auto",
    key: Annotated[Path | None, typer.Option(help="The site's own key, as `deploy request` wrote it.")] = None,
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
    script: Annotated[
        Path | None,
        typer.Option(help="Script that jobs may have train here, unchanged from now on.", show_default="as before"),
    ] = None,
    script_args: Annotated[str, typer.Option(help="Its arguments.", show_default=False)] = "",
    script_command: Annotated[
        str, typer.Option(help='Run it in a process of its own, as by "python3 -u".', show_default=False)
    ] = "",
    offline: Offline = False,
) -> None:
    """Prepare one hospital's machine, and check it; exits with 1 if a check fails."""
    from fedmerit_deploy.checks import check_machine
    from fedmerit_deploy.kit_files import read_name, require_kind
    from fedmerit_deploy.kits import approve_script, prepare_site

    require_kind(kit, "client")
    if (sites_folder is not None and site_folder is not None) or not (sites_folder or site_folder or script):
        raise BadInput("--sites-folder, --site-folder or --script: expected one, or a folder and a script")
    folder = site_folder or (sites_folder / read_name(kit) if sites_folder else None)
    own = approve_script(script, script_args, script_command) if script else None
    prepare_site(kit, folder and folder.resolve(), device, byoc, surveys, evaluations, key=key, script=own)
    _report([*check_machine(kit, offline), *(_data(folder.resolve()) if folder else [])])
    if own:
        console.print(f"script: {own.file}, SHA-256 {own.sha256}; what it imports is not covered", soft_wrap=True)
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
    from fedmerit_deploy.checks import check_machine
    from fedmerit_deploy.kits import prepare_server

    prepare_server(kit, server_sites, runs, device, byoc)
    _report(check_machine(kit))
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
    from fedmerit.plugins import approvable
    from fedmerit_deploy.kits import approve as approve_parts

    found = [approvable(text) for text in parts]
    for part in found:
        if sha256 not in (None, part.digest):
            raise BadInput(f"{part}: has SHA-256 {part.digest}, not {sha256}; review what is installed here")
    approve_parts(kit, found)
    for part in found:
        console.print(f"approved: {part}, SHA-256 {part.digest}", soft_wrap=True)


@commands.add("deploy rehearse jobs/fedce --kit admin@example.org")
def rehearse(
    job: Annotated[Path, typer.Argument(help="Job folder that `fedmerit job export` wrote.")],
    kit: Annotated[Path, typer.Option(envvar="FEDMERIT_KIT", help="The admin's startup kit.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder to keep job and run folder in.", show_default="nothing is kept")
    ] = None,
    wait: Annotated[float, typer.Option(min=1, help="Seconds for the sites to answer.")] = 150.0,
) -> None:
    """One short round of a job with all connected sites, real messages both ways; exits with 1 if a site fails."""
    from tempfile import TemporaryDirectory

    from fedmerit_deploy.rehearsal import rehearse as rehearsed

    if out is not None and out.exists():
        raise BadInput(f"{out}: exists already; choose another --out")
    with TemporaryDirectory(prefix="rehearsal-") as folder:
        _report(rehearsed(kit, job, out or Path(folder), wait))


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
    from fedmerit_deploy.checks import check_machine
    from fedmerit_deploy.kit_files import require_digest
    from fedmerit_deploy.kits import is_prepared, read_manifest

    if digest is not None:
        require_digest(kit, digest)
        console.print(f"{kit}: unchanged since the coordinator wrote it", soft_wrap=True)
        if not is_prepared(kit):
            return
    folder = read_manifest(kit).site_folder
    _report([*check_machine(kit, offline), *(_data(Path(folder)) if folder else [])])


def _data(folder: Path) -> list["CheckResult"]:
    """The findings of `fedmerit check` on only this site folder, in a line or two."""
    from fedmerit_data.check import examine_folders
    from fedmerit_data.checking.findings import Severity
    from fedmerit_deploy.checks import CheckResult, State

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
