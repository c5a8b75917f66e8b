"""Signatures: made with the key of a certificate, and of nobody else's."""

import hashlib
import shutil

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from nvflare.lighter.utils import Identity, generate_cert, serialize_cert

from fedmerit.errors import BadInput
from fedmerit.records.certificates import read_certificate, read_certificates
from fedmerit.records.ledger import Ledger, read_verified_records
from fedmerit.records.signatures import CERTIFICATE, Signer, is_signed_by_any

DIGEST_INFO = bytes.fromhex("3031300d060960864801650304020105000420")  # of SHA-256, RFC 8017, 9.2, note 1


@pytest.fixture
def signer(keys):
    return Signer(keys / "server.key", keys / "server.crt")


@pytest.mark.parametrize(("key", "certificate"), [("stranger", "server"), ("nobody", "server"), ("server", "nobody")])
def test_key_and_certificate_belong_together(keys, key, certificate):
    with pytest.raises(BadInput, match=f"{key if key != 'server' else certificate}"):
        Signer(keys / f"{key}.key", keys / f"{certificate}.crt")


def test_same_record_of_a_chain_gets_the_same_signature(keys, tmp_path):
    signer = Signer(keys / "server.key", keys / "server.crt")
    for name in ("one", "two"):
        Ledger(tmp_path / name, signer, chain="c").append({"round": 0})
    assert (tmp_path / "one").read_text() == (tmp_path / "two").read_text()
    assert len(read_verified_records(tmp_path / "one", [read_certificate(keys / "server.crt")])) == 1


def test_key_of_another_kind_is_refused(keys, tmp_path):
    pem = ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "server.key").write_bytes(pem)
    with pytest.raises(BadInput, match=r"server\.key: not the RSA key of .*server\.crt; expected both"):
        Signer(tmp_path / "server.key", keys / "server.crt")


def test_signature_is_the_padded_digest_under_the_private_exponent(signer):
    """s^e mod n is 00 01 ff .. ff 00, the algorithm's name and the SHA-256, as long as n (RFC 8017, 8.2)."""
    key = signer.certificate.public_key()
    assert isinstance(key, RSAPublicKey)
    numbers, signature = key.public_numbers(), bytes.fromhex(signer.sign("Zürich"))
    opened = pow(int.from_bytes(signature, "big"), numbers.e, numbers.n).to_bytes(256, "big")
    told = DIGEST_INFO + hashlib.sha256("Zürich".encode()).digest()
    assert opened == b"\0\1" + b"\xff" * (256 - 3 - len(told)) + b"\0" + told


def test_signature_is_of_one_text_and_one_key(keys, signer):
    signature = signer.sign("head")
    assert is_signed_by_any([signer.certificate], "head", signature)
    assert not is_signed_by_any([signer.certificate], "Head", signature)
    assert not is_signed_by_any([read_certificate(keys / "stranger.crt")], "head", signature)


@pytest.mark.parametrize(
    "written",
    [
        str.upper,
        lambda text: f" {text}",
        lambda text: text[:-1],
        lambda text: text + "00",
        bytes.fromhex,
        lambda _: None,
    ],
    ids=["capitals", "a space", "cut", "longer", "bytes", "nothing"],
)
def test_there_is_one_way_to_write_a_signature(signer, written):
    assert not is_signed_by_any([signer.certificate], "head", written(signer.sign("head")))


def test_certificate_is_put_beside_the_chain(keys, signer, tmp_path):
    signer.publish(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [CERTIFICATE]
    assert (tmp_path / CERTIFICATE).read_bytes() == (keys / "server.crt").read_bytes()


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


def test_certificate_that_lengthens_a_key_takes_the_place_of_the_one_before(keys, signer, tmp_path):
    shutil.copytree(keys, tmp_path / "keys")
    state = load_pem_private_key((keys / "server.key").read_bytes(), None)
    longer = generate_cert(Identity("server"), Identity("root"), state, state.public_key(), valid_days=700)
    (tmp_path / "keys/server.crt").write_bytes(serialize_cert(longer))
    signer.publish(tmp_path)
    Signer(tmp_path / "keys/server.key", tmp_path / "keys/server.crt").publish(tmp_path, begun=True)
    assert read_certificates(tmp_path / CERTIFICATE) == [longer]
