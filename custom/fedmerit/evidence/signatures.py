"""Signatures of a chain's records: whose certificate each belongs to, and whether the authority issued that.

NVFlare's provisioning writes names into a certificate's subject: CN is the participant, O its organisation, and
``unstructuredName`` a role, which only admins have. A site's certificate and the server's are of one kind, and no two
participants of a project have one name, so the server is known by its name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509 import (
    BasicConstraints,
    Certificate,
    ExtensionNotFound,
    InvalidVersion,
    load_pem_x509_certificates,
)
from cryptography.x509.oid import NameOID

from fedmerit.errors import BadInput, Tampered
from fedmerit.files import read_bytes, read_json, write_atomically

KITS: Mapping[str, tuple[str | int, ...]] = {  # where the files of a startup kit have the server's name
    "fed_client.json": ("servers", 0, "identity"),
    "fed_admin.json": ("admin", "server_identity"),
    "fed_server.json": ("servers", 0, "admin_server"),
}
KIT_KEY, KIT_CERTIFICATE = "client.key", "client.crt"  # in the startup folder of a provisioned site's kit
MOST_PEM = 1 << 20  # bytes of keys or certificates


@dataclass(frozen=True)
class Trust:
    """A trust anchor: it decides whose signatures count."""

    path: Path  # PEM file of the federation's authority, as a startup kit's rootCA.pem; or of its server's certificate
    server: str | None = None  # the server's name; None: as the startup kit has it in which ``path`` lies
    at: datetime | None = None  # when the day begins at some time of which certificates have to be valid; None: now

    @property
    def anchor(self) -> Certificate:
        """The certificate in ``path``."""
        return read_certificate(self.path)

    @property
    def is_authority(self) -> bool:
        """Whether ``path`` is that of an authority; else the server's own."""
        return _is_authority(self.anchor)

    @property
    def server_name(self) -> str:
        """The server's name: the given one, else the kit's, else that of the server's own certificate.

        Raises:
            BadInput: the name is unknown.
        """
        known = self.server or _server_in_kit(self.path.resolve().parent)
        if known is None and self.is_authority:
            raise BadInput(
                f"{self.path}: does not lie in a startup kit, which would name the server; give its name with --server"
            )
        return known or certificate_name(self.anchor)

    def require(self, certificate: Certificate, name: str, what: str) -> None:
        """Require that a certificate is that of the participant ``name``, who signed ``what``.

        Raises:
            Tampered: it is not.
        """
        require_owner(certificate, name, what)
        self.require_issued(certificate, what)

    def require_issued(self, certificate: Certificate, what: str) -> None:
        """Require that a certificate, which signed ``what``, is the anchor or was issued by it, and is valid.

        Raises:
            BadInput: it is not.
        """
        anchor = self.anchor
        if certificate != anchor:
            try:
                if not _is_authority(anchor):
                    raise ValueError
                certificate.verify_directly_issued_by(anchor)
            except (ValueError, TypeError, InvalidSignature):
                raise Tampered(
                    f"{self.path}: neither the certificate that signed {what} ({subject(certificate)}) nor its issuer; "
                    "expected the rootCA.pem of a startup kit of that federation, or the server's certificate"
                ) from None
        for one in (certificate, anchor):
            _require_valid(one, self.at, what)


def require_owner(certificate: Certificate, name: str, what: str) -> None:
    """Require that a certificate is that of the participant ``name``, by what the certificate says.

    Raises:
        Tampered: it is of another participant, or of an admin.
    """
    if roles := certificate.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME):
        raise Tampered(f"{what}: signed by {subject(certificate)}, an admin with the role {str(roles[0].value)!r:.40}")
    if _is_authority(certificate):
        raise Tampered(f"{what}: signed by an authority, {subject(certificate)}; expected {name}")
    if certificate_name(certificate) != name:
        raise Tampered(f"{what}: signed by {certificate_name(certificate)!r:.80}; expected {name}")


def certificate_name(certificate: Certificate) -> str:
    """Return the participant's name, the CN of the subject; "" if there is not exactly one."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def organisation(certificate: Certificate | None, site: str) -> str:
    """Return the organisation in a certificate, O of the subject; without one, the site by itself."""
    names = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME) if certificate else ()
    return f"organisation {names[0].value!s}" if names else f"site {site}"


def read_certificate(path: Path) -> Certificate:
    """Read the first certificate in a PEM file.

    Raises:
        BadInput: the file holds none.
    """
    return read_certificates(path)[0]


def read_certificates(path: Path) -> list[Certificate]:
    """Read the certificates in a PEM file, at least one.

    Raises:
        BadInput: the file holds none, or one cannot be read.
    """
    try:
        return parse_certificates(read_bytes(path, MOST_PEM), str(path))
    except FileNotFoundError:
        raise BadInput(f"{path}: file not found; expected a certificate in PEM form") from None
    except OSError as error:
        raise BadInput(f"{path}: not readable as a certificate in PEM form ({error})") from None


def parse_certificates(pem: bytes, where: str) -> list[Certificate]:
    """Read the certificates in PEM form, at least one.

    Raises:
        BadInput: there is none, or one is damaged; the message names ``where`` it is.
    """
    try:
        found = load_pem_x509_certificates(pem)
        for one in found:
            _require_readable(one)
        return found
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidVersion) as error:
        raise BadInput(f"{where}: not readable as a certificate in PEM form ({error})") from None


def _require_readable(certificate: Certificate) -> None:
    """Read all fields of a certificate that are used later: ``cryptography`` finds no damage before."""
    _ = certificate.subject, certificate.issuer, certificate.extensions, certificate.public_key()
    _ = certificate.not_valid_before_utc, certificate.not_valid_after_utc, certificate.signature_hash_algorithm


def days_left(file: Path) -> int:
    """Return the days until a certificate in a file ends, negative since it ended; `BadInput` if it is none."""
    return (read_certificate(file).not_valid_after_utc - datetime.now(UTC)).days


def subject(certificate: Certificate) -> str:
    """Describe a certificate's owner and validity in words."""
    until = certificate.not_valid_after_utc.astimezone(UTC)
    return f"{certificate.subject.rfc4514_string()}, valid until {datetime.strftime(until, '%Y-%m-%d')}"


def _require_valid(certificate: Certificate, day: datetime | None, what: str) -> None:
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    at = day or datetime.now(UTC)
    until = at + timedelta(days=1) if day else at  # a kit and its first run may be of one day
    if until < first or last < at:
        raise BadInput(
            f"{what}: signed under {certificate.subject.rfc4514_string()}, valid from {first:%Y-%m-%d %H:%M} to "
            f"{last:%Y-%m-%d %H:%M} UTC and not on {at:%Y-%m-%d %H:%M}; if you have had this run since a day on "
            "which it was, give that day with --at"
        )


def _is_authority(certificate: Certificate) -> bool:
    try:
        return bool(certificate.extensions.get_extension_for_class(BasicConstraints).value.ca)
    except ExtensionNotFound:
        return False


def _server_in_kit(startup: Path) -> str | None:
    """Return the server's name in the startup kit with this ``startup`` folder; None if it is no kit."""
    for file, path in KITS.items():
        if (startup / file).exists():
            content: Any = read_json(startup / file)
            try:
                for step in path:
                    content = content[step]
            except (KeyError, IndexError, TypeError):
                return None
            return str(content)
    return None


CERTIFICATE = "certificate.pem"  # beside the chain


class Signer:
    """The key and the certificate of a chain's owner: RSA, as NVFlare's provisioning makes them.

    Args:
        key: PEM file of the private key, without password.
        certificate: PEM file of its certificate.

    Raises:
        BadInput: one cannot be read, or they do not belong together.
    """

    def __init__(self, key: Path, certificate: Path):
        try:
            self._key = load_pem_private_key(read_bytes(key, MOST_PEM), password=None)
        except (OSError, ValueError, TypeError) as error:
            raise BadInput(
                f"{key}: not readable as a private key ({error}); expected the PEM file of a startup kit"
            ) from None
        self.certificate = read_certificate(certificate)
        if not isinstance(self._key, RSAPrivateKey) or self._key.public_key() != self.certificate.public_key():
            raise BadInput(f"{key}: not the RSA key of {certificate}; expected both from one startup kit")

    def sign(self, text: str) -> str:
        """Return the signature of ``text``, in hexadecimal; the same for the same text."""
        assert isinstance(self._key, RSAPrivateKey)
        return self._key.sign(text.encode(), PKCS1v15(), SHA256()).hex()

    def publish(self, folder: Path, begun: bool = False) -> None:
        """Write the certificate into ``folder``, so anyone with the folder can check the signatures.

        If the chain there has ``begun``, it follows the certificates of the keys that signed it so far.
        """
        path, before = folder / CERTIFICATE, []
        if begun and path.exists():
            before = read_certificates(path)
            if before[-1] == self.certificate:
                return
            if before[-1].public_key() == self.certificate.public_key():  # the same key for longer
                before.pop()
        pem = b"".join(one.public_bytes(Encoding.PEM) for one in (*before, self.certificate))
        write_atomically(path, lambda file: file.write(pem))


def is_signed_by_any(certificates: Sequence[Certificate], text: str, signature: object) -> bool:
    """Return whether a signature is of ``text`` and of the key of one of the certificates.

    ``signature`` has the form that `Signer.sign` returns.
    """
    return any(_verifies(one, text, signature) for one in certificates)


def _verifies(certificate: Certificate, text: str, signature: object) -> bool:
    key = certificate.public_key()
    try:
        given = bytes.fromhex(str(signature))
        if not isinstance(key, RSAPublicKey) or given.hex() != signature:  # one way to write a signature, no other
            return False
        key.verify(given, text.encode(), PKCS1v15(), SHA256())
    except (ValueError, InvalidSignature):
        return False
    return True
