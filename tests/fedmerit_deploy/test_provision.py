"""Startup kits: a kit for each participant, of the same keys whenever they are made again, for its owner alone."""

import errno
import json
import os
import platform
from contextlib import suppress
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path

import pytest
from cryptography import x509

from fedmerit.errors import BadInput, RunFailed
from fedmerit_deploy.project import PROJECT_FILE, make_project, read_project
from fedmerit_deploy.provision import (
    VERSIONS_FILE,
    Kit,
    VersionsBuilder,
    add_sites,
    init,
    owner_only,
    provision_again,
    renew,
)

VERSIONS = {name: version(name) for name in ("fedmerit", "nvflare", "monai", "torch", "numpy")}
VERSIONS["python"] = platform.python_version()


def certificates(kits):
    """By participant, of the kits in a folder."""
    return {path.parents[1].name: path.read_bytes() for path in kits.glob("*/startup/*.crt")}


def test_kits_say_which_versions_the_project_was_made_with(provisioned):
    found = {path.parents[1].name: json.loads(path.read_text()) for path in provisioned.rglob(VERSIONS_FILE)}
    assert found == dict.fromkeys(("localhost", "site1", "site2"), VERSIONS)


def test_kits_made_again_are_of_the_same_certificates(federation):
    before = certificates(federation / "fedmerit/prod_00")
    assert set(before) == {"localhost", "site1", "site2", "a@lead.org"}
    kits = provision_again(federation, read_project(federation))
    assert certificates(federation / "fedmerit/prod_01") == before
    assert [(kit.name, kit.kind, kit.org, kit.role) for kit in kits] == [
        ("localhost", "server", "lead", ""),
        ("site1", "client", "lead", ""),
        ("site2", "client", "lead", ""),
        ("a@lead.org", "admin", "lead", "project_admin"),
    ]


def test_of_an_added_site_alone_there_is_a_kit_to_hand_out(federation):
    before = certificates(federation / "fedmerit/prod_00")
    path = federation / "fedmerit/prod_01/site3"
    assert add_sites(federation, {"site3": "other"}) == [Kit("site3", "client", "other", "", path)]
    assert (path / "startup/client.key").exists()
    assert certificates(path.parent).items() > before.items()
    assert [one["name"] for one in read_project(federation)["participants"]][-1] == "site3"


def test_a_participant_is_added_once(federation):
    before = (federation / PROJECT_FILE).read_bytes()
    with pytest.raises(BadInput, match=r"project\.yml: holds localhost, site2 already"):
        add_sites(federation, {"site9": "x", "site2": "x", "localhost": "x"})
    assert (federation / PROJECT_FILE).read_bytes() == before


@pytest.mark.parametrize("there", ["a file", "a folder with one"])
def test_what_lies_there_is_left_alone(tmp_path, there):
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
def test_a_full_disk_is_told_in_a_sentence_and_nothing_half_written_is_left(tmp_path, full, capfd, there):
    out = tmp_path / "out"
    if there:
        out.mkdir()
    before = files(tmp_path)
    with pytest.raises(RunFailed, match="out: cannot be written, the disk is full; make room, then give the same com"):
        init(out, make_project({"A": "x"}, "localhost", "x", {"a@b.org": "lead"}))
    assert files(tmp_path) == before
    assert capfd.readouterr() == ("", "")  # NVFlare's traceback


@pytest.mark.parametrize(
    "again",
    [
        lambda out: add_sites(out, {"site3": ""}),
        lambda out: provision_again(out, read_project(out)),
        lambda out: renew(out, ["site1"]),
    ],
)
def test_a_full_disk_leaves_the_keys_and_kits_that_were_there(federation, full, again):
    before = files(federation)
    with pytest.raises(RunFailed, match="the disk is full"):
        again(federation)
    assert files(federation) == before


def loaded(kit, name="client"):
    return [
        x509.load_pem_x509_certificate((kit / "startup" / one).read_bytes()) for one in (f"{name}.crt", "rootCA.pem")
    ]


def test_a_renewed_participant_has_another_key_of_the_same_authority(federation):
    before = certificates(federation / "fedmerit/prod_00")
    (kit,) = renew(federation, ["site2"])
    assert kit == Kit("site2", "client", "lead", "", federation / "fedmerit/prod_01/site2")
    after = certificates(kit.path.parent)
    assert {name for name in before if before[name] != after[name]} == {"site2"}
    (old, root), (new, same) = loaded(federation / "fedmerit/prod_00/site2"), loaded(kit.path)
    assert same == root
    new.verify_directly_issued_by(root)
    assert new.public_key() != old.public_key()
    assert new.subject == old.subject
    assert root.not_valid_after_utc - new.not_valid_after_utc > timedelta(9 * 365)  # it can be renewed again
    assert certificates(renew(federation, ["localhost"])[0].path.parent)["site2"] == after["site2"]


def test_an_added_site_that_names_no_organisation_has_one_of_its_own(federation):
    (kit,) = add_sites(federation, {"site-3": ""})
    assert kit.org.startswith("site_3_")
    with pytest.raises(BadInput, match="site lead: other sites are of organisation lead"):
        add_sites(federation, {"lead": ""})


def test_what_is_written_is_for_its_owner_alone(tmp_path):
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
