"""Certificates of participants: keys that their owners made themselves, and certificates that are taken back.

NVFlare's ``cert request``, ``cert approve`` and ``package`` do the first for kits of their own: ``approve`` takes only
an authority of ``cert init``, and ``package`` builds the kit at the hospital, without the shared keys of encrypted
runs. Here `CertBuilder` makes the certificate of a request as it makes all others.
"""

import datetime
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID
from nvflare.lighter.constants import CtxKey
from nvflare.lighter.entity import Participant
from nvflare.lighter.impl.cert import CertBuilder
from nvflare.lighter.spec import Project, ProvisionContext
from nvflare.lighter.utils import generate_keys, serialize_pri_key, x509_name

from fedmerit.errors import BadInput
from fedmerit.evidence.signatures import MOST_PEM
from fedmerit.files import read_bytes, read_json, write_atomically
from fedmerit.trainers.monai.data import require_name
from fedmerit_deploy.revocation import REVOKED

KEY, CERTIFICATE = "client.key", "client.crt"  # in the startup/ folder of a site's kit
REQUESTS = "requests"  # in the state folder of a project: NAME.csr of participants that made their own keys
SMALLEST_KEY = 2048  # bits
LIST_DAYS = 3650  # until the next list of revoked certificates is due at the latest


class RequestedCertBuilder(CertBuilder):
    """NVFlare's provisioning step, for participants with a request too: their kits hold no key."""

    def __init__(self, root_valid_days: int):
        super().__init__(root_valid_days=root_valid_days)

    def get_pri_key_cert(self, participant: Participant) -> tuple[Any, x509.Certificate]:
        """Of a participant with a request, its certificate, and a key that belongs to nothing."""
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
        """As NVFlare's; afterwards no key is left that is not its certificate's."""
        super().build(project, ctx)
        for participant in project.get_clients():
            startup = Path(ctx.get_kit_dir(participant))
            if not is_pair(startup / KEY, startup / CERTIFICATE):
                (startup / KEY).unlink()


def write_request(name: str, out: Path) -> Path:
    """Make a private key and a certificate signing request in the new folder ``out``; the path of the request.

    Raises:
        BadInput: no site can have the name, or ``out`` exists already.
    """
    require_name(name, "--name")
    if out.exists():
        raise BadInput(f"{out}: exists already; choose another --out, or send the request that is in it")
    key, _ = generate_keys()
    request = x509.CertificateSigningRequestBuilder().subject_name(x509_name(name)).sign(key, SHA256())
    out.mkdir(parents=True, mode=stat.S_IRWXU)
    (out / f"{name}.key").touch(mode=stat.S_IRUSR | stat.S_IWUSR)
    (out / f"{name}.key").write_bytes(serialize_pri_key(key))
    path = out / f"{name}.csr"
    path.write_bytes(request.public_bytes(Encoding.PEM))
    return path


def read_request(path: Path, name: str) -> x509.CertificateSigningRequest:
    """A participant's request; `BadInput` if it is none, another's, changed, or of a key that NVFlare cannot use."""
    try:
        request = x509.load_pem_x509_csr(read_bytes(path, MOST_PEM))
        names = [str(one.value) for one in request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        signed, key = request.is_signature_valid, request.public_key()
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: no certificate signing request ({error}); ask {name} for it again") from error
    if names != [name] or not signed:
        found = f"of {', '.join(names) or 'nobody'}" if names != [name] else "changed on its way"
        raise BadInput(f"{path}: the request is {found}, expected that of {name}; ask {name} for it again")
    if not isinstance(key, RSAPublicKey) or key.key_size < SMALLEST_KEY:
        raise BadInput(
            f"{path}: expected an RSA key of {SMALLEST_KEY} bits or more; `fedmerit deploy request` makes one"
        )
    return request


def keep_requests(folder: Path, state: Path, names: Iterable[str]) -> None:
    """Put the requests NAME.csr that are in a ``folder`` into a project's ``state``; `BadInput` if one is of no use."""
    found = sorted(folder.glob("*.csr"))
    if not found:
        raise BadInput(f"{folder}: no request (*.csr) in it; hospitals make them with `fedmerit deploy request`")
    for path in found:
        if path.stem not in set(names):
            raise BadInput(f"{path}: {path.stem} is none of the sites; leave it out, or name the site")
        read_request(path, path.stem)
        (state / REQUESTS).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, state / REQUESTS / path.name)


def place_key(kit: Path, key: Path) -> None:
    """Put a site's own key into its kit; `BadInput` if it is not that of the kit's certificate."""
    startup = kit / "startup"
    if not is_pair(key, startup / CERTIFICATE):
        raise BadInput(f"{key}: not the key of {startup / CERTIFICATE}; expected that which `deploy request` made")
    if key.resolve() != (startup / KEY).resolve():
        (startup / KEY).unlink(missing_ok=True)
        (startup / KEY).touch(mode=stat.S_IRUSR | stat.S_IWUSR)
        (startup / KEY).write_bytes(key.read_bytes())


def is_pair(key: Path, certificate: Path) -> bool:
    """Whether the files hold a private key and a certificate that belong together."""
    try:
        own = load_pem_private_key(key.read_bytes(), password=None).public_key()
        return own == x509.load_pem_x509_certificate(certificate.read_bytes()).public_key()
    except (OSError, ValueError, TypeError):
        return False


def list_revoked(state: Path, certificates: Iterable[str]) -> Path:
    """Add certificates, in PEM, to a project's signed list of those that are taken back; its path."""
    keys = read_json(state / "cert.json")
    root = x509.load_pem_x509_certificate(keys[CtxKey.ROOT_CERT].encode())
    signing: Any = load_pem_private_key(keys[CtxKey.ROOT_PRI_KEY].encode(), password=None)
    now, path = datetime.datetime.now(datetime.UTC), state / REVOKED
    serials = {x509.load_pem_x509_certificate(one.encode()).serial_number for one in certificates}
    if path.exists():
        serials |= {one.serial_number for one in x509.load_pem_x509_crl(path.read_bytes())}
    builder = x509.CertificateRevocationListBuilder().issuer_name(root.subject).last_update(now)
    builder = builder.next_update(now + datetime.timedelta(days=LIST_DAYS))
    for serial in sorted(serials):
        one = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
        builder = builder.add_revoked_certificate(one)
    content = builder.sign(signing, SHA256()).public_bytes(Encoding.PEM)
    write_atomically(path, lambda file: file.write(content))
    return path
