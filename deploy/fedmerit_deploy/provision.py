"""A federation's startup kits, by NVFlare's own provisioning: project.yml in, a kit per participant out.

``nvflare provision -p project.yml -w .`` in the same folder does the same.
"""

import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from operator import methodcaller
from pathlib import Path
from typing import Any

import yaml
from nvflare.lighter.constants import CtxKey
from nvflare.lighter.prov_utils import prepare_builders
from nvflare.lighter.provision import prepare_project
from nvflare.lighter.provisioner import Provisioner
from nvflare.lighter.spec import Builder, Project, ProvisionContext

from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import FULL, read_json, write_atomically, write_json
from fedmerit.version import installed_versions
from fedmerit_deploy.certificates import keep_requests, list_revoked
from fedmerit_deploy.project import (
    PROJECT_FILE,
    add_project_sites,
    organisations,
    read_project,
    remove_participants,
    write_project,
)

VERSIONS_FILE = "fedmerit_versions.json"  # in the local/ folder of the kits of server and sites
STATE = "state"  # NVFlare's name for the folder of a project's keys
KEYS = "cert.json"  # there, NVFlare's file of them, by participant


class VersionsBuilder(Builder):
    """An NVFlare provisioning step: writes the versions that the project was made with into every kit."""

    def build(self, project: Project, ctx: ProvisionContext) -> None:
        """For server and sites; the preflight of `fedmerit deploy` compares."""
        for participant in (project.get_server(), *project.get_clients()):
            folder = Path(ctx.get_local_dir(participant))
            write_json(folder / VERSIONS_FILE, installed_versions())


@dataclass(frozen=True)
class Kit:
    """Startup kit of one participant."""

    name: str
    kind: str  # "server", "client" or "admin", as NVFlare says
    org: str
    role: str  # of an admin; else ""
    path: Path


def init(out: Path, project: Mapping[str, Any], requests: Path | None = None) -> list[Kit]:
    """Write project.yml to the new folder ``out`` and provision it there.

    Args:
        requests: a folder with NAME.csr of the sites that made their own keys.

    Raises:
        BadInput: ``out`` holds something already, or a request is of no use.
        RunFailed: NVFlare's provisioning failed.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out}: exists already; choose another --out, or add a site to it with --add")
    return provision_again(out, project, requests)


def provision_again(out: Path, project: Mapping[str, Any], requests: Path | None = None) -> list[Kit]:
    """Provision a project in ``out`` as `init` does, with the keys and certificates that were made there before."""
    with owner_only(out), rollback_on_error(out):
        _keep_requests(requests, out, project)
        kits = provision(out, project)
        write_project(out, project)
    return kits


def state_folder(out: Path, project: Mapping[str, Any]) -> Path:
    """The folder in which NVFlare's provisioning keeps the keys that it makes of a project in ``out``."""
    return out / str(project["name"]) / STATE


def _keep_requests(requests: Path | None, out: Path, project: Mapping[str, Any]) -> None:
    if requests is not None:
        names = [one["name"] for one in project["participants"] if one["type"] == "client"]
        keep_requests(requests, state_folder(out, project), names)


def add_sites(out: Path, sites: Mapping[str, str], requests: Path | None = None) -> list[Kit]:
    """Add sites to the project in ``out``: kits of only the new ones, all other kits stay valid.

    A site of organisation "" gets one of its own.

    Raises:
        BadInput: ``out`` holds no project, or a site is there already, cannot be added, or needs an organisation.
        RunFailed: NVFlare's provisioning failed.
    """
    project = read_project(out)
    if known := sorted({one["name"] for one in project["participants"]} & set(sites)):
        raise BadInput(f"{out / PROJECT_FILE}: holds {', '.join(known)} already")
    before = [one["org"] for one in project["participants"] if one["type"] == "client"]
    project = add_project_sites(project, organisations(sites, before))
    with owner_only(out), rollback_on_error(out):
        _keep_requests(requests, out, project)
        kits = provision(out, project)
        write_project(out, project)
    return [kit for kit in kits if kit.name in sites]


def renew(out: Path, names: Collection[str], requests: Path | None = None) -> list[Kit]:
    """New keys and certificates for participants of the project in ``out``: their kits; all others stay as they are.

    A site that made its own key keeps it, unless it sent a new request. The authority stays the same, and no
    certificate lasts longer than its own. What was there before is put on the list of revoked certificates, which
    the server's operator puts into force.

    Raises:
        BadInput: ``out`` holds no project, or nobody of such a name.
        RunFailed: NVFlare's provisioning failed, as when the authority has expired.
    """
    project = read_project(out)
    there = [one["name"] for one in project["participants"]]
    if unknown := sorted(set(names) - set(there)):
        raise BadInput(f"{out / PROJECT_FILE}: has no {', '.join(unknown)}; there are {', '.join(there)}")
    with owner_only(out), rollback_on_error(out):
        _take_back(out, project, names)
        _keep_requests(requests, out, project)
        kits = provision(out, project)
    return [kit for kit in kits if kit.name in names]


def revoke(out: Path, names: Collection[str]) -> Path:
    """Take sites and admins out of the project in ``out``; the list of revoked certificates, with theirs on it.

    Raises:
        BadInput: ``out`` holds no project, nobody of such a name, or nobody would be left who may submit jobs.
    """
    project = read_project(out)
    without = remove_participants(project, names)
    with owner_only(out), rollback_on_error(out):
        path = _take_back(out, project, names)
        write_project(out, without)
    return path


def _take_back(out: Path, project: Mapping[str, Any], names: Collection[str]) -> Path:
    state = state_folder(out, project)
    known = read_json(state / KEYS)
    path = list_revoked(state, [known[name]["cert"] for name in names if name in known])
    write_json(state / KEYS, {name: one for name, one in known.items() if name not in names})
    return path


@contextmanager
def owner_only(out: Path) -> Iterator[None]:
    """Only the owner can read what is written below ``out`` in here, and what was there before.

    The keys in it make and prove who is who; NVFlare's provisioning leaves the authority's readable by everyone.
    """
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
        for path in (out, *out.rglob("*")):
            if path.exists() and not path.is_symlink():
                path.chmod(path.stat().st_mode & stat.S_IRWXU)


@contextmanager
def rollback_on_error(out: Path) -> Iterator[None]:
    """What fails in here leaves ``out`` as it was: nothing half-written, and the keys that were there before."""
    before = {path for path in (out, *out.rglob("*")) if path.exists()}
    keys = {path: path.read_bytes() for path in out.glob(f"*/{STATE}/**/*") if path.is_file()}
    try:
        yield
    except BaseException:
        for path in sorted({out, *out.rglob("*")} - before, reverse=True):  # what is in a folder goes before it
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)
        for path, content in keys.items():  # now that there is room again
            if not path.exists() or path.read_bytes() != content:
                write_atomically(path, methodcaller("write", content))
        raise


def provision(out: Path, project: Mapping[str, Any]) -> list[Kit]:
    """Startup kits of a project, below ``out``; certificates made there before stay the same.

    Raises:
        RunFailed: NVFlare's provisioning failed; it says why.
    """
    content = yaml.safe_load(yaml.safe_dump(dict(project)))  # NVFlare takes it apart
    log = _ProvisionLog()
    with redirect_stderr(StringIO()):  # its traceback: the log says why
        context = Provisioner(str(out), prepare_builders(content)).provision(prepare_project(content), logger=log)
    folder = context.get(CtxKey.CURRENT_PROD_DIR)
    if context.get(CtxKey.BUILD_ERROR) or not folder:
        problems = "; ".join(log.problems) or "NVFlare says no more"
        if any(words in problems for words in (*map(os.strerror, FULL), "disk is full")):
            raise RunFailed(f"{out}: cannot be written, the disk is full; make room, then give the same command again")
        raise RunFailed(f"{out}: provisioning failed: {problems}")
    return [
        Kit(one.name, one.type, one.org, one.get_prop("role", ""), Path(folder, one.name))
        for one in context.get_project().get_all_participants()
    ]


class _ProvisionLog:
    """Collects what NVFlare's provisioning would print."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def info(self, message: str) -> None:
        """Of no interest."""

    debug = info

    def warning(self, message: str) -> None:
        """Kept."""
        self.problems.append(message)

    error = warning
