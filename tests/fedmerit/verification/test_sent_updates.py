"""What a site says that it sent, beside what the ledger says."""

from pathlib import Path

import pytest

from fedmerit.errors import BadInput
from fedmerit.verification.site_logs import compare_updates, explain_missing

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


TAKEN = [
    {"round": 0, "participants": ["A", "B"], "updates": {"A": "u0"}},
    {"round": 1, "participants": ["B"], "rejected": {"A": "no reply"}, "updates": {}},
    {"round": 2, "participants": ["B"], "rejected": {"A": "not finite"}, "updates": {}},
    {"round": 3, "participants": ["B"], "rejected": {"A": "no reply"}, "updates": {}},
    {"round": 4, "participants": ["B"], "updates": {}},
]


def test_what_was_trained_and_did_not_count_is_told_with_the_ledgers_reason(own_log):
    own = [trained(round, "m", "u") for round in range(6)]  # in round 5 the run stands
    assert list(explain_missing(TAKEN, own_log("A", *own))) == [
        "why what A trained in rounds 1, 3 did not count: its log has it, the ledger says: no reply",
        "why what A trained in round 2 did not count: its log has it, the ledger says: not finite",
        "why what A trained in round 4 did not count: its log has it, the ledger says: nothing of it",
    ]


def test_who_was_away_or_whose_model_stays_with_it_is_left_out_of_nothing(own_log):
    assert not list(explain_missing(TAKEN, own_log("A", trained(0, "m", "u0"), {"work": "refused", "round": 1})))
    assert not list(explain_missing(TAKEN, own_log("B", *(trained(round, "m", "u") for round in range(5)))))
