"""Certificates and signatures: whose they are, and that only the key's owner can make them."""

import json
import shutil
from base64 import standard_b64encode
from datetime import UTC, datetime, timedelta

import pytest
from certificates import issue
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from nvflare.lighter.utils import Identity, generate_cert, serialize_cert

from fedmerit.errors import BadInput
from fedmerit.evidence.signatures import (
    CERTIFICATE,
    Signer,
    Trust,
    is_signed_by_any,
    read_certificate,
    read_certificates,
    require_owner,
)


@pytest.fixture
def certificate(keys):
    return read_certificate(keys / "server.crt")


@pytest.fixture
def admin(keys, tmp_path):
    """An admin's certificate, as NVFlare's provisioning makes it."""
    authority = load_pem_private_key((keys / "root.key").read_bytes(), None)
    made = generate_cert(
        Identity("a@clinic.org", "clinic", "lead"), Identity("root"), authority, authority.public_key()
    )
    (tmp_path / "admin.crt").write_bytes(serialize_cert(made))
    return read_certificate(tmp_path / "admin.crt")


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "file not found"), (b"", "not readable as a certificate"), (b"no certificate", "not readable as a cert")],
)
def test_what_is_no_certificate_is_named(tmp_path, content, words):
    if content is not None:
        (tmp_path / "root.crt").write_bytes(content)
    with pytest.raises(BadInput, match=rf"root\.crt: {words}"):
        read_certificate(tmp_path / "root.crt")


@pytest.mark.parametrize(
    ("whole", "spoiled"),
    [(b"\x01\x01\xff\x04\x020\x00", b"\x01\x01\xff\x04\x021\x00"), (b"\x0c\x06server", b"\x0c\x06\xff\xffrver")],
    ids=["extension", "name"],
)
def test_a_certificate_that_is_spoiled_within_is_named(certificate, tmp_path, whole, spoiled):
    der = certificate.public_bytes(Encoding.DER)
    assert whole in der
    lines = standard_b64encode(der.replace(whole, spoiled)).decode()
    path = tmp_path / "certificate.pem"
    path.write_text(f"-----BEGIN CERTIFICATE-----\n{lines}\n-----END CERTIFICATE-----\n")
    with pytest.raises(BadInput, match=r"certificate\.pem: not readable as a certificate"):
        read_certificate(path)


def test_the_owner_is_a_participant_of_that_name(keys, certificate, admin):
    require_owner(certificate, "server", "ledger.jsonl")
    for other, name, words in (
        (certificate, "site1", "ledger.jsonl: signed by 'server'; expected site1"),
        (read_certificate(keys / "root.crt"), "root", "signed by an authority, CN=root, .*; expected root"),
        (admin, "a@clinic.org", "CN=a@clinic.org.*, an admin with the role 'lead'"),
    ):
        with pytest.raises(BadInput, match=words):
            require_owner(other, name, "ledger.jsonl")


def test_the_root_vouches_for_what_it_issued_and_a_certificate_for_itself(keys, certificate):
    for anchor, is_authority in (("root", True), ("server", False)):
        trust = Trust(keys / f"{anchor}.crt", "server")
        assert trust.is_authority == is_authority
        trust.require(certificate, trust.server_name, "ledger.jsonl")


def test_another_root_of_the_same_name_vouches_for_nothing(keys, certificate, tmp_path):
    issue(tmp_path, "root")
    with pytest.raises(BadInput, match=r"neither the certificate that signed ledger\.jsonl .*CN=server,.* nor its"):
        Trust(tmp_path / "root.crt", "server").require(certificate, "server", "ledger.jsonl")


def test_a_certificate_that_is_no_authority_vouches_for_no_other(keys, certificate, tmp_path):
    shutil.copy(keys / "server.key", tmp_path)
    issue(tmp_path, "site1", "server")
    with pytest.raises(BadInput, match=r"neither the certificate that signed site_log\.jsonl"):
        Trust(keys / "server.crt").require(read_certificate(tmp_path / "site1.crt"), "site1", "site_log.jsonl")


@pytest.mark.parametrize("days", [-3, 31])
def test_certificates_count_on_days_on_which_they_are_valid(keys, certificate, days):
    day = datetime.now(UTC) + timedelta(days=days)
    with pytest.raises(BadInput, match=rf"not on {day:%Y-%m-%d %H:%M}; .*--at"):
        Trust(keys / "root.crt", "server", day).require(certificate, "server", "ledger.jsonl")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("fed_client.json", {"servers": [{"identity": "fl.clinic.org"}]}),
        ("fed_admin.json", {"admin": {"server_identity": "fl.clinic.org"}}),
        ("fed_server.json", {"servers": [{"admin_server": "fl.clinic.org"}]}),
    ],
)
def test_the_servers_name_is_in_any_kit(keys, tmp_path, file, content):
    root = shutil.copy(keys / "root.crt", tmp_path / "rootCA.pem")
    (tmp_path / file).write_text(json.dumps(content))
    assert Trust(root).server_name == "fl.clinic.org"
    assert Trust(root, "given").server_name == "given"
    (tmp_path / file).write_text("{}")
    with pytest.raises(BadInput, match="give its name with --server"):
        _ = Trust(root).server_name


def test_a_certificate_counts_on_the_day_on_which_it_was_made(keys, certificate):
    for day, counts in ((0, True), (-1, False)):
        midnight = certificate.not_valid_before_utc.replace(hour=0, minute=0, second=0) + timedelta(days=day)
        trust = Trust(keys / "root.crt", "server", midnight)
        if counts:
            trust.require(certificate, "server", "ledger.jsonl")
        else:
            with pytest.raises(BadInput, match=r"ledger\.jsonl: signed under CN=.*, valid from .* and not on"):
                trust.require(certificate, "server", "ledger.jsonl")


@pytest.fixture
def signer(keys):
    return Signer(keys / "server.key", keys / "server.crt")


@pytest.mark.parametrize(("key", "certificate"), [("stranger", "server"), ("nobody", "server"), ("server", "nobody")])
def test_key_and_certificate_belong_together(keys, key, certificate):
    with pytest.raises(BadInput, match=f"{key if key != 'server' else certificate}"):
        Signer(keys / f"{key}.key", keys / f"{certificate}.crt")


def test_signature_is_of_one_text_and_one_key(keys, signer):
    signature = signer.sign("head")
    assert is_signed_by_any([signer.certificate], "head", signature)
    assert not is_signed_by_any([signer.certificate], "Head", signature)
    assert not is_signed_by_any([read_certificate(keys / "stranger.crt")], "head", signature)


@pytest.mark.parametrize("written", [str.upper, lambda text: f" {text}", lambda text: text[:-1], lambda _: None])
def test_there_is_one_way_to_write_a_signature(signer, written):
    assert not is_signed_by_any([signer.certificate], "head", written(signer.sign("head")))


def test_certificate_of_a_renewed_key_comes_after_that_of_the_chain_so_far(keys, signer, tmp_path):
    stranger = Signer(keys / "stranger.key", keys / "stranger.crt")
    signer.publish(tmp_path)
    for _ in range(2):
        stranger.publish(tmp_path, begun=True)
        found = read_certificates(tmp_path / CERTIFICATE)
        assert found == [signer.certificate, stranger.certificate]
    for one in (signer, stranger):
        assert is_signed_by_any(found, "head", one.sign("head"))
    assert not is_signed_by_any((), "head", signer.sign("head"))
    stranger.publish(tmp_path)
    assert read_certificates(tmp_path / CERTIFICATE) == [stranger.certificate]
