"""What one site gave another, by two logs that agree or do not."""

import pytest

from fedmerit.errors import BadInput
from fedmerit.verification.site_logs import PeerExchange, compare_peer_models


def gave(peer, round, model):
    return {"work": "lend", "peer": peer, "round": round, "model": model}


def got(peer, round, model):
    return {"work": "borrow", "peer": peer, "round": round, "model": model}


TRAINED = {"work": "train", "round": 1}


def test_models_in_both_logs_are_counted_once_a_round(own_log):
    """B asked twice in round 1; what A and B gave C, and C A, is between others."""
    a = own_log("A", TRAINED, gave("B", 1, "m1"), gave("B", 1, "m1"), gave("C", 1, "m1"), gave("B", 2, "m2"))
    b = own_log("B", got("A", 1, "m1"), got("A", 1, "m1"), got("C", 1, "c1"), got("A", 2, "m2"))
    assert compare_peer_models(a, b) == PeerExchange("A", "B", models=2)
    assert compare_peer_models(b, a) == PeerExchange("B", "A", models=0)


def test_an_answer_that_did_not_come_is_no_contradiction(own_log):
    a = own_log("A", gave("B", 1, "m1"), gave("B", 2, "m2"), gave("B", 3, "m3"))
    b = own_log("B", got("A", 1, None), got("A", 2, "m2"), got("A", 3, None), got("A", 4, None))
    assert compare_peer_models(a, b) == PeerExchange("A", "B", models=1, lost=(1, 3))


def test_what_came_when_it_was_asked_for_again_is_not_lost(own_log):
    a = own_log("A", gave("B", 1, "half"), gave("B", 1, "m1"))
    assert compare_peer_models(a, own_log("B", got("A", 1, None), got("A", 1, "m1"))) == PeerExchange(
        "A", "B", models=1
    )


@pytest.mark.parametrize(
    ("given", "received", "words"),
    [
        ([gave("B", 1, "m1")], [], "A.jsonl, line 2: A gave B model m1 in round 1, but B.jsonl has no such record"),
        ([], [got("A", 1, "m1")], "B.jsonl, line 2: B got model m1 of A in round 1, but A.jsonl has no such record"),
        (
            [gave("B", 1, "m1")],
            [got("A", 1, "other")],
            "B.jsonl, line 2: B got model other of A in round 1, but A.jsonl, line 2, says m1",
        ),
        (
            [gave("B", 1, "m1"), gave("B", 2, "m1")],
            [got("A", 1, "m1")],
            "A.jsonl, line 3: A gave B model m1 in round 2, but B.jsonl has no such record",
        ),
        (
            [gave("B", 1, "m1"), gave("B", 1, "m2")],
            [got("A", 1, "m1")],
            "A.jsonl, line 3: A gave B model m2 in round 1, but B.jsonl, line 2, says m1",
        ),
        (
            [gave("B", 1, "m1")],
            [got("A", 1, None), got("A", 2, "m2")],
            "B.jsonl, line 3: B got model m2 of A in round 2, but A.jsonl has no such record",
        ),
    ],
)
def test_a_contradiction_is_told_with_both_lines(own_log, given, received, words):
    with pytest.raises(BadInput) as found:
        compare_peer_models(own_log("A", TRAINED, *given), own_log("B", TRAINED, *received))
    assert str(found.value) == words
