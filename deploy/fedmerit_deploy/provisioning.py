"""Provision a federation: its project.yml, a startup kit for each participant, and their certificates.

NVFlare's provisioning does the work: ``nvflare provision -p project.yml -w .`` in the same folder makes the same kits.
Two things are FedMerit's own, since NVFlare 2.9 lacks them. A hospital may keep its private key: NVFlare's ``cert
approve`` takes only an authority of ``cert init``, and ``package`` builds a kit without the shared keys of encrypted
runs. And certificates can be revoked: `fedmerit_deploy.revocation` enforces the list that is written here.
"""

import datetime
import hashlib
import ipaddress
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from operator import methodcaller
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID
from nvflare.apis.utils.format_check import name_check
from nvflare.lighter.constants import DEFINED_ROLES, CtxKey
from nvflare.lighter.entity import Participant
from nvflare.lighter.impl.cert import CertBuilder
from nvflare.lighter.prov_utils import prepare_builders
from nvflare.lighter.provision import prepare_project
from nvflare.lighter.provisioner import Provisioner
from nvflare.lighter.spec import Builder, Project, ProvisionContext
from nvflare.lighter.utils import generate_keys, serialize_pri_key, x509_name

from fedmerit.engines.nvflare.components import CONTEXT_BUILDER, class_path
from fedmerit.engines.nvflare.start_scripts import SafeStartBuilder
from fedmerit.errors import BadInput, RunFailed, require_known
from fedmerit.evidence.signatures import KIT_CERTIFICATE, KIT_KEY, MOST_PEM
from fedmerit.files import read_bytes, read_object, write_atomically, write_json, write_text
from fedmerit.reasons import FULL
from fedmerit.schema.rules import LONGEST_SITE
from fedmerit.schema.site_folder import require_name
from fedmerit.version import installed_versions
from fedmerit_deploy.revocation import REVOKED

PROJECT_FILE = "project.yml"
STATE, KEYS, REQUESTS = "state", "cert.json", "requests"  # of a project: its secrets, keys and hospitals' requests
VERSIONS_FILE = "fedmerit_versions.json"  # in the local/ folder of the kits of server and sites
SUBMITTERS = ("project_admin", "lead")  # roles that may submit jobs
AUTHORITY_DAYS = 3650  # that the authority lasts; NVFlare's certificates of participants last 360, and are renewed
LIST_DAYS = 3650  # until the next list of revoked certificates is due at the latest
SMALLEST_KEY = 2048  # bits
DIGITS = 16  # hexadecimal digits at the end of an organisation's name that is derived from a site's
UNIQUE_SUFFIX = re.compile(rf"_[0-9a-f]{{{DIGITS}}}$")
WORD = "letters, digits and _"


@dataclass(frozen=True)
class Kit:
    """A startup kit of one participant."""

    name: str
    kind: str  # "server", "client" or "admin", as NVFlare says
    org: str
    role: str  # the role of an admin, else ""
    path: Path


class VersionsBuilder(Builder):
    """A step of NVFlare's provisioning that writes the project's package versions into the kits."""

    def build(self, project: Project, ctx: ProvisionContext) -> None:
        """Write the versions into the kits of server and sites, for `fedmerit deploy check` to compare."""
        for participant in (project.get_server(), *project.get_clients()):
            write_json(Path(ctx.get_local_dir(participant)) / VERSIONS_FILE, installed_versions())


class RequestedCertBuilder(CertBuilder):
    """A step of NVFlare's provisioning that makes certificates, also for keys that participants made themselves."""

    def __init__(self, root_valid_days: int):
        super().__init__(root_valid_days=root_valid_days)

    def get_pri_key_cert(self, participant: Participant) -> tuple[Any, x509.Certificate]:
        """Return key and certificate; for a participant with a request the certificate of its own key."""
        key, certificate = super().get_pri_key_cert(participant)
        request = Path(self.persistent_state.state_dir) / REQUESTS / f"{participant.name}.csr"
        if request.exists():
            certificate = self._generate_cert(
                participant.subject,
                participant.org,
                self.issuer,
                self.pri_key,
                read_request(request, participant.name).public_key(),
                not_valid_before=certificate.not_valid_before_utc,
                not_valid_after=certificate.not_valid_after_utc,
            )
        return key, certificate

    def build(self, project: Project, ctx: ProvisionContext) -> None:
        """Write keys and certificates into the kits, then remove each key that is not its certificate's."""
        super().build(project, ctx)
        for participant in project.get_clients():
            startup = Path(ctx.get_kit_dir(participant))
            if not is_pair(startup / KIT_KEY, startup / KIT_CERTIFICATE):
                (startup / KIT_KEY).unlink()


def make_project(
    sites: Mapping[str, str],
    server: str,
    org: str,
    admins: Mapping[str, str],
    name: str = "fedmerit",
    ports: tuple[int, int] = (8002, 8002),
    encryption: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the content of project.yml.

    Args:
        sites: organisation by site name; the names are those of the site folders.
        server: host name or address at which the sites reach the server.
        org: the server's and the admins' organisation.
        admins: role by e-mail address.
        name: of the federation.
        ports: of the federation and of the admin console; the same number twice for one port.
        encryption: arguments of `fedmerit.engines.nvflare.encryption.ContextBuilder`; None: no kit holds a key.

    Raises:
        BadInput: NVFlare could not use a value, two names clash, or nobody could submit a job.
    """
    _require_usable(sites, server, org, admins, name, ports)
    head = {"name": server, "type": "server", "org": org, "fed_learn_port": ports[0], "admin_port": ports[1]}
    steps: dict[str, Any] = {
        "nvflare.lighter.impl.workspace.WorkspaceBuilder": {"template_file": ["master_template.yml"]},
        "nvflare.lighter.impl.static_file.StaticFileBuilder": {"config_folder": "config", "scheme": "grpc"},
        class_path(RequestedCertBuilder): {"root_valid_days": AUTHORITY_DAYS},
        class_path(VersionsBuilder): None,
        class_path(SafeStartBuilder): None,
        **({} if encryption is None else {CONTEXT_BUILDER: dict(encryption)}),
        "nvflare.lighter.impl.signature.SignatureBuilder": None,
    }
    people = ({"name": email, "type": "admin", "org": org, "role": role} for email, role in admins.items())
    return {
        "api_version": 3,
        "name": name,
        "description": "FedMerit federation",
        "participants": [head, *(_site(site, its_org) for site, its_org in sites.items()), *people],
        "builders": [{"path": path} | ({} if args is None else {"args": args}) for path, args in steps.items()],
    }


def _site(name: str, org: str) -> dict[str, Any]:
    return {"name": name, "type": "client", "org": org, "allow_log_streaming": False}


def _require_usable(
    sites: Mapping[str, str], server: str, org: str, admins: Mapping[str, str], name: str, ports: Collection[int] = ()
) -> None:
    if not sites:
        raise BadInput("--sites: expected names such as A,B,C")
    for site, its_org in sites.items():
        require_name(site, "--sites")
        _require(its_org, "org", f"organisation {its_org!r} of site {site}", WORD)
    _require(server, "server", f"server {server!r}", "a host name such as fl.hospital.org, or an address")
    _require(org, "org", f"organisation {org!r}", WORD)
    _require(name, "simple_name", f"project name {name!r}", WORD)
    if server.replace(".", "").isdigit():
        try:
            ipaddress.ip_address(server)
        except ValueError:
            text = f"server {server!r}: is no address; expected four numbers from 0 to 255, or a host name"
            raise BadInput(text) from None
    if clash := {site for site in sites if site.lower() == server.lower()}:
        raise BadInput(f"site {clash.pop()!r}: is the server's name too; give one of them another")
    if len({site.lower() for site in sites}) < len(sites):
        raise BadInput("--sites: two names differ only in case; not every disk keeps them apart")
    for email, role in admins.items():
        _require(email, "admin", f"admin {email!r}", "an e-mail address")
        require_known(f"admin {email}: role", [role], DEFINED_ROLES)
    if not set(admins.values()) & set(SUBMITTERS):
        raise BadInput(f"--admin: nobody could submit a job; give one the role {' or '.join(SUBMITTERS)}")
    for port in ports:
        if not 1 <= port <= 65535:
            raise BadInput(f"port {port}: expected 1 to 65535")


def _require(value: str, kind: str, what: str, expected: str) -> None:
    if name_check(value, kind)[0] or value != value.strip():
        raise BadInput(f"{what}: cannot be used; expected {expected}")
    if len(value) > LONGEST_SITE:
        raise BadInput(f"{what}: has {len(value)} characters; a certificate holds {LONGEST_SITE} at most")


def organisations(stated: Mapping[str, str], before: Collection[str] = ()) -> dict[str, str]:
    """Return the organisation of each site: the stated one, or one of its own, so that the site earns for itself.

    Args:
        stated: organisation by site; "" if none is stated.
        before: organisations of other sites.

    Raises:
        BadInput: another site states the organisation that would be a site's own.
    """
    others = {*before, *stated.values()}
    for site, org in stated.items():
        if not org and (derived := default_organisation(site)) in others:
            text = f"other sites are of organisation {derived}; state its own as {site}:ORGANISATION"
            raise BadInput(f"site {site}: {text}")
    return {site: org or default_organisation(site) for site, org in stated.items()}


def default_organisation(site: str) -> str:
    """Return the organisation of a site that names none: its name, spelled so that no two sites share one."""
    if re.fullmatch(r"[A-Za-z0-9_]+", site) and not UNIQUE_SUFFIX.search(site):
        return site
    suffix = hashlib.sha256(site.encode()).hexdigest()[:DIGITS]
    return f"{re.sub(r'[^A-Za-z0-9_]', '_', site)[: LONGEST_SITE - DIGITS - 1]}_{suffix}"


def read_project(out: Path) -> dict[str, Any]:
    """Return the project.yml of a folder that `init` wrote; `BadInput` naming the file if it is none."""
    path = out / PROJECT_FILE
    try:
        project = yaml.safe_load(path.read_text())
        kinds = [participant["type"] for participant in project["participants"] if participant["name"]]
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError, RecursionError) as error:
        reason = type(error).__name__
        raise BadInput(f"{path}: not a project file ({reason}); make one with `fedmerit deploy init`") from error
    if kinds.count("server") != 1:
        raise BadInput(f"{path}: names {kinds.count('server')} servers; expected one")
    return dict(project)


def init(out: Path, project: Mapping[str, Any], requests: Path | None = None) -> list[Kit]:
    """Write project.yml to the new folder ``out``, provision it there and return its kits.

    Args:
        out: a new or empty folder.
        project: the content of project.yml.
        requests: a folder with NAME.csr of the sites that made their own keys.

    Raises:
        BadInput: ``out`` holds something already, or a request cannot be used.
        RunFailed: NVFlare's provisioning failed.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out}: exists already; choose another --out, or add a site to it with --add")
    with _changing(out):
        return _provision(out, project, requests)


def add_sites(out: Path, sites: Mapping[str, str], requests: Path | None = None) -> list[Kit]:
    """Add sites to the project in ``out`` and return only their kits; all other kits stay valid.

    Args:
        out: a folder that `init` wrote.
        sites: organisation by name; "" gives a site one of its own.
        requests: a folder with NAME.csr of the sites that made their own keys.

    Raises:
        BadInput: ``out`` holds no project, or a site exists already, cannot be added, or needs an organisation.
        RunFailed: NVFlare's provisioning failed.
    """
    project = read_project(out)
    server, *others = project["participants"]
    if known := sorted({one["name"] for one in project["participants"]} & set(sites)):
        raise BadInput(f"{out / PROJECT_FILE}: holds {', '.join(known)} already")
    admins = {one["name"]: one["role"] for one in others if one["type"] == "admin"}
    before = {one["name"]: one["org"] for one in others if one["type"] == "client"}
    new = organisations(sites, [*before.values()])
    _require_usable(before | new, server["name"], server["org"], admins, project["name"])
    project["participants"] += [_site(site, org) for site, org in new.items()]
    with _changing(out):
        return [kit for kit in _provision(out, project, requests) if kit.name in sites]


def renew(out: Path, names: Collection[str], requests: Path | None = None) -> list[Kit]:
    """Make new keys and certificates for participants and return their kits; all others stay unchanged.

    A site that made its own key keeps it, unless it sent a new request. The authority stays the same, and no
    certificate lasts longer than the authority's. The old certificates go on the list of revoked ones, which the
    server's operator puts into force.

    Raises:
        BadInput: ``out`` holds no project, or nobody of such a name.
        RunFailed: NVFlare's provisioning failed, for example since the authority has expired.
    """
    project = read_project(out)
    known = [one["name"] for one in project["participants"]]
    if unknown := sorted(set(names) - set(known)):
        raise BadInput(f"{out / PROJECT_FILE}: has no {', '.join(unknown)}; there are {', '.join(known)}")
    with _changing(out):
        _take_back(out, project, names)
        return [kit for kit in _provision(out, project, requests) if kit.name in names]


def revoke(out: Path, names: Collection[str]) -> Path:
    """Take sites and admins out of a project; return the path of the list of revoked certificates.

    Raises:
        BadInput: ``out`` holds no project, nobody of such a name, or nobody would be left who may submit jobs.
    """
    project = read_project(out)
    others = [one["name"] for one in project["participants"] if one["type"] != "server"]
    if unknown := sorted(set(names) - set(others)):
        raise BadInput(f"{PROJECT_FILE}: has no site or admin {', '.join(unknown)}; there are {', '.join(others)}")
    left = [one for one in project["participants"] if one["name"] not in names]
    if not any(one.get("role") in SUBMITTERS for one in left):
        raise BadInput(f"{PROJECT_FILE}: nobody would be left who may submit jobs; renew that admin instead")
    with _changing(out):
        path = _take_back(out, project, names)
        _write_project(out, {**project, "participants": left})
    return path


def _state_folder(out: Path, project: Mapping[str, Any]) -> Path:
    return out / str(project["name"]) / STATE  # where NVFlare's provisioning keeps the keys


def _write_project(out: Path, project: Mapping[str, Any]) -> None:
    write_text(out / PROJECT_FILE, yaml.safe_dump(dict(project), sort_keys=False))


def _take_back(out: Path, project: Mapping[str, Any], names: Collection[str]) -> Path:
    """Add the participants' certificates to the project's signed list of revoked ones; return its path."""
    state = _state_folder(out, project)
    keys = read_object(state / KEYS)
    root = x509.load_pem_x509_certificate(keys[CtxKey.ROOT_CERT].encode())
    signing_key: Any = load_pem_private_key(keys[CtxKey.ROOT_PRI_KEY].encode(), password=None)
    now, path = datetime.datetime.now(datetime.UTC), state / REVOKED
    certificates = (keys[name]["cert"].encode() for name in names if name in keys)
    serials = {x509.load_pem_x509_certificate(pem).serial_number for pem in certificates}
    if path.exists():
        serials |= {entry.serial_number for entry in x509.load_pem_x509_crl(path.read_bytes())}
    builder = x509.CertificateRevocationListBuilder().issuer_name(root.subject).last_update(now)
    builder = builder.next_update(now + datetime.timedelta(days=LIST_DAYS))
    for serial in sorted(serials):
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
        builder = builder.add_revoked_certificate(entry)
    content = builder.sign(signing_key, SHA256()).public_bytes(Encoding.PEM)
    write_atomically(path, methodcaller("write", content))
    write_json(state / KEYS, {name: one for name, one in keys.items() if name not in names})
    return path


@contextmanager
def _changing(out: Path) -> Iterator[None]:
    """Let the block change ``out``: for its owner only, and undone if the block fails."""
    with owner_only(out), rollback_on_error(out):
        yield


@contextmanager
def owner_only(out: Path) -> Iterator[None]:
    """Let only the owner read what the block writes below ``out``, and what was there before.

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
    """Leave ``out`` as it was if the block fails: nothing half-written, and the keys that were there before."""
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


def _provision(out: Path, project: Mapping[str, Any], requests: Path | None) -> list[Kit]:
    """Have NVFlare make the kits below ``out``; keep the requests before, and project.yml afterwards."""
    if requests is not None:
        names = [one["name"] for one in project["participants"] if one["type"] == "client"]
        keep_requests(requests, _state_folder(out, project), names)
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
    _write_project(out, project)
    return [
        Kit(one.name, one.type, one.org, one.get_prop("role", ""), Path(folder, one.name))
        for one in context.get_project().get_all_participants()
    ]


class _ProvisionLog:
    """A log that keeps the problems which NVFlare's provisioning would print."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def info(self, message: str) -> None:
        """Drop the message."""

    debug = info

    def warning(self, message: str) -> None:
        """Keep the message."""
        self.problems.append(message)

    error = warning


def write_request(name: str, out: Path) -> Path:
    """Make a private key and a certificate signing request in the new folder ``out``; return the request's path.

    Raises:
        BadInput: no site can have the name, or ``out`` exists already.
    """
    require_name(name, "--name")
    if out.exists():
        raise BadInput(f"{out}: exists already; choose another --out, or send the request that is in it")
    key, _ = generate_keys()
    request = x509.CertificateSigningRequestBuilder().subject_name(x509_name(name)).sign(key, SHA256())
    path = out / f"{name}.csr"
    with _changing(out):
        write_atomically(path.with_suffix(".key"), methodcaller("write", serialize_pri_key(key)))
        write_atomically(path, methodcaller("write", request.public_bytes(Encoding.PEM)))
    return path


def read_request(path: Path, name: str) -> x509.CertificateSigningRequest:
    """Return the request of the participant ``name``.

    Raises:
        BadInput: the file is no request, another's, changed, or of a key that NVFlare cannot use.
    """
    try:
        request = x509.load_pem_x509_csr(read_bytes(path, MOST_PEM))
        names = [str(attribute.value) for attribute in request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        is_signed, key = request.is_signature_valid, request.public_key()
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: no certificate signing request ({error}); ask {name} for it again") from error
    if names != [name] or not is_signed:
        fault = f"of {', '.join(names) or 'nobody'}" if names != [name] else "changed on its way"
        raise BadInput(f"{path}: the request is {fault}, expected that of {name}; ask {name} for it again")
    if not isinstance(key, RSAPublicKey) or key.key_size < SMALLEST_KEY:
        raise BadInput(
            f"{path}: expected an RSA key of {SMALLEST_KEY} bits or more; `fedmerit deploy request` makes one"
        )
    return request


def keep_requests(folder: Path, state: Path, names: Iterable[str]) -> None:
    """Copy the requests NAME.csr of a ``folder`` into a project's ``state``; `BadInput` if a request cannot be used."""
    requests = sorted(folder.glob("*.csr"))
    if not requests:
        raise BadInput(f"{folder}: no request (*.csr) in it; hospitals make them with `fedmerit deploy request`")
    for path in requests:
        if path.stem not in set(names):
            raise BadInput(f"{path}: {path.stem} is none of the sites; leave it out, or name the site")
        read_request(path, path.stem)
        (state / REQUESTS).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, state / REQUESTS / path.name)


def place_key(kit: Path, key: Path) -> None:
    """Put a site's own key into its kit; `BadInput` if it is not the key of the kit's certificate."""
    startup = kit / "startup"
    if not is_pair(key, startup / KIT_CERTIFICATE):
        raise BadInput(f"{key}: not the key of {startup / KIT_CERTIFICATE}; expected that which `deploy request` made")
    if key.resolve() != (startup / KIT_KEY).resolve():
        before = os.umask(0o077)
        try:
            write_atomically(startup / KIT_KEY, methodcaller("write", key.read_bytes()))
        finally:
            os.umask(before)


def is_pair(key: Path, certificate: Path) -> bool:
    """Return whether the files hold a private key and the certificate of this key."""
    try:
        public_key = load_pem_private_key(key.read_bytes(), password=None).public_key()
        return public_key == x509.load_pem_x509_certificate(certificate.read_bytes()).public_key()
    except (OSError, ValueError, TypeError):
        return False
