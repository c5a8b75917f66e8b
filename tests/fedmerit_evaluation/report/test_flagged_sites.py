"""Flags, the guard's verdicts and bounds, as a report shows them."""

import json
from pathlib import Path

import pandas as pd
import pytest
from parsed_page import Page
from run_factory import SITES, add_rows, make_run, write_ledger

from fedmerit.records.results import Row
from fedmerit_evaluation.figures.tables import DASH
from fedmerit_evaluation.report.all_sites import write_report
from fedmerit_evaluation.report.flagged_sites import (
    describe_by_site,
    is_guarded,
    list_flags,
    list_suspicions,
    list_verdicts,
)
from fedmerit_evaluation.report.one_site import write_site_report
from fedmerit_evaluation.report.phrases import describe_verdict
from fedmerit_evaluation.results.run_folders import open_runs

MINUS = "\N{MINUS SIGN}"


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


def test_suspicions_come_with_rounds_values_and_thresholds(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=4)
    for number in range(4):
        norms = [1.0, 1.1, 0.9, 0.01 if number >= 2 else 1.0]
        add_rows(run, [Row("run", "fedce", 0, number, site, "norm", norm)
                       for site, norm in zip(SITES, norms, strict=True)])  # fmt: skip
    page = Page(write_report([run]).read_text())
    heading, *rows = page.tables["table-suspicions"]
    found = {(row[1], row[2]): dict(zip(heading, row, strict=True)) for row in rows}
    small = found["Dogwood", "small norm"]
    assert (small["Seeds"], small["First round"], small["Flagged rounds"]) == ("1 of 1", "2", "2")
    assert (small["Suspicion, highest"], small["Threshold"]) == (f"{MINUS}0.01", f"{MINUS}0.10")
    assert ("Alder", "small norm") not in found
    assert "No evidence recorded for: free-rider value" in page.text


@pytest.mark.parametrize("method", ["fedavg", "pooled"])
def test_pooled_training_whose_sites_bear_one_update_makes_nobody_suspect(tmp_path: Path, method: str) -> None:
    run = make_run(tmp_path / "run", method=method, rounds=3)
    for number in range(3):
        add_rows(
            run, [Row("run", method, 0, number, site, "norm", 0.0 if site == "Dogwood" else 1.0) for site in SITES]
        )
    found, silent = list_suspicions(open_runs([run]))
    assert found.frame.empty == (method == "pooled")
    assert ("small norm" in silent) == (method == "pooled")


def test_an_expelled_site_is_listed_with_the_threshold(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", method="rffl", rounds=4, parameters={"coef": 1 / 3})
    add_rows(run, [Row("run", "rffl", 0, number, "Birch", "expelled", float(number > 1)) for number in range(4)])
    heading, row = Page(write_report([run]).read_text()).tables["table-flags"]
    assert row[2:] == ["Birch", "expelled", "2\N{EN DASH}3", "its reputation fell below 0.333 of an equal share of the "
                       "remaining sites'"]  # fmt: skip
    assert heading[2:5] == ["Site", "What", "Rounds"]


ROUNDS = 12


def guarded_run(folder: Path, against: dict[str, range], on_verdict: str = "withhold", guard: str = "on") -> Path:
    """A run in which verdicts stood against sites in ranges of rounds, by indicators of length and direction."""
    run = make_run(folder, rounds=ROUNDS, plan={"guard": {"guard": guard, "on_verdict": on_verdict}})
    add_rows(
        run,
        [
            Row("run", "fedce", 0, number, site, "verdict", float(number in against.get(site, ())))
            for number in range(ROUNDS)
            for site in SITES
        ],
    )
    signs = {site: ["length", "direction"] for site in against}
    write_ledger(run, [{"round": number, "rejected": {}, "guard": {"indicators": signs}} for number in range(ROUNDS)])
    return run


def screen(run: Path) -> tuple[pd.DataFrame, str]:
    """The row of each hospital, and the page."""
    page = write_report([run]).read_text()
    return pd.read_csv(run / "tables" / "contribution.csv").set_index("Hospital"), page


def test_a_guarded_run_without_verdicts_says_so_and_suspects_nobody(tmp_path):
    run = guarded_run(tmp_path / "run", {})
    rows = [Row("run", "fedce", 0, number, site, "norm", 0.001 if site == "Birch" else 1.0)
            for number in range(ROUNDS) for site in SITES]  # fmt: skip
    add_rows(run, rows)
    hospitals, page = screen(run)
    assert set(hospitals["Flagged"]) == {"no"}
    assert "The guard detected no free rider in any round." in page
    assert "Free-rider detectors flag" not in page


def test_a_verdict_that_stands_is_what_the_first_screen_says(tmp_path):
    run = guarded_run(tmp_path / "run", {"Birch": range(4, ROUNDS)})
    (found,) = list_verdicts(open_runs([run])[0])
    assert (found.site, found.what, found.since, found.lifted) == ("Birch", "withheld", 4, None)
    hospitals, page = screen(run)
    words = "contribution, weight and reward withheld since round 4, by indicators of length and direction"
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
        "contribution, weight and reward withheld from round 3 to 6, by indicators of length and direction; lifted in "
        "round 7, and rewarded again"
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
    assert said == {"Birch": ["seed 0: excluded since round 4, by indicators of length and direction"]}


@pytest.mark.parametrize(
    ("what", "words"),
    [("detected", "detected since round 2; nothing was withheld"), ("excluded", "excluded since round 2")],
)
def test_what_a_verdict_did_is_said(what, words):
    assert describe_verdict(what, "since round 2", (), None) == words


BOUNDED_ROUNDS = 4


def rows(quantity, values):
    """Of the first site, by round; the others are not bounded."""
    return [
        Row("run", "fedce", 0, number, site, quantity, value if site == SITES[0] else 1.0)
        for number, value in enumerate(values)
        for site in SITES
    ]


def test_a_bounded_hospital_is_told_of_every_bound_and_of_no_median(tmp_path):
    run = make_run(tmp_path / "run", rounds=BOUNDED_ROUNDS, plan={"guard": {"guard": "on", "on_verdict": "withhold"}})
    verdicts = [
        Row("run", "fedce", 0, number, site, "verdict", 0.0) for number in range(BOUNDED_ROUNDS) for site in SITES
    ]
    add_rows(run, [*verdicts, *rows("clipped", [1, 0.25, 0.5, 1]), *rows("reward_group_share", [1, 1, 1, 0.5])])
    page = write_report([run]).read_text()
    bounds = pd.read_csv(run / "tables" / "bounds.csv")
    assert bounds[["Site", "Rounds", "Least [%]"]].values.tolist() == [[SITES[0], f"1{DASH}2", 25], [SITES[0], "3", 50]]
    assert bounds["What"].to_list() == ["update", "reward"]
    assert page.count("median norm") == page.count("near copies of updates") == 1  # once for all rows
    assert "outliers among the raters" not in page

    own = write_site_report([run], SITES[0])
    told = pd.read_csv(own.parent / "report-files" / "tables" / "own-bounds.csv")
    assert told["Rounds"].astype(str).to_list() == [f"1{DASH}2", "3"]
    assert not [name for name in told if "Lowest" in name]
    other = write_site_report([run], SITES[1])
    assert not (other.parent / "report-files" / "tables" / "own-bounds.csv").exists()


def test_without_a_guard_nothing_is_bounded(tmp_path):
    run = make_run(tmp_path / "run", rounds=BOUNDED_ROUNDS)
    add_rows(run, rows("clipped", [0.5] * BOUNDED_ROUNDS))
    write_report([run])
    assert not (run / "tables" / "bounds.csv").exists()
