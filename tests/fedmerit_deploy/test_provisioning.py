"""Test provisioning: project files, startup kits, requests of hospitals with their own keys, and revoked certificates.

Real processes with such kits are in test_hospitals.py.
"""

import datetime
import errno
import json
import os
import platform
import shutil
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from nvflare.lighter.utils import x509_name

from fedmerit.errors import BadInput, RunFailed
from fedmerit_deploy.checks import check_machine
from fedmerit_deploy.kit_integrity import kit_digest
from fedmerit_deploy.kits import prepare_server, prepare_site
from fedmerit_deploy.provisioning import (
    PROJECT_FILE,
    VERSIONS_FILE,
    Kit,
    VersionsBuilder,
    add_sites,
    default_organisation,
    init,
    is_pair,
    keep_requests,
    make_project,
    organisations,
    owner_only,
    read_project,
    read_request,
    renew,
    revoke,
    write_request,
)
from fedmerit_deploy.revocation import REASON, REGISTERED, REVOKED, UNPROVEN, UNREADABLE, Revocations

GOOD = {"sites": {"A": "clinic", "B": "lab"}, "server": "fl.clinic.org", "org": "clinic", "admins": {"a@b.org": "lead"}}


def test_default_organisations_are_unique():
    assert default_organisation("St_Mary_2") == "St_Mary_2"
    names = ["a_b", "a-b", "a--b", "a-_b", "x" * 63, "a" + "-" * 62, "a" + "-" * 61 + "_", "_" * 63]
    names += [default_organisation(name) for name in names[1:3]]  # what another's is called
    found = organisations(dict.fromkeys(names, ""))
    assert len(set(found.values())) == len(names)
    assert found["a-b"].startswith("a_b_")
    assert make_project(**GOOD | {"sites": found})["participants"][2]["org"] == found["a-b"]
    assert organisations({"a-b": ""}) == {"a-b": found["a-b"]}  # whatever else there is


@pytest.mark.parametrize(("stated", "before"), [({"A": "a_b"}, ()), ({}, ("a_b",))])
def test_organisations_reject_derived_name_of_others(stated, before):
    with pytest.raises(BadInput, match="site a_b: other sites are of organisation a_b; state its own as a_b:ORGANI"):
        organisations({"a_b": "", **stated}, before)
    assert organisations({"a_b": "a_b", **stated}, before) == {"a_b": "a_b", **stated}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "not a project file .FileNotFoundError."),
        ("", "not a project file .TypeError."),
        ("a: [", "not a project file .ParserError."),
        ("[" * 20000, "not a project file .RecursionError."),
        ("participants: [{name: A}]", "not a project file .KeyError."),
        ("\xff\xfe".encode("latin-1"), "not a project file .UnicodeDecodeError."),
        ("participants: [{type: client, name: A}]", "names 0 servers; expected one"),
        ("participants: [{type: server, name: A}, {type: server, name: B}]", "names 2 servers; expected one"),
    ],
)
def test_read_project_rejects_other_content(tmp_path, text, words):
    if text is not None:
        (tmp_path / PROJECT_FILE).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadInput, match=rf"project\.yml: {words}"):
        read_project(tmp_path)


VERSIONS = {name: version(name) for name in ("fedmerit", "nvflare", "monai", "torch", "numpy")}
VERSIONS["python"] = platform.python_version()


def certificates(kits):
    """By participant, of the kits in a folder."""
    return {path.parents[1].name: path.read_bytes() for path in kits.glob("*/startup/*.crt")}


def test_kits_hold_versions_of_project(provisioned):
    found = {path.parents[1].name: json.loads(path.read_text()) for path in provisioned.rglob(VERSIONS_FILE)}
    assert found == dict.fromkeys(("localhost", "site1", "site2"), VERSIONS)


@pytest.mark.parametrize("there", ["a file", "a folder with one"])
def test_init_leaves_existing_files_unchanged(tmp_path, there):
    out = tmp_path / "out"
    if there == "a file":
        out.touch()
    else:
        out.mkdir()
        (out / "thesis.txt").touch()
    with pytest.raises(BadInput, match="out: exists already; choose another --out"):
        init(out, make_project({"A": "x"}, "localhost", "x", {"a@b.org": "lead"}))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["out", "thesis.txt"][: 1 + out.is_dir()]


def files(out):
    """Content by path; None of a folder."""
    return {path: path.read_bytes() if path.is_file() else None for path in (out, *out.rglob("*")) if path.exists()}


@pytest.fixture
def full(monkeypatch):
    """A disk that is full once the authority's keys are made; they lie there half-written."""

    def build(self, project, context):
        state = Path(context.get_state_dir())
        (state / "cert.json").write_text("{")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(VersionsBuilder, "build", build)


@pytest.mark.parametrize("there", [False, True])
def test_init_on_full_disk_leaves_nothing_behind(tmp_path, full, capfd, there):
    out = tmp_path / "out"
    if there:
        out.mkdir()
    before = files(tmp_path)
    with pytest.raises(RunFailed, match="out: cannot be written, the disk is full; make room, then give the same com"):
        init(out, make_project({"A": "x"}, "localhost", "x", {"a@b.org": "lead"}))
    assert files(tmp_path) == before
    assert capfd.readouterr() == ("", "")  # NVFlare's traceback


@pytest.mark.parametrize("again", [lambda out: add_sites(out, {"site3": ""}), lambda out: renew(out, ["site1"])])
def test_change_on_full_disk_keeps_keys_and_kits(federation, full, again):
    before = files(federation)
    with pytest.raises(RunFailed, match="the disk is full"):
        again(federation)
    assert files(federation) == before


def loaded(kit, name="client"):
    return [
        x509.load_pem_x509_certificate((kit / "startup" / one).read_bytes()) for one in (f"{name}.crt", "rootCA.pem")
    ]


def test_renew_changes_key_but_not_authority(federation):
    before = certificates(federation / "fedmerit/prod_00")
    (kit,) = renew(federation, ["site2"])
    assert kit == Kit("site2", "client", "hospital2", "", federation / "fedmerit/prod_01/site2")
    after = certificates(kit.path.parent)
    assert {name for name in before if before[name] != after[name]} == {"site2"}
    (old, root), (new, same) = loaded(federation / "fedmerit/prod_00/site2"), loaded(kit.path)
    assert same == root
    new.verify_directly_issued_by(root)
    assert new.public_key() != old.public_key()
    assert new.subject == old.subject
    assert root.not_valid_after_utc - new.not_valid_after_utc > datetime.timedelta(9 * 365)  # it can be renewed again
    assert certificates(renew(federation, ["localhost"])[0].path.parent)["site2"] == after["site2"]


def test_add_sites_derives_organisation(federation):
    (kit,) = add_sites(federation, {"site-3": ""})
    assert kit.org.startswith("site_3_")
    with pytest.raises(BadInput, match="site hospital2: other sites are of organisation hospital2"):
        add_sites(federation, {"hospital2": ""})


def test_owner_only_closes_files_to_others(tmp_path):
    """What was there too, even where something goes wrong; what a link leads to is another's."""
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    (out / "old").mkdir(parents=True)
    for path in (out / "old/key", elsewhere):
        path.touch()
        path.chmod(0o644)
    (out / "link").symlink_to(elsewhere)
    before = os.umask(0o022)
    try:
        with suppress(KeyError), owner_only(out):
            (out / "new").touch()
            assert (out / "new").stat().st_mode & 0o777 == 0o600
            raise KeyError
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (out, out / "old", out / "old/key", elsewhere)}
    assert modes == {"out": 0o700, "old": 0o700, "key": 0o600, "elsewhere": 0o644}


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """The folder of a key and a request of site3."""
    folder = tmp_path_factory.mktemp("hospital") / "request"
    write_request("site3", folder)
    return folder


def certificate(kit):
    return x509.load_pem_x509_certificate((kit / "startup/client.crt").read_bytes())


def test_request_files_are_readable_only_by_owner(asked):
    assert (asked.stat().st_mode & 0o777, (asked / "site3.key").stat().st_mode & 0o777) == (0o700, 0o600)
    assert read_request(asked / "site3.csr", "site3").is_signature_valid
    with pytest.raises(BadInput, match="exists already"):
        write_request("site3", asked)


@pytest.mark.parametrize("written", [0, 1])
def test_request_on_a_full_disk_leaves_nothing(written, tmp_path, monkeypatch):
    """An empty key stayed, and the same command was refused after room was made."""
    syncs = iter([None] * written)

    def fsync(_):
        if next(syncs, True):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("fedmerit.files.os.fsync", fsync)
        with pytest.raises(RunFailed, match="disk is full"):
            write_request("A", tmp_path / "request")
    assert list(tmp_path.iterdir()) == []
    assert write_request("A", tmp_path / "request").exists()


def test_kit_by_request_holds_no_key_and_takes_only_matching_key(federation, asked, sites, tmp_path):
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
def test_keep_requests_rejects_unusable_request(name, words, tmp_path):
    with pytest.raises(BadInput, match=words):
        keep_requests(bad(name, tmp_path / "requests"), tmp_path / "state", ["A"])
    with pytest.raises(BadInput, match="none of the sites"):
        keep_requests(tmp_path / "requests", tmp_path / "state", ["C"])
    assert not (tmp_path / "state/requests").exists()


@pytest.mark.parametrize(
    ("names", "words"),
    [(["C"], "no site or admin C"), (["localhost"], "no site or admin localhost"), (["a@lead.org"], "nobody would be")],
)
def test_revoke_rejects_unknown_or_last_submitter(federation, names, words):
    before = files(federation)
    with pytest.raises(BadInput, match=words):
        revoke(federation, names)
    assert files(federation) == before


@pytest.mark.parametrize("name", ["SITE1", "C D", "Localhost"])
def test_add_sites_rejects_unusable_name(federation, name):
    with pytest.raises(BadInput):
        add_sites(federation, {name: "clinic"})


def test_revoked_and_renewed_certificates_are_on_signed_list(federation, tmp_path):
    kits, list_ = federation / "fedmerit/prod_00", federation / "fedmerit/state" / REVOKED
    old = {name: certificate(kits / name).serial_number for name in ("site1", "site2")}
    renew(federation, ["site1"])
    assert revoke(federation, ["site2"]) == list_
    assert "site2" not in (federation / "project.yml").read_text()
    server = kits / "localhost"
    revocations = Revocations(server)
    assert revocations.serials == frozenset()
    assert not revocations.explain("site1")
    revocations.register("site1", old["site1"])
    shutil.copy(list_, server / "local")
    assert revocations.serials == set(old.values())
    assert revocations.shut_out("site1")
    revocations.register("site1", 1)
    assert not revocations.shut_out("site1")
    shutil.copy(_foreign(tmp_path), server / "local" / REVOKED)
    assert revocations.serials == set(old.values())
    assert not revocations.explain("site1")
    restarted = Revocations(server)
    assert "cannot be read, so nobody is let in" in restarted.explain("site1")
    shutil.copy(list_, server / "local")
    assert not restarted.explain("site1")


def test_revoked_certificates_stay_so_without_the_list_and_with_an_older_one(federation, tmp_path):
    kits, newest = federation / "fedmerit/prod_00", federation / "fedmerit/state" / REVOKED
    old = {name: certificate(kits / name).serial_number for name in ("site1", "site2")}
    renew(federation, ["site1"])
    shutil.copy(newest, older := tmp_path / "older.pem")
    revoke(federation, ["site2"])
    server, file = kits / "localhost", kits / "localhost/local" / REVOKED
    prepare_server(server)
    shutil.copy(newest, file)
    assert Revocations(server, keeps=True).serials == set(old.values())
    for name, serial in old.items():
        Revocations(server).register(name, serial)
    for put, words in ((older, "is an older list; 1 certificates"), (None, "is gone; 2 certificates")):
        file.unlink()
        if put:
            shutil.copy(put, file)
        restarted = Revocations(server, keeps=True)
        assert restarted.serials == set(old.values())
        assert restarted.explain("site2") == REASON
        ((state, reported),) = [
            (one.state, one.message) for one in check_machine(server, True) if one.what == "revoked"
        ]
        assert (state, words in reported) == ("warn", True)
    file.write_text("")
    assert Revocations(server).explain("site1") == UNREADABLE


@pytest.mark.parametrize("content", [None, "", "[]", '{"site1": "x"}'])
def test_site_whose_certificate_is_not_known_is_shut_out_while_any_is_revoked(federation, content):
    server = federation / "fedmerit/prod_00/localhost"
    revocations = Revocations(server)
    revocations.register("site1", 1)
    assert not revocations.shut_out("site1")
    revoke(federation, ["site2"])
    shutil.copy(federation / "fedmerit/state" / REVOKED, server / "local")
    assert not revocations.shut_out("site1")
    (server / REGISTERED).unlink()
    if content is not None:
        (server / REGISTERED).write_text(content)
    assert revocations.explain("site1") == UNPROVEN
    revocations.register("site1", 1)  # as it registers again
    assert not revocations.explain("site1")


def _foreign(folder):
    """An empty list that another authority signed."""
    builder = x509.CertificateRevocationListBuilder().issuer_name(x509_name("fedmerit"))
    now = datetime.datetime.now(datetime.UTC)
    builder = builder.last_update(now).next_update(now + datetime.timedelta(days=1))
    path = folder / "foreign.pem"
    path.write_bytes(builder.sign(ec.generate_private_key(ec.SECP256R1()), SHA256()).public_bytes(Encoding.PEM))
    return path
