"""What sites were told of the ledger, beside the ledger and beside what others were told."""

from pathlib import Path

import pytest

from fedmerit.errors import BadInput
from fedmerit.verification.told_heads import require_one_story, require_told

LEDGER, GENESIS = Path("ledger.jsonl"), "0" * 64
RECORDS = [{"round": 0, "hash": "h0"}, {"round": 1, "hash": "h1"}]


def told(round, ledger, **more):
    return {"work": "train", "round": round, "ledger": ledger, **more}


HONEST = [told(0, GENESIS), told(1, "h0"), {"work": "lend", "round": 1, "peer": "B"}, told(2, "h1"), told(2, "h1")]


def test_a_site_is_told_of_the_record_of_the_round_before(own_log):
    require_told(LEDGER, RECORDS, own_log("A", *HONEST), None)
    require_one_story([own_log("A", *HONEST), own_log("B", *HONEST[:2])], None)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (told(2, "x"), "the server said its ledger ended with x; ledger.jsonl, line 2, has h1"),
        (told(2, "h0"), "the server said its ledger ended with h0; ledger.jsonl, line 2, has h1"),
        (told(3, "h2"), "the server said its ledger ended with h2; ledger.jsonl lacks that record, or is older than"),
        ({"work": "train", "round": 2}, "not a record of a site's log"),
    ],
)
def test_a_ledger_that_is_not_the_one_told_of_is_found(own_log, entry, words):
    with pytest.raises(BadInput) as found:
        require_told(LEDGER, RECORDS, own_log("A", *HONEST, entry), None)
    assert str(found.value).startswith(f"A.jsonl, line 6: {words}")


def test_what_stands_for_the_servers_signature_has_to_be_it(own_log, server):
    signed = told(1, "h0", vouched=server.sign("h0"))
    require_told(LEDGER, RECORDS, own_log("A", told(0, GENESIS), signed), server.certificate)
    forged = signed | {"vouched": server.sign("h1")}
    require_told(LEDGER, RECORDS, own_log("A", forged), None)  # without the server's certificate nobody can tell
    with pytest.raises(BadInput, match="line 1: what it has for the server's signature is none of the server's"):
        require_told(LEDGER, RECORDS, own_log("A", forged), server.certificate)


@pytest.mark.parametrize(
    ("signed", "whose"),
    [
        (("h0", "x"), "the server signed both: it keeps two ledgers"),
        (("h0",), "the server signed one of them alone; the other log was changed, or the server did not sign"),
        ((), "neither is signed by the server: it keeps two ledgers, or a log was changed"),
    ],
)
def test_two_stories_are_told_with_who_signed_them(own_log, server, signed, whose):
    stories = [
        told(1, ledger, vouched=server.sign(ledger)) if ledger in signed else told(1, ledger) for ledger in ("h0", "x")
    ]
    logs = [own_log("A", told(0, GENESIS), stories[0]), own_log("B", told(0, GENESIS), told(2, "h1"), stories[1])]
    with pytest.raises(BadInput) as found:
        require_one_story(logs, server.certificate)
    assert str(found.value) == (
        "two stories of round 1: A.jsonl, line 2, was told that the ledger ended with h0; "
        f"B.jsonl, line 3, with x; {whose}"
    )


def test_one_site_told_two_stories_is_enough(own_log):
    with pytest.raises(
        BadInput, match=r"two stories of round 1: A\.jsonl, line 2, .* with h0; A\.jsonl, line 6, with x"
    ):
        require_one_story([own_log("A", *HONEST, told(1, "x"))], None)
