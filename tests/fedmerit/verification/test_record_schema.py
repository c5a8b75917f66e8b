"""The fields of records, and the rounds of a ledger."""

import json
import math

import pytest

from fedmerit.errors import BadInput
from fedmerit.records.ledger import Ledger
from fedmerit.verification.record_schema import TEXT, WHOLE, mapping_shape, read_ledger, require_shapes


def test_a_record_has_what_it_needs_and_the_rest_is_as_it_may_be():
    require_shapes({"a": 1, "c": object()}, {"a": WHOLE}, {"b": TEXT}, "line 1")
    with pytest.raises(BadInput, match=r"^line 1: lacks a, expected a whole number, 0 or more; get the file again"):
        require_shapes({}, {"a": WHOLE}, {}, "line 1")
    with pytest.raises(BadInput, match=r"^line 1: b is \[1\], expected an object, in it by name a text; get the file"):
        require_shapes({"b": [1]}, {}, {"b": mapping_shape(TEXT)}, "line 1")


def test_what_is_long_or_deep_is_told_in_short():
    deep = json.loads("[" * 500 + "]" * 500)
    for value in (deep, "x" * 9999):
        with pytest.raises(BadInput) as found:
            require_shapes({"a": value}, {"a": WHOLE}, {}, "line 1")
        assert len(str(found.value)) < 200


RECORD = {
    "round": 0,
    "of": 2,
    "participants": ["A"],
    "began": {"A": "b"},
    "updates": {"A": "u"},
    "weights": {"A": 1.0},
    "contributions": {"A": None},
    "reputations": {"A": 1.0},
    "inputs": {},
    "rejected": {},
    "flagged": [],
    "model": "m",
    "validation_dice": {"A": 0.5},
    "rows": "r",
    "evaluated": {},
    "logs": {},
}
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
    assert [record["round"] for record in read_ledger(ledger(FIRST, RECORD | more))] == [0, 1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weights": [1]}, "not the record of a round: weights is [1], expected an object, in it by name a number"),
        ({"of": "x"}, "not the record of a round: of is 'x', expected a whole number, 0 or more"),
        ({"of": math.inf}, "not the record of a round: of is inf, expected a whole number"),
        ({"of": 1}, "is of round 1 of 1, expected more rounds than that"),
        ({"round": 7}, "is of round 7, expected 1"),
        ({"participants": "A"}, "not the record of a round: participants is 'A', expected a list, in it a text"),
        ({"participants": [["A"]]}, "not the record of a round: participants is [['A']], expected a list"),
        ({"began": {}}, "began lacks A, which has an update"),
        ({"saved": ["models/global.pt"]}, "not the record of a round: saved is"),
        ({"guard": {"verdicts": {}}}, "not the record of a round: guard is"),
        ({"guard": {"bounds": {"clipped": {"A": "1"}}}}, "not the record of a round: guard is"),
        ({"guard": {"enrolled": {"A": {"cases": 3}}}}, "not the record of a round: guard is"),
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
    with pytest.raises(BadInput, match=rf"ledger\.jsonl, line 1: not the record of a round: lacks {name}, expected"):
        read_ledger(path)
