"""``fedmerit deploy``: startup kits and certificates, the machines of hospitals and server, and their checks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from fedmerit.errors import BadInput
from fedmerit_cli.terminal import Commands, console, plain_table

if TYPE_CHECKING:
    from fedmerit_deploy.checks import CheckResult
    from fedmerit_deploy.provisioning import Kit

DEFAULT_NAME, DEFAULT_PORT = "fedmerit", "8002"  # of a federation, and of its organisation
RECIPIENTS: Mapping[str, str] = {
    "server": "the server's machine",
    "client": "the hospital",
    "admin": "the admin, on any machine",
}
COLOURS: Mapping[str, str] = {"ok": "green", "warn": "yellow", "fail": "bold red"}

AnyKit = Annotated[Path, typer.Option(help="The startup kit, unpacked.")]
Accept = Annotated[
    bool, typer.Option("--accept", help="What allows more than the defaults is meant; otherwise it is a failure.")
]
Byoc = Annotated[
    bool, typer.Option("--byoc", help="Allow jobs with code of their own (`job export --byoc`): no rule binds it.")
]
KitDevice = Annotated[str, typer.Option(metavar="DEVICE", help="cuda:0, cpu, ... on this machine.")]
Offline = Annotated[bool, typer.Option("--offline", help="The server need not be running yet.")]
Project = Annotated[Path, typer.Option(help="Folder that `deploy init` wrote.")]
Requests = Annotated[Path | None, typer.Option(help="Folder of requests, NAME.csr, of sites that made their own keys.")]

commands = Commands()


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
    requests: Requests = None,
    add: Annotated[bool, typer.Option("--add", help="Add the sites to the project in --out.")] = False,
) -> None:
    """Write NVFlare's project.yml and the startup kits of server, sites and admins."""
    from fedmerit.ciphertexts import require_tenseal
    from fedmerit_deploy import provisioning

    stated = _split_pairs(sites, "--sites", "names such as A,B or A:ORG,B:ORG, each once")
    if add:
        if he or admin or not all(option is None for option in (server, org, name, ports)):
            raise BadInput("--add: only adds sites; leave out --server, --org, --admin, --name, --ports and --he")
        kits = provisioning.add_sites(out, stated, requests)
    else:
        if server is None:
            raise BadInput("--server: missing; name the host at which the sites reach the server")
        org = org or DEFAULT_NAME
        people = ",".join(admin or [f"admin@{org.replace('_', '-')}.org:project_admin"])
        admins = _split_pairs(people, "--admin", "EMAIL:ROLE, every address once", needs_value=True)
        if he:
            require_tenseal("--he")
        organisations = provisioning.organisations(stated)
        project = provisioning.make_project(
            organisations,
            server,
            org,
            admins,
            name or DEFAULT_NAME,
            _read_ports(ports or DEFAULT_PORT),
            {} if he else None,
        )
        kits = provisioning.init(out, project, requests)
    _print_kits(kits)
    if requests is not None:
        _print_requests(requests)
    console.print(f"project: {out / provisioning.PROJECT_FILE}", soft_wrap=True)
    private = kits[0].path.parents[1] / provisioning.STATE
    console.print(f"keep private, it holds the keys that sign certificates: {private}", soft_wrap=True)


@commands.add("deploy renew --out federation --names HK")
def renew(
    out: Project,
    names: Annotated[str, typer.Option(metavar="A,B", help="Sites, the server or admins, by the names of their kits.")],
    requests: Requests = None,
) -> None:
    """Make new keys and certificates for some participants, before the old ones expire; all others are unchanged.

    The old certificates go on the list of revoked ones, which the server's operator puts into force.
    """
    from fedmerit_deploy import provisioning
    from fedmerit_deploy.revocation import REVOKED

    kits = provisioning.renew(out, _split_names(names), requests)
    _print_kits(kits)
    if requests is not None:
        _print_requests(requests)
    console.print(
        "each participant replaces startup/ by the new kit's and restarts; local/, runs and logs stay", soft_wrap=True
    )
    if any(kit.kind == "server" for kit in kits):
        console.print("after the server has a new key, every site has to restart, renewed or not", soft_wrap=True)
    _print_revoked(kits[0].path.parents[1] / provisioning.STATE / REVOKED)


@commands.add("deploy request --name HK --out request")
def request(
    name: Annotated[str, typer.Option(help="Name of the site, as of its site folder.")],
    out: Annotated[Path, typer.Option(help="Folder to write the key and the request into.")],
) -> None:
    """Make, at a hospital, its own private key, which stays there, and a request for a certificate."""
    from fedmerit.files import sha256
    from fedmerit_deploy.kit_integrity import grouped
    from fedmerit_deploy.provisioning import write_request

    path = write_request(name, out)
    console.print(f"send to the coordinator: {path}, SHA-256:\n{grouped(sha256(path))}", soft_wrap=True)
    console.print(f"keep, for `deploy site --key`: {path.with_suffix('.key')}", soft_wrap=True)
    console.print("tell the coordinator the SHA-256 by another channel, such as by telephone")


@commands.add("deploy revoke --out federation --names HK --server-kit fed.example.org")
def revoke(
    out: Project,
    names: Annotated[str, typer.Option(metavar="A,B", help="Sites or admins that leave the federation.")],
    server_kit: Annotated[Path | None, typer.Option(help="The server's kit, if it is on this machine.")] = None,
) -> None:
    """Take sites and admins out of a federation: the server refuses their kits. All other kits stay valid."""
    from shutil import copy

    from fedmerit_deploy import provisioning
    from fedmerit_deploy.kit_files import require_kind

    if server_kit is not None:
        require_kind(server_kit, "server")
    path = provisioning.revoke(out, _split_names(names))
    if server_kit is None:
        _print_revoked(path)
    else:
        copy(path, server_kit / "local" / path.name)
        console.print("revoked: the server refuses these kits from their next heartbeat on, within a minute")


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
    accept: Accept = False,
) -> None:
    """Prepare one hospital's machine, and check it; exits with 1 if a check fails.

    A kit brings no rules. The hospital writes its own here and by `deploy rules`; a key of this machine seals them.
    """
    from fedmerit_deploy.kit_files import read_name, require_kind
    from fedmerit_deploy.kits import approve_script, prepare_site

    require_kind(kit, "client")
    if (sites_folder is not None and site_folder is not None) or not (sites_folder or site_folder or script):
        raise BadInput("--sites-folder, --site-folder or --script: expected one, or a folder and a script")
    folder = site_folder or (sites_folder / read_name(kit) if sites_folder else None)
    approved = approve_script(script, script_args, script_command) if script else None
    prepare_site(kit, folder and folder.resolve(), device, byoc, surveys, evaluations, key=key, script=approved)
    _report_machine(kit, offline, accept, byoc, _check_images(folder.resolve()) if folder else [])
    if approved:
        text = f"script: {approved.file}, SHA-256 {approved.sha256}; what it imports is not covered"
        console.print(text, soft_wrap=True)
    console.print(f"start: {kit / 'startup' / 'start.sh'}", soft_wrap=True)


@commands.add("deploy site allow jobs/fedce --kit HK", "site allow")
def allow_job(
    job: Annotated[str, typer.Argument(help="Job folder, run folder, or SHA-256 of a plan, as a refusal names it.")],
    kit: AnyKit,
    times: Annotated[int, typer.Option(min=1, max=1000, help="Jobs with this plan that may train.")] = 1,
) -> None:
    """Allow a job here that trains the network of an earlier one again: the data manager's word.

    Such jobs are refused otherwise, since the difference of their updates can show a single image.
    """
    from fedmerit_deploy.audit import kit_signer
    from fedmerit_deploy.job_plan import read_plan_digest
    from fedmerit_deploy.kit_files import require_kind
    from fedmerit_deploy.site_policy import open_ledger

    require_kind(kit, "client")
    plan, ledger = read_plan_digest(job), open_ledger(kit, kit_signer(kit))
    with ledger.locked():
        ledger.allow(plan, times)
    console.print(f"allowed: {times} job(s) with the plan {plan}\nin {ledger.path}", soft_wrap=True)


@commands.add("deploy server --kit fed.example.org --runs /data/runs", "server")
def prepare_the_server(
    kit: AnyKit,
    runs: Annotated[
        Path | None, typer.Option(help="Folder for the run folders, by job id.", show_default="in the kit")
    ] = None,
    server_sites: Annotated[Path | None, typer.Option(help="Site folders of the server's own, to validate on.")] = None,
    device: KitDevice = "auto",
    byoc: Byoc = False,
    accept: Accept = False,
) -> None:
    """Prepare the server's machine, and check it; exits with 1 if a check fails."""
    from fedmerit_deploy.kits import prepare_server

    prepare_server(kit, server_sites, runs, device, byoc)
    _report_machine(kit, False, accept, byoc)
    console.print(f"start: {kit / 'startup' / 'start.sh'}", soft_wrap=True)


@commands.add("deploy rules --kit HK --set least_images=40")
def rules(
    kit: AnyKit,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="RULE=VALUE", help="A rule for jobs; may be repeated.")
    ] = None,
    accept: Accept = False,
) -> None:
    """Show a hospital's rules for jobs, change them, and seal all that was decided or edited in local/ of the kit."""
    from fedmerit.site.policy import JobRules
    from fedmerit_deploy.checks import LOOSENING, accept_loose, check_machine
    from fedmerit_deploy.kits import set_rules

    changed = set_rules(kit, settings or (), accept).model_dump(mode="json")
    usual = JobRules().model_dump(mode="json")
    table = plain_table("rule", "here", "default")
    for name, value in changed.items():
        table.add_row(name, _rule_text(value), "" if value == usual[name] else _rule_text(usual[name]))
    console.print(table)
    if accept:
        accept_loose(kit)
    _report([line for line in check_machine(kit, offline=True) if line.what in LOOSENING])


def _rule_text(value: object) -> str:
    names = [f"{name} {one}" for name, one in value.items()] if isinstance(value, dict) else value
    return ", ".join(map(str, names)) if isinstance(names, list) else str(value).lower()


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

    references = [approvable(text) for text in parts]
    for part in references:
        if sha256 not in (None, part.digest):
            raise BadInput(f"{part}: has SHA-256 {part.digest}, not {sha256}; review what is installed here")
    approve_parts(kit, references)
    for part in references:
        console.print(f"approved: {part}, SHA-256 {part.digest}", soft_wrap=True)


@commands.add("deploy prune --kit HK --days 90 --delete")
def prune(
    kit: AnyKit,
    days: Annotated[int, typer.Option(min=1, help="Since the last change.")] = 90,
    delete: Annotated[bool, typer.Option("--delete", help="Delete them; otherwise they are only listed.")] = False,
) -> None:
    """List, or delete, old jobs in a kit: NVFlare's folders, rotated logs, and a site's memory of runs.

    Run folders at the server, and a site's signed log and errors, stay.
    """
    from fedmerit_deploy.kit_files import delete_files, find_prunable

    paths = find_prunable(kit, days)
    for path in paths:
        console.print(str(path), soft_wrap=True, highlight=False)
    if not paths:
        console.print(f"nothing in {kit} is older than {days} days", soft_wrap=True)
    elif delete:
        console.print(f"deleted: {len(paths)}, {delete_files(paths) / 1e6:.0f} MB")
    else:
        console.print(f"{len(paths)} of more than {days} days; --delete deletes them")


@commands.add("deploy check --kit HK", "check")
def check_kit(
    kit: Annotated[Path, typer.Option(envvar="FEDMERIT_KIT", help="The startup kit, unpacked.")],
    offline: Offline = False,
    digest: Annotated[
        str | None,
        typer.Option(metavar="SHA256", help="Of the kit, as the coordinator tells it; of a new kit only this."),
    ] = None,
    connected: Annotated[
        bool, typer.Option("--connected", help="Only whether server or site has its connection: for health checks.")
    ] = False,
    job: Annotated[
        Path | None,
        typer.Option(help="With an admin's kit: rehearse this job folder, one short round with all connected sites."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to keep the rehearsal in.", show_default="nothing is kept")
    ] = None,
    wait: Annotated[float, typer.Option(min=1, help="Seconds for the sites to answer a rehearsal.")] = 150.0,
    accept: Accept = False,
) -> None:
    """Check a kit, a prepared machine, or all machines by a job; exits with 1 if something would fail.

    A rehearsal has real messages both ways. Nothing that is checked is changed.
    """
    from fedmerit_deploy.kit_files import read_kind
    from fedmerit_deploy.kit_integrity import grouped, kit_digest, require_digest

    if digest is not None:
        require_digest(kit, digest)
        console.print(f"{kit}: unchanged since the coordinator wrote it", soft_wrap=True)
    if connected:
        from fedmerit_deploy.processes import is_connected

        if not is_connected(kit):
            raise typer.Exit(1)
    elif job is not None:
        _rehearse(kit, job, out, wait)
    elif digest is None and read_kind(kit) == "admin":
        raise BadInput(f"{kit}: an admin's kit; name a job folder to rehearse with --job, or the kit of a machine")
    else:
        from fedmerit_deploy.checks import check_machine
        from fedmerit_deploy.kits import is_prepared, read_manifest

        if digest is None or is_prepared(kit):
            folder = read_manifest(kit).site_folder
            console.print(f"{kit}, as the coordinator sent it, SHA-256:\n{grouped(kit_digest(kit))}", soft_wrap=True)
            _report([*check_machine(kit, offline, accept), *(_check_images(Path(folder)) if folder else [])])


def _report_machine(kit: Path, offline: bool, accept: bool, byoc: bool, further: Sequence["CheckResult"] = ()) -> None:
    """Print the checks of a machine that was prepared, after what allows more than the defaults was accepted."""
    from fedmerit_deploy.checks import POLICY, accept_loose, check_machine

    if accept or byoc:
        accept_loose(kit, () if accept else {POLICY})
    _report([*check_machine(kit, offline), *further])


@commands.add("deploy audit 3f2a --kit HK --run runs/fedce --auditor auditor@example.org --out audits")
def audit(
    job: Annotated[str, typer.Argument(help="Id of the job, the first one if it was resumed.")],
    kit: AnyKit,
    run: Annotated[Path, typer.Option(help="The run folder, as `fedmerit job fetch` wrote it, or a copy so far.")],
    auditor: Annotated[
        Path | None,
        typer.Option(help="Admin's kit of who repeats the steps, to sign with.", show_default="the site's own key"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write SITE.json into.", show_default="audits in --run")
    ] = None,
) -> None:
    """Repeat, at a hospital, the drawn steps of its training from its images; exits with 1 if one gives other numbers.

    Repeating takes about half as long as the training, on the same machine. No image leaves; the statement goes to the
    coordinator, into the folder audits of the run.
    """
    from fedmerit.evidence.repeated_work import AUDITS, write_statement
    from fedmerit.schema.site_folder import SiteFolder
    from fedmerit_deploy.audit import audit_work, find_own_folder, kit_signer
    from fedmerit_deploy.kit_files import require_kind
    from fedmerit_deploy.kits import read_manifest

    require_kind(kit, "client")
    manifest = read_manifest(kit)
    if not manifest.site_folder:
        raise BadInput(f"{kit}: names no site folder; the steps of a site's own script cannot be repeated")
    own = find_own_folder(kit, job)
    statement = audit_work(run, own, SiteFolder(Path(manifest.site_folder)), manifest.device or "auto")
    path = write_statement(out or run / AUDITS, statement, kit_signer(auditor or kit))
    faults = {round: repeated.fault for round, repeated in statement.rounds.items() if repeated.fault}
    done = len(statement.rounds) - len(faults)
    console.print(f"{statement.site}: {done} of {len(statement.rounds)} drawn steps repeated: {path}", soft_wrap=True)
    for round, fault in faults.items():
        console.print(f"round {round}: {fault}", soft_wrap=True)
    if faults:
        raise typer.Exit(1)


def _rehearse(kit: Path, job: Path, out: Path | None, wait: float) -> None:
    from tempfile import TemporaryDirectory

    from fedmerit_deploy.rehearsal import rehearse

    if out is not None and out.exists():
        raise BadInput(f"{out}: exists already; choose another --out")
    with TemporaryDirectory(prefix="rehearsal-") as folder:
        _report(rehearse(kit, job, out or Path(folder), wait))


def _check_images(folder: Path) -> list["CheckResult"]:
    """Return the findings of `fedmerit check` on only this site folder, in a line or two."""
    from fedmerit_data.check import examine_folders
    from fedmerit_data.checking.findings import Severity
    from fedmerit_deploy.checks import CheckResult, State

    # The folder may have another name than the site, which is compared with the kit's.
    findings = [finding for finding in examine_folders([folder]).findings if finding.kind != "site name"]
    lines = []
    for severity, state in ((Severity.error, State.fail), (Severity.warning, State.warn)):
        if chosen := [finding for finding in findings if finding.severity == severity]:
            text = f"{len(chosen)} {severity}s, the first: {chosen[0]}; `fedmerit check {folder.parent}` lists them"
            lines.append(CheckResult("data", state, text))
    return lines or [CheckResult("data", State.ok, f"{folder}: nothing wrong")]


def _report(lines: Sequence["CheckResult"]) -> None:
    """Print the lines of a check; exit with 1 if one is a failure."""
    table = plain_table("", "", "")
    table.show_header = False
    for line in lines:
        table.add_row(line.what, Text(line.state, style=COLOURS[line.state]), Text(line.message))
    console.print(table)
    if failed := sum(line.state == "fail" for line in lines):
        typer.echo(f"not ready: {failed} {'problem' if failed == 1 else 'problems'}", err=True)
        raise typer.Exit(1)


def _print_kits(kits: Sequence["Kit"]) -> None:
    from fedmerit_deploy.kit_integrity import grouped, kit_digest

    table = plain_table("kit", "of", "organisation", "send securely to")
    for kit in kits:
        owner = {"server": "server", "client": "site", "admin": kit.role}[kit.kind]
        table.add_row(kit.name, owner, kit.org, RECIPIENTS[kit.kind])
    console.print(table)
    for kit in kits:
        console.print(f"{kit.name}: {kit.path}, SHA-256:\n{grouped(kit_digest(kit.path))}", soft_wrap=True)
    console.print(
        "tell each recipient the SHA-256 of its kit by another channel than the kit, such as by telephone; "
        '`fedmerit deploy check --kit KIT --digest "SHA256"` compares',
        soft_wrap=True,
    )


def _print_requests(folder: Path) -> None:
    from fedmerit.files import sha256
    from fedmerit_deploy.kit_integrity import grouped

    for path in sorted(folder.glob("*.csr")):
        console.print(f"request of {path.stem}: {path}, SHA-256:\n{grouped(sha256(path))}", soft_wrap=True)
    console.print("send no kit before each hospital has read out the same SHA-256 of its request, as by telephone")


def _print_revoked(path: Path) -> None:
    console.print(
        f"revoked certificates: {path}; copied to local/ of the server's kit, it is in force within a minute",
        soft_wrap=True,
    )


def _split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _split_pairs(text: str, option: str, expected: str, needs_value: bool = False) -> dict[str, str]:
    """Return the values by name of ``NAME:VALUE,NAME``; "" of a name without a value."""
    pairs: dict[str, str] = {}
    for part in text.split(","):
        name, colon, value = part.strip().partition(":")
        if not name or name in pairs or (needs_value and not colon):
            raise BadInput(f"{option} {text}: expected {expected}")
        pairs[name] = value
    return pairs


def _read_ports(text: str) -> tuple[int, int]:
    try:
        ports = [int(part) for part in text.split(",")]
    except ValueError:
        ports = []
    if len(ports) not in (1, 2):
        raise BadInput(f"--ports {text}: expected one port, or two such as 8002,8003")
    return ports[0], ports[-1]
