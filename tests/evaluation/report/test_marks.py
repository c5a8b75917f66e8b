"""Why a site is marked, in words that are true of the method."""

from pathlib import Path

import pytest
from run_factory import add_rows, make_run

from evaluation.report.marks import marked
from evaluation.results.run_folders import open_runs
from fedmerit.records.results import Row


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("fedce", "its claimed cosine differs from what the server computed by more than 0.001"),
        ("cgsv", "the method's own rule"),
        ("of-others", "the method's own rule"),
    ],
)
def test_a_flag_is_told_by_the_rule_of_its_method(tmp_path: Path, method: str, reason: str) -> None:
    run = make_run(tmp_path / "run", method=method, rounds=3)
    add_rows(run, [Row("run", method, 0, number, "Birch", "flagged", float(number > 0)) for number in range(3)])
    (row,) = marked(open_runs([run])).to_dict("records")
    assert (row["Site"], row["What"], row["Rounds"], row["Reason"]) == ("Birch", "flagged", "1\N{EN DASH}2", reason)
