"""``fedmerit deploy``, the coordinator's half: startup kits, certificates; and a hospital's request for its own."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmerit.errors import BadInput
from fedmerit_cli.terminal import Commands, console, plain_table

if TYPE_CHECKING:
    from fedmerit_deploy.provisioning import Kit

DEFAULT_NAME, DEFAULT_PORT = "fedmerit", "8002"  # of a federation, and of its organisation
RECIPIENTS: Mapping[str, str] = {
    "server": "the server's machine",
    "client": "the hospital",
    "admin": "the admin, on any machine",
}

Requests = Annotated[Path | None, typer.Option(help="Folder of requests, NAME.csr, of sites that made their own keys.")]

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
    requests: Requests = None,
    add: Annotated[bool, typer.Option("--add", help="Add the sites to the project in --out.")] = False,
) -> None:
    """Write NVFlare's project.yml and the startup kits of server, sites and admins."""
    from fedmerit.ciphertexts import require_tenseal
    from fedmerit_deploy.provisioning import PROJECT_FILE, add_sites, make_project, organisations
    from fedmerit_deploy.provisioning import init as write_project

    stated = _organisations(sites)
    if add:
        if he or admin or not all(option is None for option in (server, org, name, ports)):
            raise BadInput("--add: only adds sites; leave out --server, --org, --admin, --name, --ports and --he")
        kits = add_sites(out, stated, requests)
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
        kits = write_project(out, project, requests)
    _print_kits(kits)
    console.print(f"project: {out / PROJECT_FILE}", soft_wrap=True)
    private = kits[0].path.parents[1] / "state"
    console.print(f"keep private, it holds the keys that sign certificates: {private}", soft_wrap=True)


@commands.add("deploy renew --out federation --names HK")
def renew(
    out: Annotated[Path, typer.Option(help="Folder that `deploy init` wrote.")],
    names: Annotated[str, typer.Option(metavar="A,B", help="Sites, the server or admins, by the names of their kits.")],
    requests: Requests = None,
) -> None:
    """Make new keys and certificates for some participants, before the old ones expire; all others are unchanged.

    The old certificates go on the list of revoked ones, which the server's operator puts into force.
    """
    from fedmerit_deploy.provisioning import renew as renewed

    kits = renewed(out, [name.strip() for name in names.split(",")], requests)
    _print_kits(kits)
    console.print(
        "each participant replaces startup/ by the new kit's and restarts; local/, runs and logs stay", soft_wrap=True
    )
    if any(kit.kind == "server" for kit in kits):
        console.print("after the server has a new key, every site has to restart, renewed or not", soft_wrap=True)
    _print_list(kits[0].path.parents[1] / "state" / "revoked.pem")


@commands.add("deploy request --name HK --out request")
def request(
    name: Annotated[str, typer.Option(help="Name of the site, as of its site folder.")],
    out: Annotated[Path, typer.Option(help="Folder to write the key and the request into.")],
) -> None:
    """At a hospital: make its own private key, which stays there, and a request for a certificate."""
    from fedmerit.files import sha256
    from fedmerit_deploy.provisioning import write_request

    path = write_request(name, out)
    console.print(f"send to the coordinator: {path}\n  SHA-256 {sha256(path)}", soft_wrap=True)
    console.print(f"keep, for `deploy site --key`: {path.with_suffix('.key')}", soft_wrap=True)
    console.print("tell the coordinator the SHA-256 by another channel, such as by telephone")


@commands.add("deploy revoke --out federation --names HK --server-kit fed.example.org")
def revoke(
    out: Annotated[Path, typer.Option(help="Folder that `deploy init` wrote.")],
    names: Annotated[str, typer.Option(metavar="A,B", help="Sites or admins that leave the federation.")],
    server_kit: Annotated[Path | None, typer.Option(help="The server's kit, if it is on this machine.")] = None,
) -> None:
    """Take sites and admins out of a federation: the server refuses their kits. All other kits stay valid."""
    from shutil import copy

    from fedmerit_deploy.kit_files import require_kind
    from fedmerit_deploy.provisioning import revoke as revoked

    if server_kit is not None:
        require_kind(server_kit, "server")
    path = revoked(out, [name.strip() for name in names.split(",")])
    if server_kit is None:
        _print_list(path)
    else:
        copy(path, server_kit / "local" / path.name)
        console.print("revoked: the server refuses these kits from their next heartbeat on, within a minute")


def _print_list(path: Path) -> None:
    console.print(
        f"revoked certificates: {path}; copied to local/ of the server's kit, it is in force within a minute",
        soft_wrap=True,
    )


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
    from fedmerit_deploy.kit_files import kit_digest

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
