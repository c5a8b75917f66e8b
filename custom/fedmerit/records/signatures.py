"""Signatures of a chain's records with the key of a participant's certificate."""

from collections.abc import Sequence
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509 import Certificate

from fedmerit.errors import BadInput
from fedmerit.files import write_atomically
from fedmerit.records.certificates import read_certificate, read_certificates

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
            self._key = load_pem_private_key(key.read_bytes(), password=None)
        except (OSError, ValueError, TypeError) as error:
            raise BadInput(
                f"{key}: not readable as a private key ({error}); expected the PEM file of a startup kit"
            ) from None
        self.certificate = read_certificate(certificate)
        if not isinstance(self._key, RSAPrivateKey) or self._key.public_key() != self.certificate.public_key():
            raise BadInput(f"{key}: not the RSA key of {certificate}; expected both from one startup kit")

    def sign(self, text: str) -> str:
        """The signature of ``text``, in hexadecimal; the same for the same text."""
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
    """Whether ``signature``, as `Signer.sign` gave it, is of ``text`` and of the key of one of the certificates."""
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
