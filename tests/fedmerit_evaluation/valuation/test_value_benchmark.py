"""Estimators against retraining: how far they agree, what is refused, and the whole of it from end to end."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from run_factory import make_sites

from fedmerit.errors import BadInput
from fedmerit_evaluation.ground_truth.reliability import Resampled
from fedmerit_evaluation.ground_truth.value_tables import REFERENCES
from fedmerit_evaluation.studies.study_folders import parse_methods
from fedmerit_lab.benchmarks import value_benchmark as module
from fedmerit_lab.benchmarks.budget_allocation import Outcome
from fedmerit_lab.benchmarks.value_benchmark import (
    ESTIMATORS,
    Bench,
    ScenarioResult,
    agreement,
    bench_tables,
    judge,
    require_scenarios,
)


def test_agreement_of_what_is_the_truth_is_whole_and_its_interval_narrow():
    class Truth:
        values = np.repeat(np.array([[0.1, 0.2, 0.4], [0.1, 0.2, 0.4]])[:, :, None], 4, axis=2)
        mean = values[..., 0].mean(axis=0)

    assert agreement(3 * Truth.values, Truth) == pytest.approx(
        dict.fromkeys(("pearson", "pearson_low", "pearson_high", "spearman", "spearman_low", "spearman_high"), 1)
    )
    assert np.isnan(agreement(np.ones_like(Truth.values), Truth)["pearson"])


def judged(said, seeds=2):
    """A world of three sites, some seeds and four draws whose truth is 1, 2 and 4 points, without any noise."""
    of_seeds = np.repeat(np.array([[0.01, 0.02, 0.04]] * seeds)[:, :, None], 5, axis=2)
    halves = np.repeat(of_seeds[:, :, None, :1], 2, axis=2)
    truth = Resampled(["A", "B", "C"], list(range(seeds)), of_seeds, halves)
    values = {spec: np.tile(np.array(line, dtype=float)[None, :, None], (seeds, 1, 5)) for spec, line in said.items()}
    reached = Outcome(np.full((seeds, 3), 0.8), np.full((seeds, 3), 0.7))
    costs, outcomes = dict.fromkeys(said, 0.25), dict.fromkeys(said, reached)
    return ScenarioResult("noise:sites=3", "C last", dict.fromkeys(REFERENCES, truth), values, costs, outcomes)


def test_tables_hold_agreements_by_estimator_beside_the_truths_ceiling():
    """Of 1, 2, 4 three times the deviations are -4, -1, 5; of 4, 2, 1 and 1, 4, 2 they are 5, -1, -4 and -4, 5, -1."""
    found = bench_tables([judged({"multi_round": (10, 20, 40), "one_round": (4, 2, 1), "data_size": (1, 4, 2)})])
    by_name = {table.name: table for table in found}
    of_world = {f"{name}-noise-sites-3" for name in ("reliability", "values", "paying", "flips")}
    assert set(by_name) == {"bench-shapley", "bench-leave-one-out", *of_world}
    rows = by_name["bench-shapley"].frame.set_index("Estimator")
    assert rows["Pearson"].to_list() == pytest.approx([1, -39 / 42, 6 / 42])
    assert rows["Spearman"].to_list() == pytest.approx([1, -1, 0.5])
    assert set(rows["Noise ceiling"]) == {1}
    assert set(rows["Pairs told apart"]) == {"3 of 3"}
    assert set(rows["Cost [trainings]"]) == {0.25}
    assert by_name["bench-shapley"].low["Pearson"].to_list() == pytest.approx(rows["Pearson"].to_list())
    assert by_name["bench-shapley"].low["Spearman"].to_list() == pytest.approx(rows["Spearman"].to_list())
    flipped = by_name["flips-noise-sites-3"].frame.set_index(["Estimator", "Beside"])["Pairs in another order"]
    assert flipped.to_dict() == {
        ("multi_round", "one_round"): 3,
        ("multi_round", "data_size"): 1,
        ("one_round", "data_size"): 2,
    }
    values = by_name["values-noise-sites-3"].frame.set_index("Site")
    assert values["Shapley [points]"].to_dict() == pytest.approx({"A": 1, "B": 2, "C": 4})
    assert values["one_round"].to_list() == [4, 2, 1]
    assert "C last" in by_name["values-noise-sites-3"].caption


def test_sites_of_one_worth_are_not_told_apart():
    """Of 2, 2 and 4 points: one pair in twenty is told by chance, so that pairs are counted."""
    one = judged({"multi_round": (10, 20, 40)})
    alike = replace(one.truths["Shapley"], values=np.maximum(one.truths["Shapley"].values, 0.02))
    table, *_ = bench_tables([replace(one, references=dict.fromkeys(REFERENCES, alike))])
    assert table.frame["Pairs told apart"].to_list() == ["2 of 3"]


@pytest.mark.parametrize(
    ("seeds", "over"), [(2, "seeds and patients of both"), (1, "patients, of one seed alone, of both")]
)
def test_the_caption_says_what_intervals_are_over(seeds, over):
    table, *_ = bench_tables([judged({"multi_round": (10, 20, 40)}, seeds)])
    assert f"intervals over {over}" in table.caption


def test_worlds_and_estimators_are_checked_before_anything_is_trained():
    require_scenarios(["asis", "noise:sites=3", "noise:sites=4"], ESTIMATORS)
    for worlds, estimators, told in (
        (["moon"], ["multi_round"], "--worlds"),
        (["asis"], ["shap"], "--estimators"),
        (["asis"], ["proxy:rounds=0"], "--estimators"),
        (["asis", "asis"], ["multi_round"], "name each once"),
        (["asis"], ["multi_round", "multi_round"], "name each once"),
    ):
        with pytest.raises(BadInput, match=told):
            require_scenarios(worlds, estimators)
    require_scenarios(["asis"], ["multi_round"], parse_methods("fedce,cgsv:alpha=0.9"))
    with pytest.raises(BadInput, match="--methods standalone: it makes no estimate of contributions"):
        require_scenarios(["asis"], ["multi_round"], parse_methods("fedce,standalone"))


def test_of_many_sites_some_coalitions_are_trained_each_site_alone_and_all_but_it_among_them(tmp_path, monkeypatch):
    names = [f"site{number}" for number in range(10)]
    asked = []

    def prepare(out, wanted, *_):
        asked.extend(wanted)
        raise BadInput("enough")

    monkeypatch.setattr(module.coalitions, "prepare", prepare)
    make_sites(tmp_path / "sites", names, size=16)
    with pytest.raises(BadInput, match="enough"):
        judge(Bench(tmp_path / "out", tmp_path / "sites", ["asis"], most=40), "asis")
    assert len(set(asked)) == len(asked) <= 40 + 20
    assert asked[0] == frozenset(names)
    assert {frozenset([name]) for name in names} < set(asked)
    assert {frozenset(names) - {name} for name in names} < set(asked)
    assert any(2 < len(one) < 8 for one in asked)


@pytest.mark.slow
def test_a_benchmark_from_end_to_end(sites, fedmerit, tmp_path):
    asked = ("bench", "values", "--out", tmp_path / "out", "--pool", sites, "--worlds", "asis", "--seeds", "0",
             "--rounds", 1, "--recipe", "quick", "--set", "depth=2", "--set", "width=2", "--draws", 5,
             "--estimators", "multi_round,data_size,proxy:rounds=1:width=2:depth=2:shrink=2",
             "--methods", "cgsv")  # fmt: skip
    told = fedmerit(*asked)
    assert told.exit_code == 0, told.output
    first = (tmp_path / "out" / "tables" / "bench-shapley.csv").read_text()
    assert "Noise ceiling" in first
    paying = pd.read_csv(tmp_path / "out" / "tables" / "paying-asis.csv").set_index("Paid by")
    assert {"multi_round", "data_size", "cgsv"} < set(paying.index)
    assert (
        paying.loc["multi_round", "Mean Dice [%]"] == paying.loc["data_size", "Mean Dice [%]"]
    )  # of the same FedAvg run
    assert paying.loc["cgsv", "Mean Dice [%]"] != paying.loc["multi_round", "Mean Dice [%]"]
    assert fedmerit(*asked).exit_code == 0
    assert (tmp_path / "out" / "tables" / "bench-shapley.csv").read_text() == first
