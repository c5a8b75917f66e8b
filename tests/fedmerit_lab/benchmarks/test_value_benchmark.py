"""Estimators against retraining: agreement, budget allocation, refused options, and the whole from end to end."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from run_factory import make_sites
from scenario_results import result

from fedmerit.contract.semivalues import format_spec
from fedmerit.errors import BadInput
from fedmerit.schema.results import COLUMNS
from fedmerit_evaluation.ground_truth.ground_truths import coalition_utilities
from fedmerit_evaluation.ground_truth.reliability import Resampled
from fedmerit_evaluation.ground_truth.value_tables import REFERENCES
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.resampling import CrossedEffects
from fedmerit_evaluation.studies.study import parse_methods
from fedmerit_evaluation.valuation.payout import EQUAL
from fedmerit_lab.benchmarks import value_benchmark as module
from fedmerit_lab.benchmarks.budget_allocation import (
    BETWEEN_SEEDS,
    MISALLOCATED,
    RETRAINING,
    Outcome,
    budget_table,
    leave_one_seed_out,
    misallocated_between_seeds,
    misallocated_share,
    shares,
)
from fedmerit_lab.benchmarks.leaderboard import read_entries
from fedmerit_lab.benchmarks.value_benchmark import (
    ESTIMATORS,
    Bench,
    agreement,
    bench_tables,
    game_table,
    judge,
    require_scenarios,
)

# Budget


def test_shares_are_of_positive_values():
    assert shares(np.array([3.0, -1.0, 1.0])).tolist() == [0.75, 0, 0.25]
    assert np.isnan(shares(np.array([-1.0, 0.0]))).all()


def test_misallocated_shares():
    """Of 1:0, 1:0 and 0:4 the others' means are 1:4, 1:4 and 1:0, so 4/5, 4/5 and all are misallocated."""
    assert misallocated_share(np.array([0.5, 0.5, 0]), np.array([0.2, 0.5, 0.3])) == pytest.approx(0.3)
    assert misallocated_share(np.array([1.0, 0]), np.array([0.0, 1])) == 1
    assert misallocated_between_seeds(np.array([[1.0, 1], [1, 0], [0, 5]])) == pytest.approx((0.5 + 0.5 + 1) / 3)
    assert leave_one_seed_out(np.array([[1.0, 0], [1, 0], [0, 4]])) == pytest.approx((0.8 + 0.8 + 1) / 3)
    assert np.isnan(misallocated_between_seeds(np.ones((1, 2))))
    assert np.isnan(leave_one_seed_out(np.ones((1, 2))))


def test_the_budget_table_has_the_best_first_and_the_references_last():
    by_seed = np.repeat(np.array([[0.3, 0.1, 0.0], [0.1, 0.3, 0.0]])[:, :, None], 2, axis=2)  # mean .2, .2, 0
    reference = Resampled(["A", "B", "C"], [0, 1], by_seed, np.zeros((2, 3, 6)))
    values = {"wrong": np.array([[0.0, 0, 1], [0, 0, 1]]), "right": np.array([[2.0, 2, -9], [2, 2, -9]])}
    outcome = Outcome(np.array([[0.8, 0.6, 0.7], [0.9, 0.5, 0.7]]), np.full((2, 3), 0.5))
    table = budget_table("asis", reference, values, dict.fromkeys(values, outcome), {"wrong": 0.5, "right": 0})
    assert list(table.frame["Paid by"]) == ["right", "wrong", EQUAL, RETRAINING]
    rows = table.frame.set_index("Paid by")
    assert rows[MISALLOCATED].to_list() == pytest.approx([0, 100, 100 / 3, 50])
    assert rows[BETWEEN_SEEDS].to_list() == pytest.approx([0, 0, 0, 50])
    dice = rows.loc["right", ["Mean Dice [%]", "Gain over local-only [points]", "Worst hospital [%]"]]
    assert dice.to_list() == pytest.approx([70, 20, 55])
    assert rows.loc["wrong", "Cost [trainings]"] == 0.5
    assert table.name == "budget-asis"


def test_agreement_with_the_reference_itself_is_perfect():
    reference = result({}).references["Shapley"]
    found = agreement(3 * reference.values, reference)
    assert {name.partition("_")[0] for name in found} == {"pearson", "spearman", "disattenuated"}
    assert found == pytest.approx(dict.fromkeys(found, 1))
    assert np.isnan(agreement(np.ones_like(reference.values), reference)["pearson"])


def test_the_published_game_gives_the_utilities_of_the_ground_truth():
    """Patients and cases are numbers, of two labels the mean is kept, and one seed is named too."""
    head = {"run": "r", "method": "fedavg", "seed": 0, "round": 1, "split": "testing", "quantity": "dice"}
    tested = [(0, "A", "Ann"), (0, "B", "Bob"), (1, "A", "Eve"), (1, "B", "Max")]
    rows = [
        head | {"fold": str(fold), "coalition": who, "site": site, "patient": patient, "case": f"{fold}:{patient}",
                "label": label, "value": (place + fold + 3 * len(who) + (label == "cup")) / 20}
        for who in ("A", "B", "A+B")
        for place, (fold, site, patient) in enumerate(tested)
        for label in ("disc", "cup")
    ]  # fmt: skip
    results = Results(pd.DataFrame(rows)[COLUMNS])
    game = game_table(results)
    assert list(game) == ["seed", "fold", "coalition", "site", "patient", "case", "dice"]
    assert sorted(game["patient"].unique()) == [0, 1]
    utilities = game.groupby(["coalition", "site"])["dice"].mean().groupby("coalition").mean()
    (expected,) = coalition_utilities(results).values()
    assert utilities.to_dict() == pytest.approx({format_spec(one): float(u) for one, u in expected.items() if one})


@pytest.mark.slow
@pytest.mark.parametrize(("sites", "true"), [(4, 0.8), (4, 1.0), (8, 0.8), (8, 1.0), (4, 0.0)])
def test_the_interval_of_an_agreement_holds_that_of_the_true_values(sites, true):
    """Seeds of SD 3 and patients of SD 5, five of them, at values of SD 5: of r = 1 the noisy one never did."""
    random, held = np.random.default_rng(sites), []
    for _ in range(60):
        x, y = random.normal(size=(2, sites))
        x = (x - x.mean()) / x.std(ddof=1)
        y = y - y.mean() - x * (x @ (y - y.mean())) / (x @ x)
        y = true * x + np.sqrt(1 - true**2) * y / y.std(ddof=1)
        reference, estimate = (_noisy(random, 5 * values, noise) for values, noise in ((x, 1.0), (y, 0.5)))
        found = agreement(estimate.values, reference)
        if np.isfinite(found["disattenuated_low"]):
            held.append(found["disattenuated_low"] <= true <= found["disattenuated_high"] + 1e-9)
    assert np.mean(held) >= 0.9


def _noisy(random, values, noise, patients=5):
    """Values by three seeds, whose patients are a site's own."""
    sites = len(values)
    names = [str(site) for site in range(sites)]
    keys = [[""], [0], names, range(patients)]
    index = pd.MultiIndex.from_product(keys, names=["method", "seed", "site", "case"])
    effects = CrossedEffects.from_cases(pd.Series(random.normal(0, 5 * noise, len(index)), index))
    drawn = effects.resample(400, str(random.random()))[:, 0, 0].T  # (sites, D)
    by_seed = values[None, :, None] + random.normal(0, 3 * noise, (3, sites, 1)) + drawn[None]
    return Resampled(names, [0, 1, 2], by_seed, np.repeat(effects.moves[:, 0], 3, axis=0))


def test_the_tables():
    """Of 1, 2, 4 three times the deviations are -4, -1, 5; of 4, 2, 1 and 1, 4, 2 they are 5, -1, -4 and -4, 5, -1."""
    tables = bench_tables([result({"multi_round": (10, 20, 40), "one_round": (4, 2, 1), "data_size": (1, 4, 2)})])
    by_name = {table.name: table for table in tables}
    own = {f"{name}-noise-sites-3" for name in ("reliability", "values", "budget", "flips")}
    assert set(by_name) == {"bench-shapley", "bench-leave-one-out", *own}
    rows = by_name["bench-shapley"].frame.set_index("Estimator")
    assert rows["Pearson"].to_list() == pytest.approx([1, -39 / 42, 6 / 42])
    assert rows["Spearman"].to_list() == pytest.approx([1, -1, 0.5])
    assert set(rows["Noise ceiling"]) == {1}
    assert set(rows["Significant pairs"]) == {"3 of 3"}
    assert set(rows["Cost [trainings]"]) == {0.25}
    assert rows["Disattenuated"].to_list() == pytest.approx(rows["Pearson"].to_list())
    for name in ("Disattenuated", "Spearman"):
        assert by_name["bench-shapley"].low[name].to_list() == pytest.approx(rows[name].to_list())
    flips = by_name["flips-noise-sites-3"].frame
    pairs = flips.set_index(list(flips.columns[:2])).iloc[:, 0].to_dict()
    assert pairs == {("multi_round", "one_round"): 3, ("multi_round", "data_size"): 1, ("one_round", "data_size"): 2}
    values = by_name["values-noise-sites-3"].frame.set_index("Site")
    assert values["Shapley [points]"].to_dict() == pytest.approx({"A": 1, "B": 2, "C": 4})
    assert values["one_round"].to_list() == [4, 2, 1]
    assert "C last" in by_name["values-noise-sites-3"].caption


def test_equal_sites_are_not_a_significant_pair():
    one = result({"multi_round": (10, 20, 40)})
    reference = one.references["Shapley"]
    equal = replace(reference, values=np.maximum(reference.values, 0.02))  # 2, 2 and 4 points
    table, *_ = bench_tables([replace(one, references=dict.fromkeys(REFERENCES, equal))])
    assert table.frame["Significant pairs"].to_list() == ["2 of 3"]


@pytest.mark.parametrize(("seeds", "over"), [(2, "seeds and patients"), (1, "patients (there is one seed)")])
def test_the_caption_says_what_confidence_intervals_are_over(seeds, over):
    table, *_ = bench_tables([result({"multi_round": (10, 20, 40)}, seeds)])
    assert f"95 % CI over {over}" in table.caption


def test_options_are_checked_before_anything_is_trained(tmp_path):
    require_scenarios(["asis", "noise:sites=3", "noise:sites=4"], ESTIMATORS)
    for scenarios, estimators, words in (
        (["moon"], ["multi_round"], "--scenarios"),
        (["asis"], ["shap"], "--estimators"),
        (["asis"], ["proxy"], "--estimators"),
        (["asis", "asis"], ["multi_round"], "name each once"),
        (["asis"], ["multi_round", "multi_round"], "name each once"),
    ):
        with pytest.raises(BadInput, match=words):
            require_scenarios(scenarios, estimators)
    require_scenarios(["asis"], ["multi_round"], parse_methods("fedce,cgsv:alpha=0.9"))
    require_scenarios(["expert:sites=3"], ["multi_round"], other=tmp_path)
    for scenario, other in (("asis", tmp_path), ("expert:sites=3", None)):
        with pytest.raises(BadInput, match="--other-pool, --scenarios expert: belong together"):
            require_scenarios([scenario], ["multi_round"], other=other)
    with pytest.raises(BadInput, match="--methods standalone: it estimates no contributions"):
        require_scenarios(["asis"], ["multi_round"], parse_methods("fedce,standalone"))


def test_a_sample_of_coalitions_has_each_site_and_all_without_it(tmp_path, monkeypatch):
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
    options = ("--out", tmp_path / "out", "--pool", sites, "--scenarios", "asis", "--seeds", "0", "--rounds", 1,
               "--recipe", "quick", "--set", "depth=2", "--set", "width=2", "--draws", 5, "--methods", "cgsv",
               "--estimators", "multi_round,data_size")  # fmt: skip
    found = fedmerit("lab", "bench", "values", *options)
    assert found.exit_code == 0, found.output
    first = (tmp_path / "out" / "tables" / "bench-shapley.csv").read_text()
    assert "Noise ceiling" in first
    budget = pd.read_csv(tmp_path / "out" / "tables" / "budget-asis.csv").set_index("Paid by")
    assert {"multi_round", "data_size", "cgsv"} < set(budget.index)
    assert budget.loc["multi_round", "Mean Dice [%]"] == budget.loc["data_size", "Mean Dice [%]"]  # of the same run
    assert budget.loc["cgsv", "Mean Dice [%]"] != budget.loc["multi_round", "Mean Dice [%]"]
    kept = {entry.estimator: entry for entry in read_entries(tmp_path / "out" / "asis" / "entries.csv")}
    assert kept["data_size"].misallocated == pytest.approx(budget.loc["data_size", MISALLOCATED] / 100, abs=1e-6)
    assert fedmerit("lab", "bench", "values", *options).exit_code == 0
    assert (tmp_path / "out" / "tables" / "bench-shapley.csv").read_text() == first


@pytest.mark.slow
def test_a_benchmark_over_folds(folded_sites, fedmerit, tmp_path):
    options = ("--out", tmp_path / "out", "--pool", folded_sites, "--folds", "--seeds", "0,1", "--rounds", 1,
               "--recipe", "quick", "--set", "depth=2", "--set", "width=2", "--draws", 5, "--methods", "cgsv",
               "--estimators", "local_only,data_size")  # fmt: skip
    found = fedmerit("lab", "bench", "values", *options, "--scenarios", "noise:sites=2")
    assert found.exit_code == 2
    assert "folds: label noise: each patient is trained on in some folds" in " ".join(found.stderr.split())
    found = fedmerit("lab", "bench", "values", *options, "--scenarios", "asis")
    assert found.exit_code == 0, found.output
    kept = {entry.estimator: entry for entry in read_entries(tmp_path / "out" / "asis" / "entries.csv")}
    assert {"local_only", "data_size", "cgsv"} <= {name.split(":")[0] for name in kept}
    assert all((entry.seeds, entry.folds, entry.patients) == (2, 3, 6) for entry in kept.values())
    budget = pd.read_csv(tmp_path / "out" / "tables" / "budget-asis.csv").set_index("Paid by")
    assert kept["local_only"].misallocated == pytest.approx(budget.loc["local_only", MISALLOCATED] / 100, abs=1e-6)
    assert kept["local_only"].misallocated_high > kept["local_only"].misallocated
    for kind, coalitions in (("ground_truth/runs", 3), ("observed", 1), ("local_only", 1)):
        runs = [file.parent.name for file in (tmp_path / "out" / "asis" / kind).glob("*/run.json")]
        assert len(runs) == coalitions * 2 * 3
        assert {name[-6:] for name in runs} == {"_fold0", "_fold1", "_fold2"}
