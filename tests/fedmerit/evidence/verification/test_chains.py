"""The fields of records, and the rounds of a ledger."""

import math

import pytest

from fedmerit.errors import BadInput
from fedmerit.evidence.ledger import Ledger
from fedmerit.evidence.verification.chains import read_ledger

RECORD = {
    "round": 0, "of": 2, "participants": ["A"], "began": {"A": "b"}, "updates": {"A": "u"}, "weights": {"A": 1.0},
    "contributions": {"A": None}, "reputations": {"A": 1.0}, "inputs": {"size": 0, "counts": {}}, "rejected": {},
    "flagged": [], "model": "m", "validation_dice": {"A": 0.5}, "rows": "r", "evaluated": {}, "logs": {}
}  # fmt: skip
FIRST = RECORD | {"plan": "p"}


@pytest.fixture
def ledger(tmp_path):
    """Writes one of these records."""

    def write(*records):
        for record in records:
            Ledger(tmp_path / "ledger.jsonl").append(record)
        return tmp_path / "ledger.jsonl"

    return write


def test_rounds_are_read(ledger):
    more = {"round": 1, "guard": {"enrolled": {}}, "saved": {}}
    assert [record.round for record in read_ledger(ledger(FIRST, RECORD | more))] == [0, 1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weights": [1]}, "not the record of a round: weights=[1]: expected a table of names and values; get the"),
        ({"of": 10**400}, "not the record of a round: of=1000"),
        ({"of": 1}, "is of round 1 of 1, expected more rounds than that"),
        ({"round": 7}, "is of round 7, expected 1"),
        ({"began": {}}, "updates names A; expected no other sites than "),
        (
            {"guard": {"enrolled": {"A": {"images": math.nan, "shares_with": [], "organisation": "A"}}}},
            "not the record of a round: guard.enrolled.A.images=nan",
        ),
    ],
)
def test_what_is_no_record_of_a_round_is_named(ledger, change, words):
    path = ledger(FIRST, RECORD | {"round": 1, "saved": {}} | change)
    with pytest.raises(BadInput) as found:
        read_ledger(path)
    assert str(found.value).startswith(f"{path}, line 2: {words}")


@pytest.mark.parametrize("name", [*FIRST, "saved"])
def test_what_a_record_lacks_is_named(ledger, name):
    whole = FIRST | {"of": 1, "saved": {}}
    path = ledger({one: value for one, value in whole.items() if one != name})
    with pytest.raises(BadInput, match=rf"ledger\.jsonl, line 1: not the record of a round: lacks {name}; get the"):
        read_ledger(path)
