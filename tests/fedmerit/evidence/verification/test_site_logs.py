"""A site's log: read by itself, compared with the ledger, and with the logs of other sites."""

import shutil
from pathlib import Path

import pytest
from certificates import issue
from ledger_records import round_record, round_records

from fedmerit.errors import BadInput
from fedmerit.evidence.ledger import Ledger, texts_digest
from fedmerit.evidence.signatures import Signer, Trust
from fedmerit.evidence.verification.chains import RunFiles, read_site_log
from fedmerit.evidence.verification.enrolments import compare_enrolments
from fedmerit.evidence.verification.site_logs import (
    PeerExchange,
    compare_peer_models,
    compare_rated_models,
    compare_ratings,
    compare_updates,
    find_discarded_updates,
)


def gave(peer, round, model):
    return {"work": "gave", "peer": peer, "round": round, "model": model}


def got(peer, round, model):
    return {"work": "got", "peer": peer, "round": round, "model": model}


def trained(round, received="m", update="u"):
    return {"work": "train", "round": round, "received": received, "update": update}


def files(records, *logs):
    return RunFiles(Path(), records, logs)


ENTRIES = [
    {"site": "A", **entry}
    for entry in (trained(0), gave("B", 1, "m1"), got("B", 1, None), gave("C", 1, "m1"), gave("B", 2, "m2"))
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
def written_log(tmp_path):
    """Writes a log of these records."""

    def write(entries, signer=None):
        path = tmp_path / "site_log.jsonl"
        path.touch()
        for entry in entries:
            Ledger(path, signer).append(entry)
        return path

    return write


def test_a_log_is_read_with_its_lines(written_log):
    log = read_site_log(written_log(ENTRIES))
    assert (log.site, log.certificates, len(log.entries)) == ("A", (), 5)
    assert [(line, entry.peer, entry.model) for line, entry in log.lines("gave")] == [
        (2, "B", "m1"),
        (4, "C", "m1"),
        (5, "B", "m2"),
    ]
    assert [line for line, _ in log.lines(round=2)] == [5]


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([], ": holds the log of 0 sites, expected that of one"),
        ([*ENTRIES, ENTRIES[0] | {"site": "B"}], ": holds the log of 2 sites, expected that of one"),
        *(
            ([ENTRIES[0], ENTRIES[0] | change], ", line 2: not a record of a site's log")
            for change in ({"round": -1}, {"vouched": 7}, {"received": None}, {"overlaps": [["o0"]]})
        ),
        ([{"site": "A", "round": 0}], ", line 1: not a record of a site's log"),
        ([{"site": "A", "round": 1, "work": "gave", "peer": "B"}], ", line 1: not a record of a site's log"),
        ([{"site": "A", "round": 1, "work": "got", "model": "m"}], ", line 1: not a record of a site's log"),
    ],
)
def test_what_is_no_log_of_one_site_is_refused(written_log, entries, words):
    path = written_log(entries)
    with pytest.raises(BadInput) as found:
        read_site_log(path)
    assert str(found.value).startswith(f"{path}{words}")


def test_a_log_whose_site_renewed_its_key_is_its_own_as_far_as_every_certificate_is(written_log, keys, tmp_path):
    path = written_log(ENTRIES, old := Signer(keys / "A.key", keys / "A.crt"))
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


RECORDS = round_records(
    [  # A is absent from round 1
        {"round": 0, "updates": {"A": "u0", "B": "v0"}, "began": {"A": "m0", "B": "m0"}},
        {"round": 1, "updates": {"B": "v1"}, "began": {"B": "m1"}},
        {"round": 2, "updates": {"A": "u2", "B": "v2"}, "began": {"A": "m2", "B": "m2"}},
    ]
)
OWN = [trained(0, "m0", "u0"), {"work": "evaluate", "round": 1}, trained(1, "m1", "u1"), trained(2, "m2", "u2")]
LATE, LOST = trained(2, "m2", "late"), trained(2, "m2", "lost")


@pytest.mark.parametrize(
    ("records", "site", "entries", "rounds"),
    [
        (RECORDS, "A", OWN, 2),
        (RECORDS, "C", [trained(0, "m0", "w0")], 0),
        ([], "A", OWN, 0),
        (RECORDS, "A", [LOST, *OWN], 2),  # of a round trained twice either time may count
        (RECORDS, "A", [*OWN, LATE], 2),
    ],
)
def test_rounds_in_both_are_counted(own_log, records, site, entries, rounds):
    assert compare_updates(files(records), own_log(site, *entries)) == rounds


TAKEN = round_records(
    [
        {"round": 0, "participants": ["A", "B"], "updates": {"A": "u0"}},
        {"round": 1, "participants": ["B"], "rejected": {"A": "no reply"}, "updates": {}},
        {"round": 2, "participants": ["B"], "rejected": {"A": "not finite"}, "updates": {}},
        {"round": 3, "participants": ["B"], "rejected": {"A": "no reply"}, "updates": {}},
        {"round": 4, "participants": ["B"], "updates": {}},
    ]
)


def test_what_was_trained_and_did_not_count_is_reported_with_the_ledgers_reason(own_log):
    own = own_log("A", *(trained(round) for round in range(6)))  # in round 5 the run stands
    found = [(one.kind, one.details["numbers"], one.found) for one in find_discarded_updates(files(TAKEN), own)]
    assert found == [
        ("update discarded", [1, 3], "no reply"),
        ("update discarded", [2], "not finite"),
        ("update discarded", [4], "nothing of it"),
    ]
    away = own_log("A", trained(0, "m", "u0"), {"work": "refused", "round": 1})
    found = [(one.kind, one.details["numbers"], one.found) for one in find_discarded_updates(files(TAKEN), away)]
    assert found == [  # nothing shows that it was asked
        ("absence unproven", [2], "not finite"),
        ("absence unproven", [3], "no reply"),
        ("absence unproven", [4], "nothing of it"),
    ]
    stays = own_log("B", *(trained(round) for round in range(5)))  # its model stays with it
    assert not [*find_discarded_updates(files(TAKEN), stays)]


COMMITTED = {"cases": {"training": 2}, "slices": {"training": 9}, "fingerprint": "f"}


def enrolled(round, **changes):
    return {"work": "enrol", "round": round, "ledger": "h", **COMMITTED, **changes}


def enrolment_record(round, **of_sites):
    return round_record(round=round, guard={"enrolled": of_sites})


def test_what_counts_is_what_the_site_committed_to(own_log):
    of_ledger = COMMITTED | {"shares_with": [], "organisation": "site A"}
    others = {"B": COMMITTED | {"fingerprint": "of B"}}
    own = own_log("A", enrolled(0, fingerprint="before a crash"), enrolled(0), {"work": "train", "round": 0})
    records = [enrolment_record(0, A=of_ledger, **others), round_record(round=1), enrolment_record(2, **others)]
    compare_enrolments(files(records), own)
    records = [enrolment_record(0, **others), enrolment_record(1), enrolment_record(2, A=of_ledger)]
    compare_enrolments(files(records), own_log("A", enrolled(0), enrolled(2)))


@pytest.mark.parametrize(
    "change", [{"cases": {"training": 3}}, {"slices": {"training": 900}}, {"fingerprint": "of another hospital"}]
)
def test_another_commitment_is_found(own_log, change):
    words = "ledger.jsonl, line 2: A enrolled other cases, or another number of them, than A.jsonl has in round 1"
    for own in (own_log("A", enrolled(1, **change)), own_log("A", enrolled(0)), own_log("A")):
        with pytest.raises(BadInput) as found:
            compare_enrolments(files([round_record(round=0), enrolment_record(1, A=COMMITTED)]), own)
        assert str(found.value) == words


def rated(round, *said, split="validation", **more):
    return {"work": "evaluate", "round": round, "split": split, "overlaps": list(said), **more}


def rating_record(round, *taken, **more):
    return round_record(round=round, evaluated={"A": [texts_digest(said) for said in taken]}, **more)


def ratings(records, log):
    return [(one.kind, one.details["numbers"], one.found) for one in compare_ratings(files(records), log)]


ESTIMATED = rated(0, split="training")
IMPORTANCE = {"work": "evaluate", "round": 0, "split": "server_validation", "order": "exact"}
BEGAN = {"work": "train", "round": 0, "overlaps": ["of the model that it began with"]}
EARLIER = [BEGAN, rated(0, "a", "b"), rated(1, "c", split="server_validation"), rated(1, "d")]


@pytest.mark.parametrize(
    ("records", "entries"),
    [
        ([rating_record(0, "ab"), rating_record(1, "c", "d")], EARLIER),
        ([rating_record(0, "ab")], EARLIER),  # round 1 stands
        ([rating_record(0)], [rated(1, "a"), ESTIMATED, IMPORTANCE]),  # no answer on models
    ],
)
def test_what_counted_is_what_the_site_said(own_log, records, entries):
    assert ratings(records, own_log("A", *entries)) == []


def test_what_the_server_threw_away_is_reported_with_the_ledgers_reason(own_log):
    late = {"rejected": {"A": "evaluation: no reply"}}
    own = own_log("A", *(rated(round, "a", "b") for round in range(4)), rated(3, "c"))
    assert ratings(
        [rating_record(0, **late), rating_record(1), rating_record(2, **late), rating_record(3, "ab")], own
    ) == [("rating discarded", [0, 2], "evaluation: no reply"), ("rating discarded", [1, 3], "nothing of it")]


def test_what_the_site_did_not_say_is_found(own_log):
    words = "ledger.jsonl, line 2: holds what A said of models, but A.jsonl has no such answer in round 1"
    for own in (own_log("A", rated(0, "a"), rated(1, "a")), own_log("A", rated(0, "a"))):
        with pytest.raises(BadInput) as found:
            ratings([rating_record(0, "a"), rating_record(1, "b")], own)
        assert str(found.value) == words


def test_raters_have_the_same_models(own_log):
    first, second, other = (
        own_log(site, rated(1, "a", "b", received=models))
        for site, models in (("A", "models"), ("B", "models"), ("B", "worse models of rivals"))
    )
    digests = [texts_digest(["a", "b"])]
    record = round_record(round=1, evaluated={"A": digests, "B": digests})
    compare_rated_models(files([record], first, second))
    with pytest.raises(BadInput, match=r"B\.jsonl, line 1: B rated other models in round 1 than A\.jsonl, line 1, has"):
        compare_rated_models(files([record], first, other))
    compare_rated_models(files([record.model_copy(update={"evaluated": {}})], first, other))  # it did not count


def test_models_in_both_logs_are_counted_once_a_round(own_log):
    """B asked twice in round 1; what A and B gave C, and C A, is between others."""
    a = own_log("A", trained(1), gave("B", 1, "m1"), gave("B", 1, "m1"), gave("C", 1, "m1"), gave("B", 2, "m2"))
    b = own_log("B", got("A", 1, "m1"), got("A", 1, "m1"), got("C", 1, "c1"), got("A", 2, "m2"))
    assert compare_peer_models(a, b) == PeerExchange("A", "B", models=2)
    assert compare_peer_models(b, a) == PeerExchange("B", "A", models=0)
