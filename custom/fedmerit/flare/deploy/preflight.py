"""Is this machine ready? Every line says what was looked at, how it is, and what to do about it."""

import os
import shutil
import socket
import ssl
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import torch
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import NameOID
from nvflare.lighter.constants import ProvFileName

from fedmerit.errors import BadInput
from fedmerit.files import read_json
from fedmerit.flare.deploy.kits import REFUSED, kind_of, manifest_of, name_of, server_address
from fedmerit.flare.deploy.processes import running
from fedmerit.flare.deploy.provision import VERSIONS_FILE
from fedmerit.flare.recipe import site_policy
from fedmerit.records.ciphertexts import open_context
from fedmerit.training.place import pick_device

EXACT = ("fedmerit", "nvflare")  # packages whose version has to be the project's; others may change the last digits
SOON = timedelta(days=30)  # a certificate that ends within this is told
GIB = 2**30
DISK = (1, 5)  # GiB free: below the first is too little, below the second little; models of every round, and logs
MEMORY = (1, 4)  # GiB available, likewise; one training process with a U-Net takes 1 to 2
CONNECT = 5.0  # seconds
CERTIFICATES = {"server": "server", "client": "client", "admin": "client"}  # basename of the files, by kind of kit


class State(StrEnum):
    """How a line of the preflight is: fine, worth a look, or in the way."""

    ok = "ok"
    warn = "warn"
    fail = "fail"


@dataclass(frozen=True)
class Line:
    """One thing that was looked at."""

    what: str
    state: State
    told: str


Found = tuple[State, str]


def ok(told: str) -> Found:
    """Fine."""
    return State.ok, told


def warn(told: str) -> Found:
    """Worth a look."""
    return State.warn, told


def fail(told: str) -> Found:
    """In the way."""
    return State.fail, told


def preflight(kit: Path, offline: bool = False) -> list[Line]:
    """Everything but the data (`fedmerit check` knows that).

    Args:
        kit: the startup kit of a site or of the server, made ready.
        offline: the server need not be reachable yet.

    Raises:
        BadInput: the folder is no startup kit of a site or of the server, or it was not made ready.
    """
    kind = kind_of(kit)
    manifest = manifest_of(kit)
    checks: list[tuple[str, Callable[[], Iterator[Found]]]] = [
        ("versions", lambda: _versions(kit)),
        ("certificate", lambda: _certificate(kit, kind)),
        ("policy", lambda: _policy(kit)),
        ("encryption", lambda: _encryption(kit, kind)),
        ("server", lambda: _ports(kit) if kind == "server" else _server(kit, offline)),
        ("device", lambda: _device(manifest.get("device", "auto"), name_of(kit))),
        ("disk", lambda: _disk(kit)),
        ("memory", _memory),
    ]
    return [Line(what, state, told) for what, check in checks for state, told in check()]


def _versions(kit: Path) -> Iterator[Found]:
    path = kit / "local" / VERSIONS_FILE
    try:
        expected = {str(name): str(value) for name, value in read_json(path).items()}
    except (BadInput, AttributeError) as error:
        yield warn(f"the project's versions are not known ({error}); ask the coordinator for them")
        return
    different = []
    for name, wanted in expected.items():
        try:
            found = version(name)
        except PackageNotFoundError:
            found = "none"
        if found != wanted:
            different.append((name, found, wanted))
    for name, found, wanted in different:
        told = f"{name} {found} is installed, the project has {wanted}: pip install {name}=={wanted}"
        yield (fail if name in EXACT or found == "none" else warn)(told)
    if not different:
        yield ok(", ".join(f"{name} {value}" for name, value in expected.items()))


def _certificate(kit: Path, kind: str) -> Iterator[Found]:
    base, startup = CERTIFICATES[kind], kit / "startup"
    try:
        own = x509.load_pem_x509_certificate((startup / f"{base}.crt").read_bytes())
        root = x509.load_pem_x509_certificate((startup / "rootCA.pem").read_bytes())
        key = load_pem_private_key((startup / f"{base}.key").read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        yield fail(f"{startup}: {base}.crt, {base}.key or rootCA.pem cannot be read ({error}); unpack the kit again")
        return
    flaws = [*_flaws(own, root, key, name_of(kit))]
    yield from map(fail, flaws)
    if (startup / f"{base}.key").stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        yield warn(f"others on this machine may read the key: chmod 600 {startup / f'{base}.key'}")
    last = min(own.not_valid_after_utc, root.not_valid_after_utc)
    if last - datetime.now(UTC) < SOON:
        yield warn(f"ends on {last:%Y-%m-%d}; ask the coordinator for a new kit before that")
    elif not flaws:
        yield ok(f"of {name_of(kit)}, valid until {last:%Y-%m-%d}")


def _flaws(own: x509.Certificate, root: x509.Certificate, key: PrivateKeyTypes, owner: str) -> Iterator[str]:
    """Why a certificate and its key cannot be those of ``owner`` in the federation of ``root``, now."""
    try:
        own.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        yield "is not signed by the federation's authority (rootCA.pem); ask the coordinator for the kit again"
    if (name := str(own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)) != owner:
        yield f"is that of {name}, the kit is that of {owner}; unpack the kit again"
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*form) != own.public_key().public_bytes(*form):
        yield "and key do not belong together; unpack the kit again"
    now = datetime.now(UTC)
    for what, certificate in (("", own), ("of the federation's authority ", root)):
        first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if not first <= now <= last:
            yield (
                f"{what}is valid from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC, but it is "
                f"{now:%Y-%m-%d %H:%M}; set this machine's clock, or ask the coordinator for a new kit"
            )


def _policy(kit: Path) -> Iterator[Found]:
    again = "run `fedmerit deploy` for this kit again"
    try:
        resources = read_json(kit / "local" / "resources.json")
        permissions = read_json(kit / "local" / "authorization.json")["permissions"]
        allowed, wanted = (
            set(resources["class_allow_list"]),
            set(site_policy(track=kind_of(kit) == "server")["class_allow_list"]),
        )
        enforced = resources["class_list_enforcement_mode"] == "enforce"
        open_to = sorted(
            role
            for role, rights in permissions.items()
            if any(rights.get(right, "none") != "none" for right in REFUSED)
        )
    except (BadInput, KeyError, TypeError, AttributeError) as error:
        yield fail(f"local/resources.json or local/authorization.json is not FedMerit's ({error}); {again}")
        return
    if lacking := wanted - allowed:
        yield fail(f"the class allow list lacks {', '.join(sorted(lacking))}: jobs would be refused; {again}")
    if more := allowed - wanted:
        yield warn(f"jobs may also name {', '.join(sorted(more))}; {again} if that is not meant")
    if not enforced:
        yield warn(f"the class allow list is not enforced; {again} if that is not meant")
    if open_to:
        yield warn(f"code of others or a shell is open to {', '.join(open_to)}; {again} if that is not meant")
    if allowed == wanted and enforced and not open_to:
        yield ok(f"{len(allowed)} classes of fedmerit may be named by jobs; no code of others, no shell")


def _encryption(kit: Path, kind: str) -> Iterator[Found]:
    name = ProvFileName.SERVER_CONTEXT_TENSEAL if kind == "server" else ProvFileName.CLIENT_CONTEXT_TENSEAL
    path = kit / "startup" / name
    if not path.exists():
        yield ok("no context in this kit: jobs with --privacy he will not run here")
        return
    if kind == "client" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        yield warn(f"others on this machine may read the key: chmod 600 {path}")
    try:
        open_context(path.read_bytes(), secret=kind == "client")
        yield ok(
            "decrypts what all sites of the federation sent" if kind == "client" else "adds up, and decrypts nothing"
        )
    except BadInput as error:
        yield fail(f"{path}: {error}")


def _server(kit: Path, offline: bool) -> Iterator[Found]:
    host, port = server_address(kit)
    bad = warn if offline else fail
    startup = kit / "startup"
    try:
        context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection((host, port), timeout=CONNECT) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            if secure.recv(1):
                yield ok(f"{host}:{port} answers, and accepts the certificate of this kit")
            else:
                yield fail(f"{host}:{port} hangs up: it does not accept the certificate of this kit; ask for a new one")
    except ssl.SSLCertVerificationError as error:
        yield fail(
            f"{host}:{port} answers with a certificate that is not its own ({error.verify_message}); "
            "is a proxy in between?"
        )
    except ssl.SSLError as error:
        yield bad(f"{host}:{port} answers, but not over TLS ({error.reason}); is another service on that port?")
    except socket.gaierror:
        yield bad(f"{host} is not known here; have the name entered in the DNS, or in /etc/hosts")
    except TimeoutError:
        yield bad(f"{host}:{port} does not answer; have outgoing TCP to that port opened in the firewall")
    except OSError as error:
        yield bad(
            f"{host}:{port} cannot be reached ({error.strerror or error}); is the server started, is the port right?"
        )


def _ports(kit: Path) -> Iterator[Found]:
    if running(kit):
        yield ok("runs already")
        return
    content = read_json(kit / "startup" / "fed_server.json")["servers"][0]
    host, port = server_address(kit)
    taken = [*_taken({port, int(content["admin_port"])})]
    yield from map(fail, taken)
    try:
        known = {str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except socket.gaierror:
        yield warn(f"{host} is not known here; the sites need it in their DNS or /etc/hosts")
        return
    own = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
    if not known & own:
        yield warn(f"{host} is {', '.join(sorted(known))}, no address of this machine; fine if it is passed on to here")
    elif not taken:
        yield ok(f"{host}, port {port} is free; have incoming TCP to it opened in the firewall")


def _taken(ports: set[int]) -> Iterator[str]:
    """Why ports cannot be listened on."""
    for port in sorted(ports):
        with socket.socket() as candidate:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                candidate.bind(("", port))
            except OSError as error:
                reason = error.strerror or error
                yield f"port {port} cannot be listened on ({reason}); stop what is there, or provision other ports"


def _device(device: str, name: str) -> Iterator[Found]:
    try:
        chosen = pick_device(device, name)
    except BadInput as error:
        yield fail(f"{error}; run `fedmerit deploy` with another --device")
        return
    if chosen.type == "cuda":
        free, total = torch.cuda.mem_get_info(chosen)
        yield ok(f"{torch.cuda.get_device_name(chosen)}, {free / GIB:.1f} of {total / GIB:.1f} GiB free")
    else:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        yield ok(f"{chosen.type}, {cores} cores")


def _disk(kit: Path) -> Iterator[Found]:
    yield _enough(shutil.disk_usage(kit).free, DISK, f"free at {kit}", "make room, or move the kit")


def _memory() -> Iterator[Found]:
    yield _enough(
        psutil.virtual_memory().available, MEMORY, "available", "end other programs, or take a larger machine"
    )


def _enough(amount: int, limits: tuple[int, int], what: str, advice: str) -> Found:
    told = f"{amount / GIB:.1f} GiB {what}"
    if amount >= limits[1] * GIB:
        return ok(told)
    least = limits[0] if amount < limits[0] * GIB else limits[1]
    return (fail if amount < limits[0] * GIB else warn)(f"{told}, expected {least} or more; {advice}")
