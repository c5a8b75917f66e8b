"""The checks of a machine: every line says what was checked, the outcome, and what to do about it.

NVFlare's ``preflight-check`` starts the kit and looks for ports and the server. It knows neither versions, nor the
policy, nor the egress filter, and names no cause, so the checks here are FedMerit's own.
"""

import os
import shutil
import socket
import ssl
import stat
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from nvflare.lighter.constants import ProvFileName

from fedmerit.ciphertexts import open_context
from fedmerit.engines.nvflare.components import class_path
from fedmerit.engines.nvflare.egress import EgressFilter
from fedmerit.engines.nvflare.start_scripts import NO_SPACES, PYTHON_FOLDER, is_closed, require_scripts
from fedmerit.errors import BadInput
from fedmerit.evidence.signatures import certificate_name
from fedmerit.files import read_object, read_text
from fedmerit.machine import cores, free_memory, pick_device
from fedmerit.plugin_references import refusal
from fedmerit.plugins import approvable
from fedmerit.site.policy import MANIFEST, JobRules, SiteScript
from fedmerit.trust import state_folder
from fedmerit.version import NOT_INSTALLED, installed_versions
from fedmerit_deploy.facts import LISTED
from fedmerit_deploy.kit_files import CERTIFICATES, admin_port, read_kind, read_name, server_address
from fedmerit_deploy.kit_integrity import AGAIN, is_as_sealed, read_seal, seal
from fedmerit_deploy.kits import REFUSED, allows_surveys, class_policy, read_manifest
from fedmerit_deploy.membership import ask_membership
from fedmerit_deploy.processes import connect, find_left_over, proxy_advice, running_processes
from fedmerit_deploy.provisioning import VERSIONS_FILE
from fedmerit_deploy.revocation import REVOKED, Revocations
from fedmerit_deploy.status import SOON

EXACT = ("fedmerit", "nvflare")  # packages whose version has to be the project's; others may change the last digits
EGRESS_DOCS = "docs/privacy.md, what enforces the list"
TIMEOUT_SECONDS = 5.0  # to connect to the server
POLICY, EGRESS, PARTS, RULES = "policy", "egress filter", "parts of others", "rules for jobs"
LOOSENING = ("kit", POLICY, EGRESS, PARTS, RULES)  # checks of what an operator decides
CLOCK_ERRORS = (9, 10)  # OpenSSL's numbers of a certificate that is not valid yet, or no longer
GIB = 2**30
DISK = (1, 5)  # GiB free: below the first is a failure, below the second a warning; models of every round, and logs
MEMORY = (1, 4)  # GiB available, in the same order; one training process with a U-Net takes 1 to 2
ROOM, MACHINE = "make room, or move the kit", "end other programs, or take a larger machine"


class State(StrEnum):
    """The state of a line."""

    ok = "ok"
    warn = "warn"
    fail = "fail"
    loose = "loose"  # allows more than the defaults: a failure unless the operator accepted it


@dataclass(frozen=True)
class CheckResult:
    """The result of one check."""

    what: str
    state: State
    message: str
    loosens: str = ""  # what allows more than the defaults, in the words that an operator accepts


class Finding(NamedTuple):
    """A state, and what was found."""

    state: State
    message: str


Findings = Iterator[Finding]
ok, warn, fail, loose = (partial(Finding, state) for state in State)


def check_machine(kit: Path, offline: bool = False, accept: bool = False) -> list[CheckResult]:
    """Check everything of a machine except the site's images, which `fedmerit check` knows.

    Args:
        kit: the startup kit of a site or of the server, made ready.
        offline: whether the server need not be reachable yet.
        accept: whether what allows more than the defaults is meant.

    Raises:
        BadInput: the folder is no startup kit of a site or of the server, or it was not made ready.
    """
    is_site, manifest = read_kind(kit) == "client", read_manifest(kit)
    memory = _check_amount(free_memory(), MEMORY, "available", MACHINE)
    disks = {place.stat().st_dev: place for place in (Path(manifest.runs), kit) if place.is_dir()}
    checks: list[tuple[str, Iterable[Finding]]] = [
        ("kit", _check_kit(kit)),
        ("versions", _check_versions(kit)),
        ("certificate", _check_certificate(kit)),
        (POLICY, _check_policy(kit)),
        (EGRESS, _check_egress(kit) if is_site else ()),
        (PARTS, _check_parts(kit)),
        ("encryption", _check_encryption(kit, is_site)),
        ("start", _check_start(kit)),
        ("server", _check_server(kit, offline) if is_site else _check_ports(kit)),
        ("device", _check_device(manifest.device or "auto", read_name(kit))),
        (RULES, _check_rules(manifest.jobs) if is_site else ()),
        ("facts for admins", _check_hidden(manifest.hidden) if is_site else ()),
        ("script", _check_script(manifest.script)),
        ("revoked", () if is_site else _check_revoked(kit)),
        ("disk", [_check_amount(shutil.disk_usage(one).free, DISK, f"free at {one}", ROOM) for one in disks.values()]),
        ("memory", [memory]),
    ]
    found = [CheckResult(what, *finding) for what, findings in checks for finding in findings]
    sealed = read_seal(kit)
    return [_settle(result, accept, sealed.accepted if sealed else ()) for result in found]


def _settle(result: CheckResult, accept: bool, accepted: Collection[str]) -> CheckResult:
    """Return a result with a warning or a failure instead of what is loose; all others as they are."""
    if result.state is not State.loose:
        return result
    if accept or result.message in accepted:
        return replace(result, state=State.warn, message=f"{result.message} (accepted)", loosens=result.message)
    advice = "undo it, or give --accept to `fedmerit deploy site`, `server` or `rules` if your hospital means it"
    return replace(result, state=State.fail, message=f"{result.message}; {advice}", loosens=result.message)


def accept_loose(kit: Path, what: Collection[str] = ()) -> None:
    """Write the seal of a kit with what it allows beyond the defaults as accepted; of the named checks only."""
    sealed = read_seal(kit)
    chosen = [result for result in check_machine(kit, offline=True) if not what or result.what in what]
    seal(kit, [*(sealed.accepted if sealed else ()), *(result.loosens for result in chosen if result.loosens)])


def _check_kit(kit: Path) -> Findings:
    """Yield the digest of what the coordinator sent, and whether rules and policy are as this machine sealed them."""
    if read_seal(kit) is None:
        yield fail(
            f"its rules are not sealed by this user on this machine ({state_folder()}): run `fedmerit deploy site` or "
            "`server` as the user that will run it"
        )
    elif not is_as_sealed(kit):
        yield fail(f"files in {kit / 'local'} were changed since they were sealed; {AGAIN}")
    else:
        yield ok("rules and policy are as they were sealed here")


def _check_rules(rules: JobRules) -> Findings:
    """Yield each rule for jobs that allows more than the default; else those that were changed."""
    yield from map(loose, rules.looser)
    if not rules.looser:
        yield ok(rules.changes)


def _check_script(script: SiteScript | None) -> Findings:
    if script and (fault := script.fault):
        yield fail(f"{fault}; run `fedmerit deploy site` with --script again")
    elif script:
        yield ok(f"{script.file}, SHA-256 {script.sha256}")


def _check_versions(kit: Path) -> Findings:
    path = kit / "local" / VERSIONS_FILE
    try:
        expected = {str(name): str(value) for name, value in read_object(path).items()}
    except BadInput as error:
        yield warn(f"the project's versions are not known ({error}); ask the coordinator for them")
        return
    installed = installed_versions()
    for name, wanted in expected.items():
        if (version := installed.get(name, NOT_INSTALLED)) != wanted:
            advice = f"pip install {name}=={wanted}"
            if name == "python":
                advice = "runs then need not repeat bit for bit"
            elif name == "fedmerit":  # no package index has it
                advice = "install the wheel of that version, which the coordinator has"
            message = f"{name} {version} is installed, the project has {wanted}: {advice}"
            yield (fail if name in EXACT or version == NOT_INSTALLED else warn)(message)
    if expected.items() <= installed.items():
        yield ok(", ".join(f"{name} {value}" for name, value in expected.items()))


def _check_certificate(kit: Path) -> Findings:
    base, startup, owner = CERTIFICATES[read_kind(kit)], kit / "startup", read_name(kit)
    try:
        certificate = x509.load_pem_x509_certificate((startup / f"{base}.crt").read_bytes())
        root = x509.load_pem_x509_certificate((startup / "rootCA.pem").read_bytes())
        key = load_pem_private_key((startup / f"{base}.key").read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        yield fail(f"{startup}: {base}.crt, {base}.key or rootCA.pem cannot be read ({error}); unpack the kit again")
        return
    faults = [*_find_certificate_faults(certificate, root, key.public_key(), owner)]
    yield from map(fail, faults)
    yield from _check_private(startup / f"{base}.key")
    last = min(certificate.not_valid_after_utc, root.not_valid_after_utc)
    if not faults and last - datetime.now(UTC) < SOON:
        yield warn(f"ends on {last:%Y-%m-%d}; ask the coordinator before that to renew it (`fedmerit deploy renew`)")
    elif not faults:
        yield ok(f"of {owner}, valid until {last:%Y-%m-%d}")


def _check_private(key: Path) -> Findings:
    if key.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        yield warn(f"others on this machine may read the key: chmod 600 {key}")


def _find_certificate_faults(
    certificate: x509.Certificate, root: x509.Certificate, key: Any, owner: str
) -> Iterator[str]:
    """Yield why a certificate and a public key cannot be those of ``owner`` in the federation of ``root``, today."""
    try:
        certificate.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        yield "is not signed by the federation's authority (rootCA.pem); ask the coordinator for the kit again"
    if (name := certificate_name(certificate)) != owner:
        yield f"is that of {name}, the kit is that of {owner}; unpack the kit again"
    if key != certificate.public_key():
        yield "and key do not belong together; unpack the kit again"
    now = datetime.now(UTC)
    for what, checked in (("", certificate), ("of the federation's authority ", root)):
        first, last = checked.not_valid_before_utc, checked.not_valid_after_utc
        if not first <= now <= last:
            yield (
                f"{what}is valid from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC, but it is "
                f"{now:%Y-%m-%d %H:%M}; set this machine's clock, or ask the coordinator to renew it"
            )


def _check_policy(kit: Path) -> Findings:
    """Yield whether jobs may do here all that FedMerit's need, and whether they may do more."""
    again, manifest = "run `fedmerit deploy` for this kit again", kit.resolve() / "local" / MANIFEST
    try:
        resources = read_object(kit / "local" / "resources.json")
        permissions = read_object(kit / "local" / "authorization.json")["permissions"]
        allowed = set(resources["class_allow_list"])
        is_enforced = resources["class_list_enforcement_mode"] == "enforce"
        prepared = Path(resources["app_validator"]["args"]["manifest"])
        open_to = [
            role
            for role, rights in sorted(permissions.items())
            if any(rights.get(right, "none") != "none" for right in REFUSED)
        ]
    except (BadInput, KeyError, TypeError, AttributeError) as error:
        yield fail(f"local/resources.json or local/authorization.json is not FedMerit's ({error}); {again}")
        return
    if prepared != manifest:
        yield fail(f"the kit was moved from {prepared.parent.parent}, where its jobs still expect its files: {again}")
    surveys = allows_surveys(resources)
    wanted = set(class_policy(read_kind(kit), surveys)["class_allow_list"])
    if lacking := wanted - allowed:
        yield fail(f"the class allow list lacks {', '.join(sorted(lacking))}: jobs would be refused; {again}")
    if extra := allowed - wanted:
        yield loose(f"jobs may also name {', '.join(sorted(extra))}")
    if not is_enforced:
        yield loose("the class allow list is not enforced")
    if open_to:
        yield loose(f"code of others or a shell is open to {', '.join(open_to)}")
    if allowed == wanted and is_enforced and not open_to:
        refused = "" if surveys else "; no surveys"
        yield ok(f"{len(allowed)} classes of fedmerit may be named by jobs; no code of others, no shell{refused}")


def _check_egress(kit: Path) -> Findings:
    """Yield what a site's privacy.json lets pass: the egress filter, last in every scope, and how strict it is."""
    path = kit / "local" / "privacy.json"
    again = f"move it away and run `fedmerit deploy site` for this kit again, or mend it: {EGRESS_DOCS}"
    try:
        scopes = {str(scope["name"]): list(scope["task_result_filters"]) for scope in read_object(path)["scopes"]}
        if not scopes:
            raise ValueError("no scope")
        for name, filters in scopes.items():
            if not filters or filters[-1]["path"] != class_path(EgressFilter):
                yield loose(
                    f"scope {name} of {path.name} does not end with the egress filter, {class_path(EgressFilter)}"
                )
                continue
            egress, usual = EgressFilter(**filters[-1].get("args", {})), EgressFilter()
            if egress.decimals > usual.decimals or egress.least < usual.least:
                yield loose(f"{egress.decimals} decimals and surveys of {egress.least} patients leave the site")
            strict = ["only encrypted updates"] if egress.encrypted else []
            strict += [f"{egress.decimals} decimals", f"surveys of {egress.least} patients and more"]
            before = [str(one["path"]).rpartition(".")[2] for one in filters[:-1]]
            yield ok(f"{', '.join(strict)}{'; before it ' + ', '.join(before) if before else ''}")
    except (BadInput, KeyError, TypeError, ValueError, AttributeError) as error:
        yield fail(f"{path}: jobs would end here ({error}); {again}")


def _check_hidden(hidden: Sequence[str]) -> Findings:
    """Yield what an admin who asks does not learn of this machine; nothing if nothing is hidden."""
    if unknown := sorted(set(hidden) - set(LISTED)):
        yield fail(f"hidden: {', '.join(unknown)}: unknown, so admins learn nothing; known: {', '.join(LISTED)}")
    elif hidden:
        yield ok(f"hidden: {', '.join(hidden)}")


def _check_parts(kit: Path) -> Findings:
    """Yield whether the approved parts of others are those that are installed; nothing if none is approved."""
    approved = read_manifest(kit).approved
    if approved is None:
        yield loose("jobs may name any code that is installed here")
        return
    for text in approved:
        try:
            refused = refusal(approvable(text), approved)
        except BadInput as error:
            refused = str(error)
        yield fail(refused) if refused else ok(f"{text} is as it was approved")


def _check_encryption(kit: Path, is_site: bool) -> Findings:
    name = ProvFileName.CLIENT_CONTEXT_TENSEAL if is_site else ProvFileName.SERVER_CONTEXT_TENSEAL
    path = kit / "startup" / name
    if not path.exists():
        yield ok("no context in this kit: jobs with --privacy he will not run here")
        return
    if is_site:
        yield from _check_private(path)
    try:
        open_context(path.read_bytes(), secret=is_site)
        yield ok("decrypts what all sites of the federation sent" if is_site else "adds up, and decrypts nothing")
    except BadInput as error:
        yield fail(f"{path}: {error}")


def _check_start(kit: Path) -> Findings:
    """Yield whether startup/start.sh would start what is checked here, and import from nowhere else."""
    if any(letter.isspace() for letter in str(kit.resolve())):
        yield fail(NO_SPACES)
        return
    here, file = Path(sys.executable).parent, kit / "local" / PYTHON_FOLDER
    try:
        folder, is_safe = read_text(file).strip() if file.exists() else "", is_closed(kit)
        require_scripts(kit)
    except BadInput as error:
        yield fail(f"{error}; unpack the kit again, then run `fedmerit deploy` for it")
        return
    python = shutil.which("python3", path=os.pathsep.join(filter(None, [folder, os.environ.get("PATH", "")])))
    if not is_safe:
        yield warn(
            "startup/sub_start.sh is of an older FedMerit, and imports modules from the folder it is started in; ask "
            "the coordinator to renew the kit (`fedmerit deploy renew`)"
        )
        python = shutil.which("python3")
    if python is None or Path(python).parent.resolve() != here.resolve():
        yield warn(
            f"start.sh takes {python or 'no python3: PATH has none'}, this is {here / 'python3'}: "
            f"run `fedmerit deploy` for this kit again, or PATH={here}:$PATH {kit / 'startup' / 'start.sh'}"
        )
    if left_over := find_left_over(kit):
        yield fail(left_over)
    elif python:
        yield ok("runs already" if running_processes(kit) else f"start.sh will take {python}")


def _check_server(kit: Path, offline: bool) -> Findings:
    """Yield whether a site reaches the server, the way gRPC goes, and is accepted."""
    host, port = server_address(kit)
    bad, startup = warn if offline else fail, kit / "startup"
    try:
        context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
        context.set_alpn_protocols(["h2"])
        with connect(host, port, TIMEOUT_SECONDS) as line, context.wrap_socket(line, server_hostname=host) as secure:
            if not secure.recv(1):
                yield fail(
                    f"{host}:{port} hangs up: it does not accept the certificate of this kit, which has ended or is of "
                    "another federation; ask the coordinator for a new kit"
                )
            else:
                yield from _check_membership(kit, f"{host}:{port}")
    except ssl.SSLCertVerificationError as error:
        cause = (
            "is this machine's clock wrong?"
            if error.verify_code in CLOCK_ERRORS
            else "is a proxy in between, or the kit of another federation (startup/rootCA.pem)?"
        )
        yield fail(f"{host}:{port} answers with a certificate that is not its own ({error.verify_message}); {cause}")
    except ssl.SSLError as error:
        yield bad(f"{host}:{port} answers, but not over TLS ({error.reason}); is another service on that port?")
    except OSError as error:
        if proxy := proxy_advice(host):
            yield fail(f"{host}:{port} cannot be reached ({error.strerror or error}){proxy}")
        elif isinstance(error, socket.gaierror):
            yield bad(f"{host} is not known here; have the name entered in the DNS, or in /etc/hosts")
        elif isinstance(error, TimeoutError):
            yield bad(f"{host}:{port} does not answer; have outgoing TCP to that port opened in the firewall")
        else:
            reason = error.strerror or error
            yield bad(f"{host}:{port} cannot be reached ({reason}); is the server started, is the port right?")


def _check_membership(kit: Path, server: str) -> Findings:
    """Yield what the server, which answers, says of the membership of a site."""
    said = ask_membership(kit)
    faults = list(said.find_faults(time.time())) if said else []
    yield from (fail(f"{server}: {fault}") for fault in faults)
    if said is None:
        yield ok(f"{server} answers, and accepts the certificate of this kit")
    elif not faults:
        yield ok(f"{server} accepts this kit: its certificate is not revoked, and the clocks agree")


def _check_ports(kit: Path) -> Findings:
    """Yield whether the server can listen where its kit says, and sites find it there."""
    if running_processes(kit):
        yield ok("runs already")
        return
    host, port = server_address(kit)
    taken = [text for one in sorted({port, admin_port(kit)}) if (text := _why_taken(one))]
    yield from map(fail, taken)
    try:
        known = {str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except socket.gaierror:
        yield warn(f"{host} is not known here; the sites need it in their DNS or /etc/hosts")
        return
    local = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
    if not known & local:
        yield warn(f"{host} is {', '.join(sorted(known))}, no address of this machine; fine if it is passed on to here")
    elif not taken:
        yield ok(f"{host}, port {port} is free; have incoming TCP to it opened in the firewall")


def _check_revoked(kit: Path) -> Findings:
    """Yield which list of revoked certificates is in force at the server; nothing if there is none."""
    path, revocations = kit / "local" / REVOKED, Revocations(kit)
    serials, listed = revocations.serials, revocations.listed
    if revocations.is_unreadable:
        yield fail(
            f"{path}: cannot be read, or is not the authority's, so the server lets nobody in; copy it there again"
        )
    elif lacking := serials - listed:
        what = "is an older list" if path.exists() else "is gone"
        yield warn(
            f"{path}: {what}; {len(lacking)} certificates of a later one stay revoked here; copy the newest there again"
        )
    elif serials:
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        yield ok(f"{len(serials)} certificates, by {path.name} of {written:%Y-%m-%d %H:%M} UTC")


def _why_taken(port: int) -> str:
    with socket.socket() as candidate:
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind(("", port))
        except OSError as error:
            reason = error.strerror or error
            return f"port {port} cannot be listened on ({reason}); stop what is there, or provision other ports"
    return ""


def _check_device(setting: str, name: str) -> Findings:
    """Yield what the manifest's device means: a GPU and its free memory, or the processor."""
    try:
        device = pick_device(setting, name)
    except BadInput as error:
        yield fail(f"{error}; run `fedmerit deploy` with another --device")
        return
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        yield ok(f"{torch.cuda.get_device_name(device)}, {free / GIB:.1f} of {total / GIB:.1f} GiB free")
    else:
        yield ok(f"{device.type}, {cores()} cores")


def _check_amount(amount: int, limits: tuple[int, int], what: str, advice: str) -> Finding:
    text = f"{amount / GIB:.1f} GiB {what}"
    if amount >= limits[1] * GIB:
        return ok(text)
    is_too_little = amount < limits[0] * GIB
    return (fail if is_too_little else warn)(f"{text}, expected {limits[not is_too_little]} or more; {advice}")
