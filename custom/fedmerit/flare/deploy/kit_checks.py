"""Checks of a startup kit: versions, certificate, what jobs may do, keys."""

import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from nvflare.lighter.constants import ProvFileName

from fedmerit.errors import BadInput
from fedmerit.files import read_json
from fedmerit.flare.deploy.check_result import Finding, fail, ok, warn
from fedmerit.flare.deploy.kits import REFUSED, allows_surveys, class_path, read_kind, read_manifest, read_name
from fedmerit.flare.deploy.provision import VERSIONS_FILE
from fedmerit.flare.egress import EgressFilter
from fedmerit.flare.recipe import build_site_policy
from fedmerit.plugin_references import refusal
from fedmerit.plugins import approvable
from fedmerit.records.ciphertexts import open_context
from fedmerit.records.signatures import certificate_name as name_of_certificate
from fedmerit.trainers.monai_trainer.machine_settings import ALL_PARTS, PARTS

EXACT = ("fedmerit", "nvflare")  # packages whose version has to be the project's; others may change the last digits
SOON = timedelta(days=30)  # before a certificate ends the preflight warns
GATE_DOCS = "docs/privacy.md, what enforces the list"
CERTIFICATES = {"server": "server", "client": "client", "admin": "client"}  # basename of the files, by kind of kit


def versions(kit: Path) -> Iterator[Finding]:
    """Whether the packages here are those that the project was made with."""
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
        message = f"{name} {found} is installed, the project has {wanted}: pip install {name}=={wanted}"
        yield (fail if name in EXACT or found == "none" else warn)(message)
    if not different:
        yield ok(", ".join(f"{name} {value}" for name, value in expected.items()))


def certificate(kit: Path, kind: str) -> Iterator[Finding]:
    """Whether certificate and key are those of the kit's owner, in this federation, now."""
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
    if (name := name_of_certificate(own)) != owner:
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
                f"{now:%Y-%m-%d %H:%M}; set this machine's clock, or ask the coordinator to renew it"
            )


def policy(kit: Path) -> Iterator[Finding]:
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
    wanted = set(build_site_policy(read_kind(kit) == "server", surveys)["class_allow_list"])
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


def gate(kit: Path) -> Iterator[Finding]:
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


def parts(kit: Path) -> Iterator[Finding]:
    """Whether the parts of others that are approved here are those that are installed; nothing where none is."""
    approved = read_manifest(kit).get(PARTS, {})
    if approved == ALL_PARTS:
        yield warn("jobs may name any code that is installed here; `fedmerit deploy approve` names what may be used")
        return
    for text in approved:
        try:
            refused = refusal(approvable(text), approved)
        except BadInput as error:
            refused = str(error)
        yield fail(refused) if refused else ok(f"{text} is as it was approved")


def encryption(kit: Path, kind: str) -> Iterator[Finding]:
    """Which half of the keys of encrypted jobs is here."""
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
