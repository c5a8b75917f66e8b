"""The row of each hospital, from results made for it, and what verdicts rest on."""

from math import isnan
from pathlib import Path

import pandas as pd
import pytest
from made_results import SITES, made_dice, made_results, made_rounds, made_row, made_runs
from run_factory import make_run

from fedmerit.schema.results import Row
from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.report import summary
from fedmerit_evaluation.report.contributions import Agreement
from fedmerit_evaluation.report.hospitals import (
    align_local_only,
    benefit_table,
    choose_method,
    contribution_table,
    has_ambiguous_baseline,
    list_hospitals,
    sample_size,
)
from fedmerit_evaluation.results.runs import Run, combine_results, open_runs
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.inference import Comparison, SampleSize


def _results(*more: Row) -> Results:
    """Alder gains 10 points, Birch loses 10, Cedar has what it had; Alder contributes half of all."""
    said = made_rounds("contribution", {"fedce": [(2.0,) * 3, (1.0,) * 3, (1.0,) * 3]})
    levels = {"standalone": (0.6, 0.7, 0.8), "fedce": (0.7, 0.6, 0.8)}
    return made_dice(levels, noise=0.0, rounds=[*said, *more])


def test_what_a_comparison_rests_on_is_what_was_tested_in_all_of_it() -> None:
    """A seed that trained and was not tested, or that training alone has not, is no ground."""
    rows = made_dice({"standalone": (0.6, 0.6, 0.6), "a": (0.7, 0.7, 0.7), "b": (0.7, 0.7, 0.7)}).rows
    gone = ((rows["method"] == "standalone") & (rows["seed"] > 0)) | ((rows["method"] == "b") & (rows["seed"] == 2))
    results = Results(rows[~gone])
    assert sample_size(results, methods=["a"]) == SampleSize(6, 3)
    assert sample_size(results, methods=["a", "b"]) == SampleSize(6, 2)
    assert sample_size(results, "Alder", ["a", "standalone"]) == SampleSize(6, 1)
    assert sample_size(results, "Dogwood") == sample_size(Results(rows.iloc[:0])) == SampleSize(0, 0)
    assert any(
        text.endswith("compared with local training: only one seed.") for text in summary.list_sentences(results)
    )


def test_a_seed_in_which_a_site_did_not_answer_the_last_test_is_no_ground() -> None:
    rows = made_dice({"standalone": (0.6, 0.6, 0.6), "a": (0.7, 0.7, 0.7), "b": (0.7, 0.7, 0.7)}).rows
    silent = (rows["method"] == "b") & (rows["site"] == SITES[2]) & (rows["seed"] > 0)
    results = Results(rows[~silent])
    assert sample_size(results) == sample_size(results, SITES[2]) == SampleSize(6, 1)
    assert sample_size(results, SITES[0]) == sample_size(results, methods=["a", "standalone"]) == SampleSize(6, 3)
    never = Results(rows[~silent & ~((rows["method"] == "b") & (rows["site"] == SITES[2]))])
    assert sample_size(never) == SampleSize(6, 0)
    assert "Which method is best: no seed has all test Dice that the comparison needs." in summary.list_sentences(never)
    empty = rows.assign(value=rows["value"].mask(silent))  # as of cases without an organ in reference and prediction
    assert sample_size(Results(empty), SITES[2]) == SampleSize(6, 1)


def test_the_method_that_is_judged_is_the_first_that_estimates_contributions(tmp_path: Path) -> None:
    images = made_rounds("num_samples", {"fedavg": [(10.0,), (30.0,), (60.0,)]})
    counted = made_rounds("contribution", {"fedavg": [(0.1,), (0.3,), (0.6,)]})
    alone = made_rounds("train_loss", dict.fromkeys(("standalone", "pooled"), [(1.0,)] * 3))
    estimated = made_rounds("contribution", {"fedce": [(0.2,), (0.1,), (0.6,)]})
    rows = [*alone, *images, *counted]
    everything = made_results([*rows, *estimated], ["standalone", "pooled", "fedavg", "fedce"])
    assert choose_method(made_runs(everything, tmp_path), everything) == "fedce"
    without = made_results(rows, ["standalone", "pooled", "fedavg"])
    assert choose_method(made_runs(without, tmp_path), without) == "fedavg"
    apart = made_results(alone, ["standalone", "pooled"])
    assert choose_method(made_runs(apart, tmp_path), apart) is None


def test_the_benefit_and_the_contribution_of_each(tmp_path: Path) -> None:
    results = _results()
    values = pd.DataFrame({"Alder": [4.0, 6.0], "Birch": [1.0, 1.0], "Cedar": [-2.0, 0.0]}, index=[0, 1])
    nothing = Table("t", "", pd.DataFrame())
    agreed = [Agreement("Shapley", values, {}, {}, {}, nothing, nothing, [], "", None)]
    found = list_hospitals(made_runs(results, tmp_path), results, "fedce", agreed)
    assert [row.name for row in found] == list(SITES)
    for row, alone, joint, share, value in zip(
        found, (0.6, 0.7, 0.8), (0.7, 0.6, 0.8), (0.5, 0.25, 0.25), (0.05, 0.01, -0.01), strict=True
    ):
        gain = joint - alone
        assert row.local == pytest.approx(alone)
        assert (row.federated.mean, row.federated.low, row.federated.high) == pytest.approx((joint,) * 3)
        assert (row.gain.mean, row.gain.low, row.gain.high) == pytest.approx((gain,) * 3)
        assert (row.share.mean, row.share_seeds, row.sites) == (pytest.approx(share), 3, 3)
        assert row.values["Shapley"] == pytest.approx(value)
        assert row.sample == SampleSize(6, 3)
    assert [row.comparison for row in found] == [Comparison.BETTER, Comparison.WORSE, Comparison.EQUIVALENT]
    assert [row.benefit for row in found] == [f"{row.comparison[0].upper()}{row.comparison[1:]}." for row in found]
    less = "Significantly less than an equal share."
    assert [row.contribution for row in found] == ["Significantly more than an equal share.", less, less]
    assert not any(row.flagged or row.needs_review for row in found)


def test_who_is_flagged_is_to_be_looked_at_first(tmp_path: Path) -> None:
    results = _results(made_row("fedce", 0, 1, "Birch", "flagged", 1.0))
    found = list_hospitals(made_runs(results, tmp_path), results, "fedce", [])
    assert [row.flagged for row in found] == ["", "flagged, rounds 1", ""]
    assert [row.needs_review for row in found] == [False, True, False]
    assert found[1].contribution.startswith("Flagged: look at it first. Significantly less than an equal share.")
    assert found[1].benefit == "Significantly better with local training."


def test_what_was_not_measured_is_not_known(tmp_path: Path) -> None:
    results = made_results(made_rounds("weight", {"fedavg": [(0.2,), (0.3,), (0.5,)]}), ["fedavg"])
    for row in list_hospitals(made_runs(results, tmp_path), results, "fedavg", []):
        assert all(map(isnan, (row.local, row.federated.mean, row.gain.mean, row.share.mean)))
        assert (row.comparison, row.sample, row.share_seeds) == (Comparison.UNKNOWN, SampleSize(0, 0), 0)
        assert row.benefit == "Gain not known: no test Dice."


def _with_local(tmp_path: Path, **rounds: int) -> list[Run]:
    """FedCE of three rounds, and training alone of as many as the names say; opened."""
    fedce = make_run(tmp_path / "fedce", rounds=3)
    runs = [make_run(tmp_path / name, method="standalone", rounds=number) for name, number in rounds.items()]
    return align_local_only(open_runs([fedce, *runs]))


def test_local_training_with_the_settings_of_the_method_is_compared(tmp_path: Path) -> None:
    runs = _with_local(tmp_path, short=1, like=3)
    assert [run.label for run in runs] == ["fedce", "standalone (rounds=1)", "standalone"]
    assert not has_ambiguous_baseline(runs)
    results = combine_results(runs)
    mean = results.dice.by_site.loc["standalone"].iloc[0]
    for row in list_hospitals(runs, results, "fedce", []):
        assert row.local == pytest.approx(mean[row.name])
        assert row.gain.mean == pytest.approx(row.federated.mean - row.local)


@pytest.mark.parametrize("rounds", [{"short": 1, "shorter": 2}, {"one": 3, "twin": 3}])
def test_where_none_does_or_two_do_no_gain_is_known(tmp_path: Path, rounds: dict[str, int]) -> None:
    runs = _with_local(tmp_path, **rounds)
    assert has_ambiguous_baseline(runs)
    for row in list_hospitals(runs, combine_results(runs), "fedce", []):
        assert row.benefit.startswith("Gain not known: runs of standalone that differ; report with one of them.")


def test_nobody_is_judged_by_other_cases_than_it_had_with_local(tmp_path: Path) -> None:
    """Birch's folder was prepared differently for local training: its cases are in the same places, and others."""
    digests = {site: f"{place}" * 64 for place, site in enumerate(SITES)}
    runs = [
        make_run(tmp_path / f"{method}{seed}", method=method, seed=seed, site_digests=one, sites=SITES)
        for method, one in (("fedce", digests), ("standalone", digests | {"Birch": "f" * 64}))
        for seed in (0, 1)
    ]
    opened = align_local_only(open_runs(runs))
    results = combine_results(opened)
    found = {row.name: row for row in list_hospitals(opened, results, "fedce", [])}
    assert {name: row.sample for name, row in found.items()} == {
        "Alder": SampleSize(5, 2), "Birch": SampleSize(5, 0), "Cedar": SampleSize(5, 2),
    }  # fmt: skip
    assert found["Birch"].comparison is Comparison.UNKNOWN
    assert isnan(found["Birch"].gain.mean)
    assert not isnan(found["Birch"].local + found["Birch"].federated.mean + found["Alder"].gain.mean)
    assert sample_size(results, methods=["fedce", "standalone"]) == sample_size(results) == SampleSize(5, 0)


def test_a_single_run_of_local_training_is_compared_with_any_settings(tmp_path: Path) -> None:
    assert [run.label for run in _with_local(tmp_path, short=1)] == ["fedce", "standalone"]
    attacked = make_run(tmp_path / "attacked", method="standalone", rounds=3, attacks={"Alder": "zero"})
    runs = align_local_only(open_runs([tmp_path / "fedce", tmp_path / "short", attacked]))
    assert [run.label for run in runs] == ["fedce", "standalone", "standalone (rounds=3, attacked)"]


def test_the_tables_show_percentages_with_their_ends(tmp_path: Path) -> None:
    results = _results(made_row("fedce", 0, 1, "Birch", "flagged", 1.0))
    rows = list_hospitals(made_runs(results, tmp_path), results, "fedce", [])
    benefit, contribution = benefit_table(rows, "fedce", "cases and seeds"), contribution_table(rows, "fedce", "folds")
    assert [benefit.cell(1, column) for column in range(benefit.shape[1])] == [
        "Birch",
        "70.0",
        "60.0 [60.0, 60.0]",
        "\N{MINUS SIGN}10.0 [\N{MINUS SIGN}10.0, \N{MINUS SIGN}10.0]",
        "Significantly better with local training.",
    ]
    assert [contribution.cell(1, column) for column in range(contribution.shape[1])] == [
        "Birch",
        "25.0 [25.0, 25.0]",
        "flagged, rounds 1",
        "Flagged: look at it first. Significantly less than an equal share.",
    ]
    assert contribution.frame["Flagged"].to_list() == ["no", "flagged, rounds 1", "no"]
    assert benefit.caption.endswith("the 95 % confidence interval (CI) over cases and seeds")
    assert contribution.caption.endswith("by the estimate of fedce; in brackets the 95 % CI over folds")
