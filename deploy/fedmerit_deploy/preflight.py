"""The preflight of a machine: every line says what was checked, the result, and what to do about it."""

import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import torch
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from nvflare.lighter.constants import ProvFileName

from fedmerit.ciphertexts import open_context
from fedmerit.engines.nvflare.components import class_path
from fedmerit.engines.nvflare.egress import EgressFilter
from fedmerit.errors import BadInput
from fedmerit.evidence.signatures import certificate_name
from fedmerit.files import read_json
from fedmerit.machine import cores, free_memory, pick_device
from fedmerit.plugin_references import refusal
from fedmerit.plugins import approvable
from fedmerit.site.policy import SiteScript
from fedmerit.version import NOT_INSTALLED, installed_versions
from fedmerit_deploy.check_result import CheckResult, Finding, fail, ok, warn
from fedmerit_deploy.kit_files import CERTIFICATES, kit_digest, read_kind, read_name
from fedmerit_deploy.kits import REFUSED, allows_surveys, class_policy, read_manifest
from fedmerit_deploy.machine_facts import LISTED
from fedmerit_deploy.network_checks import check_ports, check_server, check_start
from fedmerit_deploy.provisioning import VERSIONS_FILE

EXACT = ("fedmerit", "nvflare")  # packages whose version has to be the project's; others may change the last digits
SOON = timedelta(days=30)  # before a certificate ends the preflight warns
GATE_DOCS = "docs/privacy.md, what enforces the list"

GIB = 2**30
DISK = (1, 5)  # GiB free: below the first is too little, below the second little; models of every round, and logs
MEMORY = (1, 4)  # GiB available, likewise; one training process with a U-Net takes 1 to 2
ROOM, MACHINE = "make room, or move the kit", "end other programs, or take a larger machine"


def preflight(kit: Path, offline: bool = False) -> list[CheckResult]:
    """Everything but the data (`fedmerit check` knows that).

    Args:
        kit: the startup kit of a site or of the server, made ready.
        offline: the server need not be reachable yet.

    Raises:
        BadInput: the folder is no startup kit of a site or of the server, or it was not made ready.
    """
    kind = read_kind(kit)
    manifest = read_manifest(kit)
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("kit", lambda: iter([ok(f"SHA-256 {kit_digest(kit)}; --digest SHA256 compares it with the coordinator's")])),
        ("versions", lambda: _check_versions(kit)),
        ("certificate", lambda: _check_certificate(kit, kind)),
        ("policy", lambda: _check_policy(kit)),
        ("gate", lambda: _check_gate(kit) if kind == "client" else iter(())),
        ("parts of others", lambda: _check_parts(kit)),
        ("encryption", lambda: _check_encryption(kit, kind)),
        ("start", lambda: check_start(kit)),
        ("server", lambda: check_ports(kit) if kind == "server" else check_server(kit, offline)),
        ("device", lambda: _check_device(manifest.device or "auto", read_name(kit))),
        ("rules for jobs", lambda: iter([ok(manifest.jobs.changes)] * (kind == "client"))),
        ("facts for admins", lambda: _check_hidden(manifest.hidden) if kind == "client" else iter(())),
        ("script", lambda: _check_script(manifest.script)),
        ("disk", lambda: iter([_check_amount(shutil.disk_usage(kit).free, DISK, f"free at {kit}", ROOM)])),
        ("memory", lambda: iter([_check_amount(free_memory(), MEMORY, "available", MACHINE)])),
    ]
    return [CheckResult(what, state, message) for what, check in checks for state, message in check()]


def _check_script(script: SiteScript | None) -> Iterator[Finding]:
    if script:
        fault = script.fault
        yield (
            fail(f"{fault}; run `fedmerit deploy site` with --script again")
            if fault
            else ok(f"{script.file}, SHA-256 {script.sha256}")
        )


def _check_versions(kit: Path) -> Iterator[Finding]:
    path = kit / "local" / VERSIONS_FILE
    try:
        expected = {str(name): str(value) for name, value in read_json(path).items()}
    except (BadInput, AttributeError) as error:
        yield warn(f"the project's versions are not known ({error}); ask the coordinator for them")
        return
    installed = installed_versions()
    for name, wanted in expected.items():
        if (found := installed.get(name, NOT_INSTALLED)) != wanted:
            advice = "runs then need not repeat bit for bit" if name == "python" else f"pip install {name}=={wanted}"
            message = f"{name} {found} is installed, the project has {wanted}: {advice}"
            yield (fail if name in EXACT or found == NOT_INSTALLED else warn)(message)
    if expected.items() <= installed.items():
        yield ok(", ".join(f"{name} {value}" for name, value in expected.items()))


def _check_certificate(kit: Path, kind: str) -> Iterator[Finding]:
    base, startup = CERTIFICATES[kind], kit / "startup"
    try:
        own = x509.load_pem_x509_certificate((startup / f"{base}.crt").read_bytes())
        root = x509.load_pem_x509_certificate((startup / "rootCA.pem").read_bytes())
        key = load_pem_private_key((startup / f"{base}.key").read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        yield fail(f"{startup}: {base}.crt, {base}.key or rootCA.pem cannot be read ({error}); unpack the kit again")
        return
    flaws = [*_find_certificate_faults(own, root, key, read_name(kit))]
    yield from map(fail, flaws)
    yield from _is_readable_by_others(startup / f"{base}.key")
    last = min(own.not_valid_after_utc, root.not_valid_after_utc)
    if flaws:
        return
    if last - datetime.now(UTC) < SOON:
        yield warn(f"ends on {last:%Y-%m-%d}; ask the coordinator before that to renew it (`fedmerit deploy renew`)")
    else:
        yield ok(f"of {read_name(kit)}, valid until {last:%Y-%m-%d}")


def _is_readable_by_others(key: Path) -> Iterator[Finding]:
    if key.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        yield warn(f"others on this machine may read the key: chmod 600 {key}")


def _find_certificate_faults(
    own: x509.Certificate, root: x509.Certificate, key: PrivateKeyTypes, owner: str
) -> Iterator[str]:
    """Why a certificate and its key cannot be those of ``owner`` in the federation of ``root``, now."""
    try:
        own.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        yield "is not signed by the federation's authority (rootCA.pem); ask the coordinator for the kit again"
    if (name := certificate_name(own)) != owner:
        yield f"is that of {name}, the kit is that of {owner}; unpack the kit again"
    if key.public_key() != own.public_key():
        yield "and key do not belong together; unpack the kit again"
    now = datetime.now(UTC)
    for what, certificate in (("", own), ("of the federation's authority ", root)):
        first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if not first <= now <= last:
            yield (
                f"{what}is valid from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC, but it is "
                f"{now:%Y-%m-%d %H:%M}; set this machine's clock, or ask the coordinator to renew it"
            )


def _check_policy(kit: Path) -> Iterator[Finding]:
    """What jobs may do here: whether all that FedMerit's need, and whether more."""
    again = "run `fedmerit deploy` for this kit again"
    try:
        resources = read_json(kit / "local" / "resources.json")
        permissions = read_json(kit / "local" / "authorization.json")["permissions"]
        allowed = set(resources["class_allow_list"])
        enforced = resources["class_list_enforcement_mode"] == "enforce"
        open_to = [
            role
            for role, rights in sorted(permissions.items())
            if any(rights.get(right, "none") != "none" for right in REFUSED)
        ]
    except (BadInput, KeyError, TypeError, AttributeError) as error:
        yield fail(f"local/resources.json or local/authorization.json is not FedMerit's ({error}); {again}")
        return
    surveys = allows_surveys(resources)
    wanted = set(class_policy(read_kind(kit), surveys)["class_allow_list"])
    if lacking := wanted - allowed:
        yield fail(f"the class allow list lacks {', '.join(sorted(lacking))}: jobs would be refused; {again}")
    if more := allowed - wanted:
        yield warn(f"jobs may also name {', '.join(sorted(more))}; {again} if that is not meant")
    if not enforced:
        yield warn(f"the class allow list is not enforced; {again} if that is not meant")
    if open_to:
        yield warn(f"code of others or a shell is open to {', '.join(open_to)}; {again} if that is not meant")
    if allowed == wanted and enforced and not open_to:
        refused = "" if surveys else "; no surveys"
        yield ok(f"{len(allowed)} classes of fedmerit may be named by jobs; no code of others, no shell{refused}")


def _check_gate(kit: Path) -> Iterator[Finding]:
    """What a site's own privacy.json lets pass: the gate, last in every scope that jobs get, and how strict it is."""
    path = kit / "local" / "privacy.json"
    again = f"move it away and run `fedmerit deploy site` for this kit again, or mend it: {GATE_DOCS}"
    try:
        scopes = {str(scope["name"]): list(scope["task_result_filters"]) for scope in read_json(path)["scopes"]}
        if not scopes:
            raise ValueError("no scope")
        for name, filters in scopes.items():
            if not filters or filters[-1]["path"] != class_path(EgressFilter):
                yield warn(f"{path}: scope {name} does not end with the gate, {class_path(EgressFilter)}; {again}")
                continue
            last = EgressFilter(**filters[-1].get("args", {}))
            strict = ["only encrypted updates"] if last.encrypted else []
            strict += [f"{last.decimals} decimals", f"surveys of {last.least} patients and more"]
            before = [str(one["path"]).rpartition(".")[2] for one in filters[:-1]]
            yield ok(f"{', '.join(strict)}{'; before it ' + ', '.join(before) if before else ''}")
    except (BadInput, KeyError, TypeError, ValueError, AttributeError) as error:
        yield fail(f"{path}: jobs would end here ({error}); {again}")


def _check_hidden(hidden: Sequence[str]) -> Iterator[Finding]:
    """What an admin who asks does not learn of this machine; nothing where that is nothing."""
    if unknown := sorted(set(hidden) - set(LISTED)):
        yield fail(f"hidden: {', '.join(unknown)}: unknown, so admins learn nothing; known: {', '.join(LISTED)}")
    elif hidden:
        yield ok(f"hidden: {', '.join(hidden)}")


def _check_parts(kit: Path) -> Iterator[Finding]:
    """Whether the parts of others that are approved here are those that are installed; nothing where none is."""
    approved = read_manifest(kit).approved
    if approved is None:
        yield warn("jobs may name any code that is installed here; `fedmerit deploy approve` names what may be used")
        return
    for text in approved:
        try:
            refused = refusal(approvable(text), approved)
        except BadInput as error:
            refused = str(error)
        yield fail(refused) if refused else ok(f"{text} is as it was approved")


def _check_encryption(kit: Path, kind: str) -> Iterator[Finding]:
    name = ProvFileName.SERVER_CONTEXT_TENSEAL if kind == "server" else ProvFileName.CLIENT_CONTEXT_TENSEAL
    path = kit / "startup" / name
    if not path.exists():
        yield ok("no context in this kit: jobs with --privacy he will not run here")
        return
    if kind == "client":
        yield from _is_readable_by_others(path)
    try:
        open_context(path.read_bytes(), secret=kind == "client")
        yield ok(
            "decrypts what all sites of the federation sent" if kind == "client" else "adds up, and decrypts nothing"
        )
    except BadInput as error:
        yield fail(f"{path}: {error}")


def _check_device(setting: str, name: str) -> Iterator[Finding]:
    """What the manifest's ``setting`` means for ``name``: a GPU and its free memory, or the processor."""
    try:
        chosen = pick_device(setting, name)
    except BadInput as error:
        yield fail(f"{error}; run `fedmerit deploy` with another --device")
        return
    if chosen.type == "cuda":
        free, total = torch.cuda.mem_get_info(chosen)
        yield ok(f"{torch.cuda.get_device_name(chosen)}, {free / GIB:.1f} of {total / GIB:.1f} GiB free")
    else:
        yield ok(f"{chosen.type}, {cores()} cores")


def _check_amount(amount: int, limits: tuple[int, int], what: str, advice: str) -> Finding:
    text = f"{amount / GIB:.1f} GiB {what}"
    if amount >= limits[1] * GIB:
        return ok(text)
    least = limits[0] if amount < limits[0] * GIB else limits[1]
    return (fail if amount < limits[0] * GIB else warn)(f"{text}, expected {least} or more; {advice}")
