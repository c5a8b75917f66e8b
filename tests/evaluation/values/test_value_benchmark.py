"""Estimators against retraining: how far they agree, what is refused, and the whole of it from end to end."""

import numpy as np
import pytest

from evaluation.truth.reliability import Resampled
from evaluation.truth.truth_tables import TRUTHS
from evaluation.values.value_benchmark import ESTIMATORS, Judged, agreement, bench_tables, require_worlds
from fedmerit.errors import BadInput


def test_agreement_of_what_is_the_truth_is_whole_and_its_interval_narrow():
    class Truth:
        values = np.repeat(np.array([[0.1, 0.2, 0.4], [0.1, 0.2, 0.4]])[:, :, None], 4, axis=2)
        mean = values[..., 0].mean(axis=0)

    assert agreement(3 * Truth.values, Truth) == pytest.approx({"pearson": 1, "spearman": 1, "low": 1, "high": 1})
    assert np.isnan(agreement(np.ones_like(Truth.values), Truth)["pearson"])


def judged(said):
    """A world of three sites, two seeds and four draws whose truth is 1, 2 and 4 points, without any noise."""
    of_seeds = np.repeat(np.array([[0.01, 0.02, 0.04]] * 2)[:, :, None], 5, axis=2)
    halves = np.repeat(of_seeds[:, :, None, :1], 2, axis=2)
    truth = Resampled(["A", "B", "C"], [0, 1], of_seeds, halves)
    values = {spec: np.repeat(np.array([line] * 2, dtype=float)[:, :, None], 5, axis=2) for spec, line in said.items()}
    return Judged("noise:sites=3", "C last", dict.fromkeys(TRUTHS, truth), values, dict.fromkeys(said, 0.25))


def test_tables_hold_agreements_by_estimator_beside_the_truths_ceiling():
    """Of 1, 2, 4 three times the deviations are -4, -1, 5; of 4, 2, 1 and 1, 4, 2 they are 5, -1, -4 and -4, 5, -1."""
    found = bench_tables([judged({"in_run": (10, 20, 40), "carried": (4, 2, 1), "data_size": (1, 4, 2)})])
    by_name = {table.name: table for table in found}
    assert set(by_name) == {"bench-shapley", "bench-leave-one-out", "reliability-noise-sites-3", "values-noise-sites-3"}
    rows = by_name["bench-shapley"].frame.set_index("Estimator")
    assert rows["Pearson"].to_list() == pytest.approx([1, -39 / 42, 6 / 42])
    assert rows["Spearman"].to_list() == pytest.approx([1, -1, 0.5])
    assert set(rows["Ceiling"]) == {1}
    assert set(rows["Truth told from noise"]) == {"yes"}
    assert set(rows["Cost [trainings]"]) == {0.25}
    assert by_name["bench-shapley"].low["Pearson"].to_list() == pytest.approx(rows["Pearson"].to_list())
    values = by_name["values-noise-sites-3"].frame.set_index("Site")
    assert values["Shapley [points]"].to_dict() == pytest.approx({"A": 1, "B": 2, "C": 4})
    assert values["carried"].to_list() == [4, 2, 1]
    assert "C last" in by_name["values-noise-sites-3"].caption


def test_worlds_and_estimators_are_checked_before_anything_is_trained():
    require_worlds(["asis", "noise:sites=3", "noise:sites=4"], ESTIMATORS)
    for worlds, estimators, told in (
        (["moon"], ["in_run"], "--worlds"),
        (["asis"], ["shap"], "--estimators"),
        (["asis"], ["proxy:rounds=0"], "--estimators"),
        (["asis", "asis"], ["in_run"], "name each once"),
        (["asis"], ["in_run", "in_run"], "name each once"),
    ):
        with pytest.raises(BadInput, match=told):
            require_worlds(worlds, estimators)


@pytest.mark.slow
def test_a_benchmark_from_end_to_end(sites, fedmerit, tmp_path):
    asked = ("bench", "values", "--out", tmp_path / "out", "--pool", sites, "--worlds", "asis", "--seeds", "0",
             "--rounds", 1, "--recipe", "quick", "--set", "depth=2", "--set", "width=2", "--draws", 5,
             "--estimators", "in_run,data_size,proxy:rounds=1:width=2:depth=2:shrink=2")  # fmt: skip
    told = fedmerit(*asked)
    assert told.exit_code == 0, told.output
    first = (tmp_path / "out" / "tables" / "bench-shapley.csv").read_text()
    assert "Ceiling" in first
    assert fedmerit(*asked).exit_code == 0
    assert (tmp_path / "out" / "tables" / "bench-shapley.csv").read_text() == first
