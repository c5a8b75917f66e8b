"""What a site said of models for others, beside what the ledger says that counted."""

from pathlib import Path

import pytest

from fedmerit.errors import BadInput
from fedmerit.records.ledger import texts_digest
from fedmerit.verification.site_logs import compare_ratings

LEDGER = Path("ledger.jsonl")


def rated(round, *said, split="validation"):
    return {"work": "evaluate", "round": round, "split": split, "overlaps": list(said)}


def record(round, *taken, **more):
    return {"round": round, "evaluated": {"A": [texts_digest(said) for said in taken]}, **more}


def of(records, log):
    return list(compare_ratings(LEDGER, records, log))


def test_what_counted_is_what_the_site_said(own_log):
    trained = {"work": "train", "round": 0, "overlaps": ["of the model that it began with"]}
    own = own_log("A", trained, rated(0, "a", "b"), rated(1, "c", split="server_validation"), rated(1, "d"))
    assert of([record(0, "ab"), record(1, "c", "d")], own) == []
    assert of([record(0, "ab")], own) == []  # round 1 stands


def test_of_a_round_that_was_repeated_one_answer_counts(own_log):
    own = own_log("A", rated(0, "a", "b"), rated(0, "c", "d"))
    assert of([record(0, "cd")], own) == []


def test_what_the_server_threw_away_is_told_with_the_ledgers_reason(own_log):
    late = {"rejected": {"A": "evaluation: no reply"}}
    own = own_log("A", *(rated(round, "a", "b") for round in range(4)), rated(3, "c"))
    assert of([record(0, **late), record(1), record(2, **late), record(3, "ab")], own) == [
        "why what A said of models in rounds 0, 2 did not count: its log has it, the ledger says: evaluation: no reply",
        "why what A said of models in rounds 1, 3 did not count: its log has it, the ledger says: nothing of it",
    ]


def test_what_the_site_did_not_say_is_found(own_log):
    words = "ledger.jsonl, line 2: holds what A said of models, but A.jsonl has no such answer in round 1"
    for own in (own_log("A", rated(0, "a"), rated(1, "a")), own_log("A", rated(0, "a"))):
        with pytest.raises(BadInput) as found:
            of([record(0, "a"), record(1, "b")], own)
        assert str(found.value) == words


def test_what_is_no_answer_on_models_has_none(own_log):
    estimated = rated(0, split="training")
    importance = {"work": "evaluate", "round": 0, "split": "server_validation", "order": "exact"}
    assert of([record(0)], own_log("A", rated(1, "a"), estimated, importance)) == []
