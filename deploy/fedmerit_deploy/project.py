"""A federation on paper: the content of NVFlare's project.yml, and what of it cannot work."""

import hashlib
import ipaddress
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml
from nvflare.apis.utils.format_check import name_check
from nvflare.lighter.constants import DEFINED_ROLES

from fedmerit.errors import BadInput
from fedmerit.files import write_text
from fedmerit.trainers.monai.data import LONGEST_SITE, require_name

PROJECT_FILE = "project.yml"
CERTIFICATE_BUILDER = "fedmerit_deploy.certificates.RequestedCertBuilder"
VERSIONS_BUILDER = "fedmerit_deploy.provision.VersionsBuilder"  # in the project.yml of every federation
CONTEXT_BUILDER = "fedmerit.engines.nvflare.encryption.ContextBuilder"  # not imported here: it needs TenSEAL
SUBMITTERS = ("project_admin", "lead")  # roles that may submit jobs
AUTHORITY_DAYS = 3650  # that the authority lasts; NVFlare's certificates of participants last 360, and are renewed
DIGITS = 16  # hexadecimal, of a site's name, at the end of an organisation's that is not the same
UNIQUE_SUFFIX = re.compile(rf"_[0-9a-f]{{{DIGITS}}}$")


def make_project(
    sites: Mapping[str, str],
    server: str,
    org: str,
    admins: Mapping[str, str],
    name: str = "fedmerit",
    ports: tuple[int, int] = (8002, 8002),
    encryption: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The content of project.yml.

    Args:
        sites: organisation by site name; the names are those of the site folders.
        server: host name or address at which the sites reach the server.
        org: the server's and the admins' organisation.
        admins: role by e-mail address.
        ports: of the federation and of the admin console; the same twice for one port.
        encryption: arguments of `fedmerit.engines.nvflare.encryption.ContextBuilder`; None: no kit holds a key.

    Raises:
        BadInput: something of it cannot work; the message names it.
    """
    _require_names(sites, server, org, admins, name)
    for port in ports:
        if not 1 <= port <= 65535:
            raise BadInput(f"port {port}: expected 1 to 65535")
    head = {"name": server, "type": "server", "org": org, "fed_learn_port": ports[0], "admin_port": ports[1]}
    return {
        "api_version": 3,
        "name": name,
        "description": "FedMerit federation",
        "participants": [
            head,
            *(_site(site, its_org) for site, its_org in sites.items()),
            *({"name": email, "type": "admin", "org": org, "role": role} for email, role in admins.items()),
        ],
        "builders": [
            _builder("nvflare.lighter.impl.workspace.WorkspaceBuilder", template_file=["master_template.yml"]),
            _builder("nvflare.lighter.impl.static_file.StaticFileBuilder", config_folder="config", scheme="grpc"),
            _builder(CERTIFICATE_BUILDER, root_valid_days=AUTHORITY_DAYS),
            {"path": VERSIONS_BUILDER},
            *([_builder(CONTEXT_BUILDER, **encryption)] if encryption is not None else []),
            {"path": "nvflare.lighter.impl.signature.SignatureBuilder"},
        ],
    }


def _builder(path: str, **settings: Any) -> dict[str, Any]:
    return {"path": path, "args": settings}


def _require_names(sites: Mapping[str, str], server: str, org: str, admins: Mapping[str, str], name: str) -> None:
    """`BadInput` if NVFlare could not use a name, two of them clash, or nobody may submit jobs."""
    if not sites:
        raise BadInput("--sites: expected names such as A,B,C")
    for site, its_org in sites.items():
        require_name(site, "--sites")
        _require(its_org, "org", f"organisation {its_org!r} of site {site}", "letters, digits and _")
    _require(server, "server", f"server {server!r}", "a host name such as fl.hospital.org, or an address")
    _require(org, "org", f"organisation {org!r}", "letters, digits and _")
    _require(name, "simple_name", f"project name {name!r}", "letters, digits and _")
    if server.replace(".", "").isdigit():
        try:
            ipaddress.ip_address(server)
        except ValueError:
            wrong = f"server {server!r}: is no address; expected four numbers from 0 to 255, or a host name"
            raise BadInput(wrong) from None
    if clash := {site for site in sites if site.lower() == server.lower()}:
        raise BadInput(f"site {clash.pop()!r}: is the server's name too; give one of them another")
    if len({site.lower() for site in sites}) < len(sites):
        raise BadInput("--sites: two names differ only in case; not every disk keeps them apart")
    for email, role in admins.items():
        _require(email, "admin", f"admin {email!r}", "an e-mail address")
        if role not in DEFINED_ROLES:
            raise BadInput(f"admin {email}: role {role!r} is unknown; expected one of {', '.join(DEFINED_ROLES)}")
    if not set(admins.values()) & set(SUBMITTERS):
        raise BadInput(f"--admin: nobody could submit a job; give one the role {' or '.join(SUBMITTERS)}")


def organisations(stated: Mapping[str, str], before: Collection[str] = ()) -> dict[str, str]:
    """Organisation by site: as stated, or if that is "" one of its own, so that the site earns for itself.

    Args:
        stated: by site.
        before: organisations of other sites.

    Raises:
        BadInput: another site states what would be a site's own.
    """
    others = {*before, *stated.values()}
    for site, org in stated.items():
        if not org and default_organisation(site) in others:
            own = default_organisation(site)
            raise BadInput(f"site {site}: other sites are of organisation {own}; state its own as {site}:ORGANISATION")
    return {site: org or default_organisation(site) for site, org in stated.items()}


def default_organisation(site: str) -> str:
    """Of a site that names none: its name, or the like where organisations may have no such name; no two share one."""
    if re.fullmatch(r"[A-Za-z0-9_]+", site) and not UNIQUE_SUFFIX.search(site):
        return site
    apart = hashlib.sha256(site.encode()).hexdigest()[:DIGITS]
    return f"{re.sub(r'[^A-Za-z0-9_]', '_', site)[: LONGEST_SITE - DIGITS - 1]}_{apart}"


def _site(name: str, org: str) -> dict[str, Any]:
    return {"name": name, "type": "client", "org": org, "allow_log_streaming": False}


def _require(value: str, kind: str, what: str, expected: str) -> None:
    if name_check(value, kind)[0] or value != value.strip():
        raise BadInput(f"{what}: cannot be used; expected {expected}")
    if len(value) > LONGEST_SITE:
        raise BadInput(f"{what}: has {len(value)} characters; a certificate holds {LONGEST_SITE} at most")


def add_project_sites(project: Mapping[str, Any], sites: Mapping[str, str]) -> dict[str, Any]:
    """A project with further sites, organisation by name; `BadInput` if one cannot be added."""
    server, *others = project["participants"]
    admins = {one["name"]: one["role"] for one in others if one["type"] == "admin"}
    before = {one["name"]: one["org"] for one in others if one["type"] == "client"}
    make_project(before | dict(sites), server["name"], server["org"], admins)  # refuses what cannot work
    return {**project, "participants": [server, *others, *(_site(site, org) for site, org in sites.items())]}


def remove_participants(project: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """A project without sites or admins; `BadInput` if one is none of it, or nobody is left who may submit jobs."""
    others = [one["name"] for one in project["participants"] if one["type"] != "server"]
    if unknown := sorted(set(names) - set(others)):
        raise BadInput(f"{PROJECT_FILE}: has no site or admin {', '.join(unknown)}; there are {', '.join(others)}")
    left = [one for one in project["participants"] if one["name"] not in names]
    if not any(one.get("role") in SUBMITTERS for one in left):
        raise BadInput(f"{PROJECT_FILE}: nobody would be left who may submit jobs; renew that admin instead")
    return {**project, "participants": left}


def read_project(out: Path) -> dict[str, Any]:
    """project.yml of a folder that `init` wrote; `BadInput` naming it if it is none."""
    path = out / PROJECT_FILE
    try:
        project = yaml.safe_load(path.read_text())
        participants = project["participants"]
        kinds = [one["type"] for one in participants if one["name"]]
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError, RecursionError) as error:
        reason = type(error).__name__
        raise BadInput(f"{path}: not a project file ({reason}); make one with `fedmerit deploy init`") from error
    if kinds.count("server") != 1:
        raise BadInput(f"{path}: names {kinds.count('server')} servers; expected one")
    return dict(project)


def write_project(out: Path, project: Mapping[str, Any]) -> None:
    """Write project.yml to a folder."""
    write_text(out / PROJECT_FILE, yaml.safe_dump(dict(project), sort_keys=False))
