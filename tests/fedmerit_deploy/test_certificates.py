"""Keys that sites made themselves, and certificates that are taken back. With real processes: test_hospitals.py."""

import shutil

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from nvflare.lighter.utils import x509_name

from fedmerit.errors import BadInput
from fedmerit_deploy.certificates import is_pair, keep_requests, read_request, write_request
from fedmerit_deploy.kits import kit_digest, prepare_site
from fedmerit_deploy.provision import add_sites, renew, revoke
from fedmerit_deploy.revocation import REVOKED, Revocations


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """The folder of a key and a request of site3."""
    folder = tmp_path_factory.mktemp("hospital") / "request"
    write_request("site3", folder)
    return folder


def certificate(kit):
    return x509.load_pem_x509_certificate((kit / "startup/client.crt").read_bytes())


def test_a_request_is_for_its_owner_alone(asked):
    assert (asked.stat().st_mode & 0o777, (asked / "site3.key").stat().st_mode & 0o777) == (0o700, 0o600)
    assert read_request(asked / "site3.csr", "site3").is_signature_valid
    with pytest.raises(BadInput, match="exists already"):
        write_request("site3", asked)


def test_a_kit_by_request_holds_no_key_and_takes_only_its_own(federation, asked, sites, tmp_path):
    (kit,) = add_sites(federation, {"site3": "lead"}, asked)
    key, own = kit.path / "startup/client.key", asked / "site3.key"
    assert not key.exists()
    assert is_pair(own, kit.path / "startup/client.crt")
    assert not any(own.read_text() in path.read_text() for path in federation.rglob("*.json"))
    digest = kit_digest(kit.path)
    folder = shutil.copytree(sites / "site3", tmp_path / "site3")
    with pytest.raises(BadInput, match="name it with --key"):
        prepare_site(kit.path, folder)
    with pytest.raises(BadInput, match="not the key of"):
        prepare_site(kit.path, folder, key=federation / "fedmerit/prod_00/site1/startup/client.key")
    prepare_site(kit.path, folder, key=own)
    assert (key.stat().st_mode & 0o777, kit_digest(kit.path)) == (0o600, digest)
    (renewed,) = renew(federation, ["site3"])
    assert certificate(renewed.path).serial_number != certificate(kit.path).serial_number
    assert is_pair(own, renewed.path / "startup/client.crt")
    assert not (renewed.path / "startup/client.key").exists()


def bad(name, folder):
    folder.mkdir()
    if name == "curve":
        request = x509.CertificateSigningRequestBuilder().subject_name(x509_name("A"))
        content = request.sign(ec.generate_private_key(ec.SECP256R1()), SHA256()).public_bytes(Encoding.PEM)
    else:
        content = write_request("B", folder / "B").read_bytes() if name == "another" else b"none"
    (folder / "A.csr").write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("name", "words"),
    [("curve", "expected an RSA key"), ("another", "the request is of B"), ("none", "no certificate signing request")],
)
def test_a_request_that_is_of_no_use_is_named(name, words, tmp_path):
    with pytest.raises(BadInput, match=words):
        keep_requests(bad(name, tmp_path / "requests"), tmp_path / "state", ["A"])
    with pytest.raises(BadInput, match="none of the sites"):
        keep_requests(tmp_path / "requests", tmp_path / "state", ["C"])
    assert not (tmp_path / "state/requests").exists()


def test_who_is_revoked_or_renewed_is_on_the_signed_list(federation, tmp_path):
    kits, list_ = federation / "fedmerit/prod_00", federation / "fedmerit/state" / REVOKED
    old = {name: certificate(kits / name).serial_number for name in ("site1", "site2")}
    renew(federation, ["site1"])
    assert revoke(federation, ["site2"]) == list_
    assert "site2" not in (federation / "project.yml").read_text()
    server = kits / "localhost"
    revocations = Revocations(server)
    revocations.register("site1", old["site1"])
    assert revocations.serials == frozenset()
    shutil.copy(list_, server / "local")
    assert revocations.serials == set(old.values())
    assert revocations.shut_out("site1")
    revocations.register("site1", 1)
    assert not revocations.shut_out("site1")
    shutil.copy(_foreign(tmp_path), server / "local" / REVOKED)
    assert revocations.serials == set(old.values())


def _foreign(folder):
    """An empty list that another authority signed."""
    import datetime

    builder = x509.CertificateRevocationListBuilder().issuer_name(x509_name("fedmerit"))
    now = datetime.datetime.now(datetime.UTC)
    builder = builder.last_update(now).next_update(now + datetime.timedelta(days=1))
    path = folder / "foreign.pem"
    path.write_bytes(builder.sign(ec.generate_private_key(ec.SECP256R1()), SHA256()).public_bytes(Encoding.PEM))
    return path
