"""What is read of a run's ledger, and what is told where there is none or it is no ledger."""

import json

import pytest

from fedmerit.errors import BadInput
from fedmerit_evaluation.results.run_folders import read_rounds


def weights(record):
    return record["weights"].items()


def test_later_rounds_stand_for_earlier_ones_and_no_ledger_says_nothing(tmp_path):
    assert read_rounds(tmp_path, weights) == {}
    records = [{"weights": {"Alder": 0.5, "Birch": 0.5}}, {"weights": {"Alder": 0.25}}]
    (tmp_path / "ledger.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert read_rounds(tmp_path, weights) == {"Alder": 0.25, "Birch": 0.5}


@pytest.mark.parametrize("text", ["{}\n", "[]\n", '{"weights": 1}\n', "not JSON\n"])
def test_what_is_no_ledger_of_rounds_is_told(tmp_path, text):
    (tmp_path / "ledger.jsonl").write_text(text)
    with pytest.raises(BadInput, match=r"ledger\.jsonl: not a ledger of rounds .*; check it with `fedmerit verify"):
        read_rounds(tmp_path, weights)
