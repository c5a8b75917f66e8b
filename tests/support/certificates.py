"""Certificates as provisioning makes them: an authority's own, and others that it issues."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID
from nvflare.lighter.utils import Identity, generate_cert, generate_keys, serialize_cert, serialize_pri_key


def issue(folder: Path, name: str, issuer: str | None = None, organisation: str = "") -> None:
    """Write ``name.key`` and ``name.crt``, issued by ``issuer`` in the same folder, or by itself."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    (folder / f"{name}.key").write_bytes(pem)
    signing = load_pem_private_key((folder / f"{issuer or name}.key").read_bytes(), password=None)
    assert isinstance(signing, rsa.RSAPrivateKey)
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_called(name, organisation))
        .issuer_name(_called(issuer or name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .sign(signing, SHA256())
    )
    (folder / f"{name}.crt").write_bytes(certificate.public_bytes(Encoding.PEM))


def certify(state: Path, stem: Path, name: str, first: int, last: int) -> None:
    """Write ``stem``.key and .crt of the authority in NVFlare's cert.json, valid between two days from now."""
    made = json.loads(state.read_text())
    authority = load_pem_private_key(made["root_pri_key"].encode(), password=None)
    issuer = x509.load_pem_x509_certificate(made["root_cert"].encode())
    (root,) = issuer.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    private, public = generate_keys()
    now = datetime.now(UTC)
    valid = {"not_valid_before": now + timedelta(first), "not_valid_after": now + timedelta(last)}
    certificate = generate_cert(Identity(name, "org"), Identity(str(root.value)), authority, public, **valid)
    stem.with_name(f"{stem.name}.crt").write_bytes(serialize_cert(certificate))
    stem.with_name(f"{stem.name}.key").write_bytes(serialize_pri_key(private))


def _called(name: str, organisation: str = "") -> x509.Name:
    named = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation)] if organisation else []
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name), *named])
