"""What a site says that it sent, beside what the ledger says."""

from pathlib import Path

import pytest

from fedmerit.errors import BadInput
from fedmerit.verification.sent_updates import compare_updates

LEDGER = Path("ledger.jsonl")
RECORDS = [  # A is absent from round 1
    {"round": 0, "updates": {"A": "u0", "B": "v0"}, "began": {"A": "m0", "B": "m0"}},
    {"round": 1, "updates": {"B": "v1"}, "began": {"B": "m1"}},
    {"round": 2, "updates": {"A": "u2", "B": "v2"}, "began": {"A": "m2", "B": "m2"}},
]


def trained(round, received, update):
    return {"work": "train", "round": round, "received": received, "update": update}


OWN = [trained(0, "m0", "u0"), {"work": "evaluate", "round": 1}, trained(1, "m1", "u1"), trained(2, "m2", "u2")]


def test_rounds_in_both_are_counted(own_log):
    assert compare_updates(LEDGER, RECORDS, own_log("A", *OWN)) == 2
    assert compare_updates(LEDGER, RECORDS, own_log("C", trained(0, "m0", "w0"))) == 0
    assert compare_updates(LEDGER, [], own_log("A", *OWN)) == 0


def test_of_a_round_trained_twice_either_time_may_count(own_log):
    assert compare_updates(LEDGER, RECORDS, own_log("A", trained(2, "m2", "lost"), *OWN)) == 2
    assert compare_updates(LEDGER, RECORDS, own_log("A", *OWN, trained(2, "m2", "late"))) == 2


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (OWN[:3], "ledger.jsonl, line 3: holds an update of A, but A.jsonl has none in round 2"),
        (
            [*OWN[:3], trained(2, "m2", "x")],
            "ledger.jsonl, line 3: the update of A is u2, A.jsonl, line 4, says x",
        ),
        (
            [trained(0, "x", "u0"), *OWN[1:]],
            "ledger.jsonl, line 1: the model it began with of A is m0, A.jsonl, line 1, says x",
        ),
        (
            [{"work": "evaluate", "round": 0}, *OWN[1:]],
            "ledger.jsonl, line 1: holds an update of A, but A.jsonl has none in round 0",
        ),
    ],
)
def test_what_differs_is_told_with_both_lines(own_log, entries, words):
    with pytest.raises(BadInput) as found:
        compare_updates(LEDGER, RECORDS, own_log("A", *entries))
    assert str(found.value) == words
