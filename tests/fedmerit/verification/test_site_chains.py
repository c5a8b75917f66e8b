"""A site's own log: one site's, whole, signed by nobody else, and of records that say what they have to."""

import shutil

import pytest
from certificates import issue

from fedmerit.errors import BadInput
from fedmerit.records.certificates import Trust
from fedmerit.records.ledger import Ledger
from fedmerit.records.signatures import CERTIFICATE, Signer
from fedmerit.verification.site_logs import read_site_log

ENTRIES = [
    {"site": "A", "round": 0, "work": "train", "received": "r0", "update": "u0"},
    {"site": "A", "round": 1, "work": "lend", "peer": "B", "model": "m1"},
    {"site": "A", "round": 1, "work": "borrow", "peer": "B", "model": None},
    {"site": "A", "round": 1, "work": "lend", "peer": "C", "model": "m1"},
    {"site": "A", "round": 2, "work": "lend", "peer": "B", "model": "m2"},
]


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Of sites A and B, issued by "root"."""
    folder = tmp_path_factory.mktemp("keys")
    issue(folder, "root")
    for site in ("A", "B"):
        issue(folder, site, "root")
    return folder


@pytest.fixture
def written(tmp_path):
    """Writes a log of these records."""

    def write(entries, signer=None):
        path = tmp_path / "site_log.jsonl"
        path.touch()
        for entry in entries:
            Ledger(path, signer).append(entry)
        return path

    return write


def test_a_log_is_read_with_its_lines(written):
    log = read_site_log(written(ENTRIES))
    assert (log.site, log.certificates, len(log.entries)) == ("A", (), 5)
    assert [(line, entry["model"]) for line, entry in log.of("lend", "B")] == [(2, "m1"), (5, "m2")]
    assert [(line, entry["model"]) for line, entry in log.of("borrow", "B")] == [(3, None)]
    assert log.of("lend", "D") == []


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([], ": holds the log of 0 sites, expected that of one"),
        ([*ENTRIES, ENTRIES[0] | {"site": "B"}], ": holds the log of 2 sites, expected that of one"),
        ([ENTRIES[0], {"site": "A", "work": "train"}], ", line 2: not a record of a site's log"),
        *(
            ([ENTRIES[0], ENTRIES[0] | change], ", line 2: not a record of a site's log")
            for change in (
                {"round": [0]},
                {"round": -1},
                {"round": True},
                {"round": "0"},
                {"round": 0.0},
                {"work": ["train"]},
                {"site": ["A"]},
                {"ledger": ["0"]},
                {"vouched": 7},
                {"split": ["validation"]},
                {"received": None},
                {"overlaps": "o0"},
                {"overlaps": [["o0"]]},
            )
        ),
        *(
            (
                [ENTRIES[0], {name: value for name, value in ENTRIES[0].items() if name != gone}],
                ", line 2: not a record of a site's log",
            )
            for gone in ("received", "update")
        ),
        ([{"site": "A", "round": 0}], ", line 1: not a record of a site's log"),
        ([{"site": "A", "round": 1, "work": "lend", "peer": "B"}], ", line 1: not a record of a site's log"),
        ([{"site": "A", "round": 1, "work": "borrow", "model": "m"}], ", line 1: not a record of a site's log"),
    ],
)
def test_what_is_no_log_of_one_site_is_refused(written, entries, words):
    path = written(entries)
    with pytest.raises(BadInput) as found:
        read_site_log(path)
    assert str(found.value).startswith(f"{path}{words}")


def test_a_log_that_is_not_there_is_told_as_a_sites(tmp_path):
    with pytest.raises(BadInput, match=r"gone.jsonl: file not found; expected the site_log.jsonl"):
        read_site_log(tmp_path / "gone.jsonl")


def test_a_signed_log_is_the_sites_own(written, keys):
    signer = Signer(keys / "A.key", keys / "A.crt")
    path = written(ENTRIES, signer)
    with pytest.raises(BadInput, match=r"certificate\.pem: file not found"):
        read_site_log(path)
    shutil.copy(keys / "A.crt", path.parent / CERTIFICATE)
    for trust in (None, Trust(keys / "root.crt", "server"), Trust(keys / "B.crt")):  # B's says nothing of A's
        assert read_site_log(path, trust).certificates == (signer.certificate,)
    shutil.copy(keys / "B.crt", path.parent / CERTIFICATE)
    with pytest.raises(BadInput, match="signed by 'B'; expected A"):
        read_site_log(path)


def test_a_log_signed_by_nobody_beside_a_certificate_is_refused(written, keys):
    path = written(ENTRIES)
    shutil.copy(keys / "A.crt", path.parent / CERTIFICATE)
    with pytest.raises(BadInput, match="line 1: it is not signed"):
        read_site_log(path)


def test_a_log_signed_with_another_key_than_its_certificates_is_refused(written, keys):
    path = written(ENTRIES, Signer(keys / "B.key", keys / "B.crt"))
    shutil.copy(keys / "A.crt", path.parent / CERTIFICATE)
    with pytest.raises(BadInput, match="line 1: its signature is not A's"):
        read_site_log(path)


def test_a_log_whose_site_renewed_its_key_is_its_own_as_far_as_every_certificate_is(written, keys, tmp_path):
    path = written(ENTRIES, old := Signer(keys / "A.key", keys / "A.crt"))
    old.publish(path.parent)
    shutil.copytree(keys, tmp_path / "renewed")
    issue(tmp_path / "renewed", "A", "root")
    renewed = Signer(tmp_path / "renewed/A.key", tmp_path / "renewed/A.crt")
    Ledger(path, renewed).append(ENTRIES[0])
    with pytest.raises(BadInput, match=f"line {len(ENTRIES) + 1}: its signature is not A's"):
        read_site_log(path)
    renewed.publish(path.parent, begun=True)
    trust = Trust(keys / "root.crt", "server")
    assert read_site_log(path, trust).certificates == (old.certificate, renewed.certificate)
    Signer(keys / "B.key", keys / "B.crt").publish(path.parent, begun=True)
    with pytest.raises(BadInput, match="signed by 'B'; expected A"):
        read_site_log(path, trust)
