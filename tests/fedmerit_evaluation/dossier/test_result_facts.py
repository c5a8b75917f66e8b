"""What is said of the results, each from runs that hold no more than it takes."""

from pathlib import Path

import pandas as pd
from dossier_files import made_run, made_tested
from run_factory import make_run

from fedmerit.records.results import Row
from fedmerit_evaluation.dossier.model_evidence import (
    external,
    failures,
    fairness,
    performance,
    robustness,
    uncertainty,
)
from fedmerit_evaluation.dossier.sources import DossierSources, open_sources
from fedmerit_evaluation.results.run_folders import open_runs


def test_runs_with_attackers_are_told_and_judged_by_no_one(tmp_path: Path) -> None:
    attacked = made_run(tmp_path / "a", label="fedce (attacked)", attacks={"Birch": "zero"})
    honest = made_run(tmp_path / "b")
    file = DossierSources([attacked, honest], [])
    assert file.honest == [honest]
    assert file.run is honest
    assert robustness(file) == "Runs with simulated attacks: fedce (attacked): Birch (zero); see report.html."
    assert DossierSources([attacked], []).honest == [attacked]
    assert robustness(DossierSources([honest], [])) == ""


def test_results_are_those_of_the_method_that_is_judged(tmp_path: Path) -> None:
    file = made_tested(tmp_path)
    assert (file.method, file.run.path.name) == ("fedce", "fedce-0")
    assert performance(file) == (
        "Mean test Dice 76.7 % [76.7 %, 76.7 %]; by site: Alder 70.0 % [70.0 %, 70.0 %], "
        "Birch 70.0 % [70.0 %, 70.0 %], Cedar 90.0 % [90.0 %, 90.0 %]."
    )
    assert fairness(file) == (
        "Dice by site from 70.0 % (Alder) to 90.0 % (Cedar); gain over local training from +0.0 (Birch) to +10.0 "
        "points. Groups of patients by age, sex or the like were not compared."
    )
    assert failures(file) == "Lowest Dice of a test case: Alder 70.0 %, Birch 70.0 %, Cedar 90.0 %."
    assert uncertainty(file).endswith("Fewest test cases of a site: 6; seeds: 2.")


def test_a_method_that_was_not_tested_yet_has_no_results_beside_one_that_was(tmp_path: Path) -> None:
    alone = [run for run in made_tested(tmp_path).runs if run.label == "standalone"]
    file = DossierSources([*alone, made_run(tmp_path / "begun")], [])
    assert file.method == "fedce"
    assert [performance(file), fairness(file), failures(file)] == ["", "", ""]


def test_of_tests_elsewhere_only_tests_are_told_and_of_which_table(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=1)
    (run / "evaluation").mkdir()
    for split, ending, dice in (("testing", "", 0.8), ("testing", "-estimated", 0.9), ("training", "", 0.99)):
        rows = [Row("run", "fedce", 0, 0, site, "dice", dice, split, "000", "prostate") for site in ("Alder", "Elm")]
        file = run / "evaluation" / f"{split}-others{ending}.csv"
        pd.DataFrame([vars(row) for row in rows]).to_csv(file, index=False)
    (run / "evaluation" / "testing-losses.csv").write_text("site,loss\nElm,0.5\n")
    assert external(open_sources(open_runs([run]), None)) == (
        "Mean test Dice at sites that took no part: Elm 90.0 % (testing-others-estimated.csv, with BatchNorm "
        "statistics of their own training images); Elm 80.0 % (testing-others.csv)."
    )


def test_a_site_that_took_no_part_may_be_called_by_a_word_for_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=1)
    rows = [Row("run", "fedce", 0, 0, site, "dice", dice, "testing", case, "prostate")
            for site in ("NA", "null") for case, dice in (("000", 0.8), ("001", None))]  # fmt: skip
    (run / "evaluation").mkdir()
    pd.DataFrame([vars(row) for row in rows]).to_csv(run / "evaluation" / "testing-others.csv", index=False)
    assert external(open_sources(open_runs([run]), None)) == (
        "Mean test Dice at sites that took no part: NA 80.0 %, null 80.0 % (testing-others.csv)."
    )
