"""The guard's verdicts in words: none, one that stands, one that was lifted."""

import json
from pathlib import Path

import pandas as pd
import pytest
from run_factory import SITES, add_rows, make_run, write_ledger

from fedmerit.schema.results import Row
from fedmerit_evaluation.report.all_sites import write_report
from fedmerit_evaluation.report.flagged_sites import describe_by_site, is_guarded, list_verdicts
from fedmerit_evaluation.report.phrases import describe_verdict, describe_verdicts
from fedmerit_evaluation.results.runs import open_runs

ROUNDS = 12


def guarded_run(folder: Path, against: dict[str, range], on_verdict: str = "withhold", guard: str = "on") -> Path:
    """A run in which verdicts stood against sites in ranges of rounds."""
    run = make_run(folder, rounds=ROUNDS, plan={"guard": {"guard": guard, "on_verdict": on_verdict}})
    add_rows(
        run,
        [
            Row("run", "fedce", 0, number, site, "verdict", float(number in against.get(site, ())))
            for number in range(ROUNDS)
            for site in SITES
        ],
    )
    write_ledger(run, [{"round": number, "rejected": {}, "guard": {}} for number in range(ROUNDS)])
    return run


def screen(run: Path) -> tuple[pd.DataFrame, str]:
    """The row of each hospital, and the page."""
    page = write_report([run]).read_text()
    return pd.read_csv(run / "tables" / "contribution.csv").set_index("Hospital"), page


def test_a_guarded_run_without_verdicts_says_so(tmp_path):
    run = guarded_run(tmp_path / "run", {})
    hospitals, page = screen(run)
    assert set(hospitals["Flagged"]) == {"no"}
    assert "The guard detected no free rider in any round." in page


def test_a_verdict_that_stands_is_what_the_first_screen_says(tmp_path):
    run = guarded_run(tmp_path / "run", {"Birch": range(4, ROUNDS)})
    (found,) = list_verdicts(open_runs([run])[0])
    assert (found.site, found.what, found.since, found.lifted) == ("Birch", "withheld", 4, None)
    hospitals, page = screen(run)
    words = "contribution, weight and reward withheld since round 4"
    assert hospitals.loc["Birch", "Flagged"] == words
    assert hospitals.loc["Birch", "Result"].startswith("Flagged: look at it first.")
    assert hospitals.loc["Alder", "Flagged"] == "no"
    assert f"Birch: {words}." in page
    marks = pd.read_csv(run / "tables" / "flags.csv")
    assert marks.loc[0, ["Site", "What", "Rounds"]].tolist() == ["Birch", "withheld", "4\N{EN DASH}11"]


def test_a_verdict_that_was_lifted_says_when_and_accuses_nobody(tmp_path):
    run = guarded_run(tmp_path / "run", {"Cedar": range(3, 7)})
    hospitals, _ = screen(run)
    assert hospitals.loc["Cedar", "Flagged"] == (
        "contribution, weight and reward withheld from round 3 to 6; lifted in round 7, and rewarded again"
    )
    assert not hospitals.loc["Cedar", "Result"].startswith("Flagged")


def test_runs_without_a_guard_have_no_verdicts(tmp_path):
    (run,) = open_runs([guarded_run(tmp_path / "run", {"Birch": range(4, ROUNDS)}, guard="off")])
    assert not is_guarded(run)
    assert list_verdicts(run) == []
    assert not is_guarded(open_runs([make_run(tmp_path / "old")])[0])


def test_seeds_are_named_where_there_are_several(tmp_path):
    one = guarded_run(tmp_path / "one", {"Birch": range(4, ROUNDS)}, on_verdict="exclude")
    other = guarded_run(tmp_path / "other", {})
    info = json.loads((other / "run.json").read_text())
    (other / "run.json").write_text(json.dumps(info | {"seed": 1}))
    said = describe_by_site(open_runs([one, other]))
    assert said == {"Birch": ["seed 0: excluded since round 4"]}


@pytest.mark.parametrize(
    ("what", "words"),
    [("detected", "detected since round 2; nothing was withheld"), ("excluded", "excluded since round 2")],
)
def test_what_a_verdict_did_is_said(what, words):
    assert describe_verdict(what, "since round 2", None) == words


def test_words_of_none():
    assert describe_verdicts({}).startswith("The guard detected no free rider")
