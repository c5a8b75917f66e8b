"""Who is marked, in which rounds and why, in words that are true of the method."""

from pathlib import Path

import pytest
from parsed_page import Page
from run_factory import add_rows, make_run, write_ledger

from fedmerit.errors import BadInput
from fedmerit.schema.results import Row
from fedmerit_evaluation.report.all_sites import write_report
from fedmerit_evaluation.report.flagged_sites import list_flags
from fedmerit_evaluation.results.runs import open_runs


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("fedce", "the cosine it reported differs from the server's by more than 0.001"),
        ("cgsv", "the method's own rule"),
        ("of-others", "the method's own rule"),
    ],
)
def test_a_flag_is_told_by_the_rule_of_its_method(tmp_path: Path, method: str, reason: str) -> None:
    run = make_run(tmp_path / "run", method=method, rounds=3)
    add_rows(run, [Row("run", method, 0, number, "Birch", "flagged", float(number > 0)) for number in range(3)])
    (row,) = list_flags(open_runs([run])).to_dict("records")
    assert (row["Site"], row["What"], row["Rounds"], row["Reason"]) == ("Birch", "flagged", "1\N{EN DASH}2", reason)


def test_rejected_and_flagged_sites_with_the_reason_from_the_ledger(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    rows = [Row("run", "fedce", 0, number, "Birch", "rejected", 1.0) for number in (3, 4, 5, 9)]
    add_rows(run, [*rows, Row("run", "fedce", 0, 7, "Cedar", "flagged", 1.0)])
    add_rows(run, [Row("run", "fedce", 0, 11, "Alder", "rejected", 1.0, "testing")])
    write_ledger(run, [{"round": number, "rejected": {"Birch": "update with NaN"}} for number in (3, 4, 5, 9)])
    page = Page(write_report([run]).read_text())
    marks = {(row[2], row[3]): row[4:] for row in page.tables["table-flags"][1:]}
    assert marks["Birch", "rejected"] == ["3\N{EN DASH}5, 9", "update with NaN"]
    assert marks["Cedar", "flagged"][0] == "7"
    assert marks["Alder", "rejected"] == ["11", "no usable reply to the final test"]
    assert "Cedar flagged in at least one round; Alder and Birch with a reply missing or rejected" in page.text


def test_an_expelled_site_is_listed_with_the_threshold(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", method="rffl", rounds=4, parameters={"coef": 1 / 3})
    add_rows(run, [Row("run", "rffl", 0, number, "Birch", "expelled", float(number > 1)) for number in range(4)])
    heading, row = Page(write_report([run]).read_text()).tables["table-flags"]
    assert row[2:] == ["Birch", "expelled", "2\N{EN DASH}3", "its reputation fell below 0.333 of an equal share of the "
                       "remaining sites'"]  # fmt: skip
    assert heading[2:5] == ["Site", "What", "Rounds"]


def test_a_ledger_that_is_none_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "ledger.jsonl").write_text("not json\n")
    with pytest.raises(BadInput, match=r"ledger.jsonl: not a ledger.*fedmerit verify"):
        write_report([run])
