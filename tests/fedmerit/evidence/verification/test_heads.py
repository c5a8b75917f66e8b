"""Ledger heads and closings that sites noted, beside the ledger, the run folder and what others noted."""

from pathlib import Path

import pytest
from ledger_records import round_records

from fedmerit.errors import BadInput
from fedmerit.evidence.closing_record import CLOSING, Closing, close
from fedmerit.evidence.ledger import RecordSignature, signature_payload
from fedmerit.evidence.verification.chains import RunFiles
from fedmerit.evidence.verification.heads import (
    compare_log_ends,
    has_unsigned_heads,
    read_verified_closing,
    require_acknowledged_ledger,
    require_consistent_heads,
)

GENESIS = "0" * 64
RECORDS = round_records([{"round": 0, "hash": "h0"}, {"round": 1, "hash": "h1"}])


def require_acknowledged(log, *certificates, records=RECORDS):
    require_acknowledged_ledger(RunFiles(Path(), records, certificates=certificates), log)


def require_consistent(logs, *certificates):
    require_consistent_heads(RunFiles(Path(), RECORDS, logs, certificates=certificates))


def reported(round, ledger, **more):
    return {"work": "train", "round": round, "ledger": ledger, **more}


HONEST = [
    reported(0, GENESIS),
    reported(1, "h0"),
    {"work": "gave", "round": 1, "peer": "B"},
    reported(2, "h1"),
    reported(2, "h1"),
]


def test_a_site_is_reported_the_record_of_the_round_before(own_log):
    require_acknowledged(own_log("A", *HONEST))
    require_consistent([own_log("A", *HONEST), own_log("B", *HONEST[:2])])


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (reported(2, "x"), "the server said its ledger ended with x; ledger.jsonl, line 2, has h1"),
        (reported(2, "h0"), "the server said its ledger ended with h0; ledger.jsonl, line 2, has h1"),
        (
            reported(3, "h2"),
            "the server said its ledger ended with h2; ledger.jsonl lacks that record, or is older than",
        ),
        ({"work": "train", "round": 2}, "not a record of a site's log"),
    ],
)
def test_a_ledger_that_is_not_the_one_reported_is_found(own_log, entry, words):
    with pytest.raises(BadInput) as found:
        require_acknowledged(own_log("A", *HONEST, entry))
    assert str(found.value).startswith(f"A.jsonl, line 6: {words}")


def vouched(server, round, head, chain="c"):
    """What the server says as a round begins: its record of the round before."""
    return str(RecordSignature(chain, server.sign(signature_payload(chain, round - 1, head))))


def test_what_stands_for_the_servers_signature_has_to_be_it(own_log, server):
    signed = reported(1, "h0", vouched=vouched(server, 1, "h0"))
    require_acknowledged(own_log("A", reported(0, GENESIS), signed), server.certificate)
    for forged in (vouched(server, 1, "h1"), vouched(server, 2, "h0"), server.sign("h0")):
        log = own_log("A", signed | {"vouched": forged})
        require_acknowledged(log)  # without the server's certificate nobody can tell
        with pytest.raises(BadInput, match="line 1: what it has for the server's signature is none of the server's"):
            require_acknowledged(log, server.certificate)


@pytest.mark.parametrize(
    ("head", "seal", "words"),
    [
        ("x", (2, "c"), "; the server signed that"),
        ("x", (2, "other"), "; the server signed that of another chain, or run"),
        ("x", None, "; the server did not sign that for round 2"),
        (
            "h0",
            (1, "c"),
            "; the server did not sign that for round 2; it is the ledger's record of round 0, that A's log",
        ),
    ],
)
def test_whose_a_head_is_that_the_ledger_has_not_is_reported(own_log, server, head, seal, words):
    more = {"vouched": vouched(server, seal[0], head, seal[1])} if seal else {}
    records = [record.model_copy(update={"signature": "c:00"}) for record in RECORDS]
    with pytest.raises(BadInput) as found:
        require_acknowledged(own_log("A", reported(2, head, **more)), server.certificate, records=records)
    assert f"ledger.jsonl, line 2, has h1{words}" in str(found.value)


BOTH, ONE = "the server signed both", "the server signed only one of them"
FOR_ANOTHER = "it is the ledger's record of round 0, that B's log has for another"


@pytest.mark.parametrize(
    ("first", "second", "whose"),
    [
        (("h1", 2, "c"), ("x", 2, "c"), f"{BOTH}: it keeps two ledgers"),
        (("h1", 2, "c"), ("x", 2, "d"), f"{BOTH}, of two chains: one log is of another run, or it keeps two ledgers"),
        (("h1", 2, "c"), ("x", 1, "c"), f"{ONE}, not that in B.jsonl, line 2: that log was changed, or the server did"),
        (("h1", 2, "c"), ("h0", 1, "c"), FOR_ANOTHER),  # by the signature that the server gave it of round 0
        (("h1", None, None), ("h0", None, None), FOR_ANOTHER),
        (("h1", None, None), ("x", None, None), "neither is signed by the server: it keeps two ledgers, or a log was"),
    ],
)
def test_two_stories_are_reported_with_whose_fault_they_are(own_log, server, first, second, whose):
    logs = []
    for site, (head, round, chain) in {"A": first, "B": second}.items():
        more = {} if chain is None else {"vouched": vouched(server, round, head, chain)}
        logs.append(own_log(site, reported(0, GENESIS), reported(2, head, **more)))
    with pytest.raises(BadInput) as found:
        require_consistent(logs, server.certificate)
    assert str(found.value).startswith(
        f"two ledger heads for round 2: A.jsonl, line 2, says that the ledger ended with {first[0]}; B.jsonl, line 2, "
    )
    assert whose in str(found.value)
    with pytest.raises(BadInput, match=r"neither is signed by the server|it is the ledger's record of round 0"):
        require_consistent(logs)


def test_sites_whose_logs_lack_the_servers_signature_are_named(own_log):
    signed = [reported(0, GENESIS), reported(1, "h0", vouched="s"), {"work": "gave", "round": 1, "peer": "B"}]
    assert [has_unsigned_heads(own_log("A", *signed)), has_unsigned_heads(own_log("B", *HONEST))] == [False, True]


def test_one_site_with_two_stories_is_enough(own_log):
    with pytest.raises(
        BadInput, match=r"two ledger heads for round 1: A\.jsonl, line 2, .* with h0; A\.jsonl, line 6, with x"
    ):
        require_consistent([own_log("A", *HONEST, reported(1, "x"))])


def read_closed(run, head="head", *certificates):
    return read_verified_closing(RunFiles(run, round_records([{"hash": head}]), certificates=certificates))


@pytest.fixture
def run(tmp_path):
    """One that ended, not signed."""
    (tmp_path / "models").mkdir()
    for name in ("results.csv", "run.json", "models/global.pt"):
        (tmp_path / name).write_text(name)
    close(tmp_path, "head", {"A": "last"})
    return tmp_path


def test_what_lies_there_is_what_was_left(run):
    closing = read_closed(run)
    assert closing
    assert set(closing.files) == {"results.csv", "run.json", "models/global.pt"}
    (run / "report.html").write_text("made later")  # covered by nothing
    assert read_closed(run) == closing
    (run / CLOSING).unlink()
    assert read_closed(run) is None


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda run: (run / "run.json").write_text("other"), "run.json: was changed after the run; {} has another SHA"),
        (lambda run: (run / "results.csv").unlink(), "results.csv: is missing; {} lists it"),
        (lambda run: (run / "models/best.pt").touch(), "models/best.pt: was put there after the run; {} does not list"),
    ],
)
def test_what_was_changed_taken_or_added_is_named(run, spoil, words):
    spoil(run)
    with pytest.raises(BadInput) as found:
        read_closed(run)
    assert str(found.value).startswith(f"{run}/" + words.format(run / CLOSING))


def test_a_closing_record_is_of_this_ledger(run):
    with pytest.raises(BadInput, match=r"closing\.json: is of a ledger that ended with head, this one ends with other"):
        read_closed(run, "other")


def test_a_closing_record_is_signed_as_the_ledger_is(run, server):
    with pytest.raises(BadInput, match=r"closing\.json: it is not signed; it was written or changed by somebody else"):
        read_closed(run, "head", server.certificate)
    close(run, "head", {}, server)
    assert read_closed(run, "head", server.certificate)
    with pytest.raises(BadInput, match=r"closing\.json: is signed, and the ledger is not; its signatures were removed"):
        read_closed(run)
    text = (run / CLOSING).read_text()
    (run / CLOSING).write_text(text.replace('"head"', '"other"'))
    with pytest.raises(BadInput, match=r"closing\.json: its signature is not the server's"):
        read_closed(run, "other", server.certificate)


def test_end_of_a_log_that_nobody_signed_accuses_nobody(own_log):
    closing = Closing(ledger="head", files={}, site_logs={"A": "a2"})
    full = own_log("A", {"hash": "a1"}, {"hash": "a2"}, {"hash": "a3"})  # it may have gone on
    files = RunFiles(Path(), logs=[full, own_log("B", {"hash": "b1"})])
    assert not [*compare_log_ends(files, closing, {})]
    files = RunFiles(Path(), logs=[own_log("B"), own_log("A", {"hash": "a1"})])
    (reported,) = compare_log_ends(files, closing, {})
    assert str(reported).startswith("whether the logs of A were cut, or the server invented how they ended")
