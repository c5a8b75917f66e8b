"""From values to money: bands, floor, cap and rounding by hand; a statement that anybody recomputes."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from run_factory import make_sites

from fedmerit.engines import runs
from fedmerit.errors import BadInput
from fedmerit.files import read_json, write_json
from fedmerit.schema.scores import SPLITS
from fedmerit.schema.site_folder import open_sites
from fedmerit_dossier.payout_statement import PAYOUT, verify_payout, write_payout
from fedmerit_evaluation.statistics.inference import SampleSize
from fedmerit_evaluation.valuation import payout
from fedmerit_evaluation.valuation.payout import Rule, pay
from fedmerit_evaluation.valuation.valued_runs import Valued, value_runs

SITES = ("Alder", "Birch", "Cedar", "Doum")


@pytest.mark.parametrize(
    ("worth", "rule", "expected"),
    [
        ([3, 1, 0, 0], {}, [0.75, 0.25, 0, 0]),
        ([3, 1, -2, 0], {}, [0.75, 0.25, 0, 0]),
        ([0, 0, -1, 0], {}, [0.25] * 4),
        ([3, 1, 0, 0], {"floor": 0.4}, [0.6, 0.2, 0.1, 0.1]),
        ([3, 1, 0, 0], {"cap": 2}, [0.5, 0.5, 0, 0]),
        ([1, 0, 0, 0], {"cap": 2}, [0.5] + [0.5 / 3] * 3),
        ([8, 1, 1, 0], {"floor": 0.4, "cap": 1.6}, [0.4, 0.25, 0.25, 0.1]),
        ([1, 2, 3, 4], {"floor": 1}, [0.25] * 4),
    ],
)
def test_shares_are_in_proportion_within_floor_and_cap(worth, rule, expected):
    shares = Rule(100, **rule).shares(np.array(worth, dtype=float))
    assert shares.tolist() == pytest.approx(expected)


def test_amounts_sum_to_the_budget():
    third = np.full(3, 1 / 3)
    assert Rule(100).amounts(third).tolist() == [34, 33, 33]
    for seed in range(50):
        worth = np.random.default_rng(seed).random(7)
        rule = Rule(1000 + seed, floor=0.2, cap=2)
        amounts = rule.amounts(rule.shares(worth))
        assert amounts.sum() == rule.budget
        assert np.abs(amounts - rule.budget * rule.shares(worth)).max() < 1


@pytest.mark.parametrize("change", [{"budget": 0}, {"budget": 10, "floor": 1.1}, {"budget": 10, "cap": 0.9}])
def test_rules_out_of_range(change):
    with pytest.raises(BadInput, match="expected a budget of 1 or more"):
        Rule(**change)


@pytest.fixture
def valued(monkeypatch):
    """Six seeds of four hospitals: two good, two poor, alike within each pair; by another estimator all alike."""
    random = np.random.default_rng(0)
    values = np.array([3.0, 3.0, 1.0, 1.0])[None, :, None] + random.normal(0, 0.05, (6, 4, 1))
    observed = [SimpleNamespace(sites=list(SITES), info={"seed": seed}) for seed in range(6)]
    monkeypatch.setattr(Valued, "sample", lambda self, spec: SampleSize(20, len(self.parts), folds=self.folds))
    return Valued(observed, {"good": values, "other": 0 * values + 1})


def test_hospitals_that_do_not_differ_get_the_same(valued):
    paid = pay(valued, "good", Rule(1001))
    assert paid.band.tolist() == [1, 1, 2, 2]
    high, low = paid.amounts[0], paid.amounts[2]
    assert paid.amounts.tolist() == pytest.approx([high, high, low, low], abs=1)
    assert (paid.amounts.sum(), high / low) == (1001, pytest.approx(3, rel=0.05))
    assert paid.is_differentiated
    assert len(set(paid.alternatives["in proportion, without bands"])) == 4
    assert paid.alternatives["by other"].tolist() == paid.alternatives["equal shares"].tolist() == [251, 250, 250, 250]
    assert [name for name in paid.alternatives if name.startswith("without seed")] == [
        f"without seed {seed}" for seed in range(6)
    ]
    assert (paid.low < paid.amounts).all()


def test_without_a_significant_difference_all_get_the_same(valued):
    paid = pay(valued, "other", Rule(1000))
    assert paid.amounts.tolist() == [250] * 4
    assert paid.sentence.startswith("No differentiated payment can be justified")


def recorded(contributions, images=(78, 96, 78, 97)):
    """A run of one round, of which only that is known, by seeds."""
    of = {"contribution": contributions, "num_samples": images}
    rounds = SimpleNamespace(of=lambda quantity: pd.DataFrame([of[quantity]], columns=SITES, dtype=float))
    return lambda seed: SimpleNamespace(sites=list(SITES), info={"seed": seed}, results=SimpleNamespace(rounds=rounds))


def test_one_seed_never_pays_equal_hospitals_differently():
    """Their luck lasts through the run, so its rounds vary less: without a floor 94 of 100 were differentiated."""
    random = np.random.default_rng(0)
    for _ in range(10):
        luck = random.normal(1, 0.05, 4)
        draws = luck[None, :, None] + random.normal(0, 0.005, (1, 4, 201))
        paid = pay(Valued([recorded(luck)(0)], {"contribution": draws}), "contribution", Rule(1000))
        assert paid.amounts.tolist() == [250] * 4
        assert "(only one seed): equal shares" in paid.sentence
        assert len(set(paid.alternatives["in proportion, without bands"])) > 1
    several = [recorded(luck)(seed) for seed in range(5)]
    values = np.array([3.0, 3.0, 1.0, 1.0])[None, :, None] + random.normal(0, 0.05, (5, 4, 1))
    assert pay(Valued(several, {"contribution": values}), "contribution", Rule(1000)).is_differentiated


@pytest.mark.parametrize(("spec", "seeds"), [("data_size", 1), ("data_size", 3), ("contribution", 3)])
def test_counts_are_not_tested(spec, seeds):
    """FedAvg's contributions are counts, too, even where folds move them a little."""
    images = np.array([78.0, 96.0, 78.0, 97.0])
    values = images[None, :, None] + np.random.default_rng(0).normal(0, 0.5, (seeds, 4, 1))
    observed = [recorded(images / images.sum())(seed) for seed in range(seeds)]
    paid = pay(Valued(observed, {spec: values}), spec, Rule(349))
    assert paid.sentence.startswith("No differentiated payment can be justified (a count or another measure of data")
    assert set(paid.amounts) == {87, 88}
    assert paid.alternatives["in proportion, without bands"].tolist() == pytest.approx(images, abs=1.5)


def test_other_estimators_pay_in_proportion_too(valued):
    paid = pay(valued, "other", Rule(1000))
    assert paid.alternatives["by good"].tolist() == pytest.approx([375, 375, 125, 125], abs=5)
    assert len(set(paid.alternatives["by good, in proportion, without bands"])) == 4
    valued.of_each["good"][:, 1] = np.nan
    with pytest.raises(BadInput, match="good: the value of Birch is not known"):
        pay(valued, "other", Rule(1000))


@pytest.mark.parametrize(
    ("pairs", "expected"), [([(0, 3)], [1, 1, 1, 1]), ([(0, 2), (0, 3), (1, 2), (1, 3)], [1, 1, 2, 2]), ([], [1] * 4)]
)
def test_a_chain_of_hospitals_that_do_not_differ_is_one_band(pairs, expected):
    signs = np.zeros((4, 4), dtype=int)
    for one, other in pairs:
        signs[one, other], signs[other, one] = 1, -1
    found = SimpleNamespace(value=np.array([4.0, 3.0, 2.0, 1.0]), order_signs=signs)
    assert payout._pay(found, Rule(100))[0].tolist() == expected


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two seeds side by side: never change them."""
    place = tmp_path_factory.mktemp("paid")
    sites = make_sites(place / "sites", SITES[:3], size=16)
    for file in sites.glob("*/site.json"):
        counts = {split: {"patients": 5, "slices": 15} for split in SPLITS}
        write_json(file, read_json(file) | {"counts": counts})
    folders = [place / "runs" / f"seed{seed}" for seed in range(2)]
    for seed, run in enumerate(folders):
        runs.create(run, method="fedavg", sites=sites, rounds=1, seed=seed, engine="local", threads=1,
                    settings={"architecture": "unet", "width": "2", "depth": "2"}, values=["one_round"])  # fmt: skip
        runs.execute(run, lambda record: None)
    return folders


def test_runs_of_several_seeds_and_folds_are_paid_without_each_of_both(monkeypatch):
    monkeypatch.setattr(Valued, "sample", lambda self, spec: SampleSize(20, 2, folds=self.folds))
    places = [(seed, fold) for seed in range(2) for fold in range(3)]
    observed = [SimpleNamespace(sites=["A", "B"], info={"seed": seed, "fold": fold}) for seed, fold in places]
    values = np.array([[[10.0 + fold / 10], [1.0 + 18 * seed]] for seed, fold in places])  # B: poor by seed 0 only
    paid = pay(Valued(observed, {"good": values}), "good", Rule(1000))
    assert list(paid.alternatives)[2:4] == ["without seed 0", "without seed 1"]
    assert list(paid.alternatives)[4:] == [f"without fold {fold}" for fold in range(3)]
    assert paid.amounts.tolist() == [500, 500]  # 10.1 and 10
    assert paid.alternatives["without seed 1"].tolist() == [910, 90]  # 10.1 and 1
    assert paid.alternatives["without seed 0"].tolist() == [347, 653]  # 10.1 and 19


def test_anybody_with_the_runs_recomputes_it(finished, tmp_path, fedmerit):
    out = tmp_path / "out"
    result = fedmerit("value", "payout", *finished, "--budget", 1000, "--estimators", "one_round,data_size",
                      "--floor", 0.5, "--draws", 20, "--out", out)  # fmt: skip
    assert result.exit_code == 0, result.output
    stated = json.loads((out / PAYOUT).read_text())
    assert sum(one["amount"] for one in stated["hospitals"].values()) == 1000
    assert all(one["low"] - 1 <= one["in_proportion"] <= one["high"] + 1 for one in stated["hospitals"].values())
    assert {"task", "software", "sensitivity to preparation"} <= set(stated["card"])
    assert "payout.json" in (out / "payout.html").read_text()
    shown = fedmerit("verify", finished[1], "--payout", out / PAYOUT)
    assert shown.exit_code == 0, shown.output
    assert "the same values, amounts and card; not signed" in shown.output


def test_runs_of_folds_are_paid_together(folded_sites, tmp_path, fedmerit):
    folders = [tmp_path / f"fold{fold}" for fold in range(3)]
    for fold, run in enumerate(folders):
        runs.create(run, method="standalone", sites=folded_sites, rounds=1, fold=fold, engine="local", threads=1,
                    settings={"architecture": "unet", "width": "2", "depth": "2"}, values=["local_only"])  # fmt: skip
        runs.execute(run, lambda record: None)
    result = fedmerit("value", "payout", *folders, "--budget", 1000, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    stated = json.loads((tmp_path / "out" / PAYOUT).read_text())
    assert {f"without fold {fold}" for fold in range(3)} < set(stated["alternatives"])
    assert stated["card"]["splits"].startswith("Patients are in 3 folds at each site")
    valued = value_runs(folders, ["local_only"])
    each = [value_runs([run], ["local_only"]).values("local_only")[0, :, 0] for run in folders]
    one = valued.ranking("local_only")
    np.testing.assert_allclose(one.value, np.mean(each, axis=0))
    half = 2 * 4.303 * np.std(each, axis=0, ddof=1) / np.sqrt(3)  # Student's t of three folds, `fold_overlap` 2
    np.testing.assert_allclose((one.high - one.low) / 2, half, rtol=0.1, atol=1e-9)
    everyone = [len(site.patients_by_fold()) for site in open_sites(folded_sites)]
    assert (valued.sample("local_only").cases, one.folds) == (min(everyone), 3)
    assert value_runs(folders, ["data_size"]).ranking("data_size").folds == 3
    shown = fedmerit("verify", folders[2], "--payout", tmp_path / "out" / PAYOUT)
    assert shown.exit_code == 0, shown.output
    with pytest.raises(BadInput, match=r"are standalone \[fold0\] and standalone \[again\]"):
        value_runs([folders[0], shutil.copytree(folders[0], tmp_path / "again")], ["local_only"])


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"floor": 0.0, "sentence": "Pay Alder."}, "sentence: states"),
        ({"runs": {"seed0": "0" * 64, "seed1": "0" * 64}}, "runs.seed0: states"),
        ({"runs": {"seed0": "", "../seed1": ""}}, "expected a folder beside"),
        ({"runs": {"seed9": ""}}, "is not about seed0"),
        ({"budget": "1000"}, "not a payout: budget"),
        ({"more": 1}, "not a payout: more"),
        ({"draws": 10**9}, "not a payout: draws"),
        ({"estimator": "handed_over:Net"}, "'handed_over': unknown"),
    ],
)
def test_a_changed_statement_is_found(finished, tmp_path, change, fault):
    write_payout(finished, ["data_size"], Rule(1000), tmp_path, draws=5)
    stated = json.loads((tmp_path / PAYOUT).read_text())
    (tmp_path / PAYOUT).write_text(json.dumps(stated | change))
    with pytest.raises(BadInput, match=fault):
        verify_payout(tmp_path / PAYOUT, finished[0])


CARDED = "patients and slices"


@pytest.mark.parametrize(
    ("where", "content", "fault"),
    [
        (("hospitals", "Birch", "amount"), 999, r"hospitals\.Birch\.amount: states 999; recomputed from the runs: 33"),
        (("hospitals", "Alder", "value"), 20.0, r"hospitals\.Alder\.value: states 20\.0; .*: 15\.0"),
        (("hospitals", "Cedar", "low"), 1.0, r"hospitals\.Cedar\.low: states 1\.0; .*: null"),
        (("hospitals", "Cedar", "band"), 2, r"hospitals\.Cedar\.band: states 2"),
        (("card", CARDED), "500 test patients each", "card.patients and slices: states .500 test patients each.; reco"),
        (("card", "software"), "better", "card.software: states"),
        (("card", "sensitivity to preparation"), "none", "card.sensitivity to preparation: states"),
        (("version",), "0.0", None),
        (("card", "ethics"), "approved", None),
    ],
)
def test_a_changed_part_is_named(finished, tmp_path, capsys, where, content, fault):
    write_payout(finished, ["data_size"], Rule(1000), tmp_path, draws=5)
    stated = inner = read_json(tmp_path / PAYOUT)
    for name in where[:-1]:
        inner = inner[name]
    inner[where[-1]] = content
    write_json(tmp_path / PAYOUT, stated)
    if fault:
        with pytest.raises(BadInput, match=fault):
            verify_payout(tmp_path / PAYOUT, finished[0])
    else:
        assert verify_payout(tmp_path / PAYOUT, finished[0]) == ""
        assert ("not recomputed, as stated: card: ethics" in capsys.readouterr().err) == (where[-1] == "ethics")


def test_without_site_folders_what_only_they_hold_is_as_stated(finished, tmp_path, capsys):
    """A card of who has them, and one of who has not."""
    write_payout(finished, ["data_size"], Rule(1000), tmp_path, draws=5)
    sites = Path(read_json(finished[0] / "run.json")["sites_folder"])
    away = sites.rename(sites.with_name("away"))
    try:
        verify_payout(tmp_path / PAYOUT, finished[0])
        assert "not recomputed, as stated: card: patients and slices" in capsys.readouterr().err
        write_payout(finished, ["data_size"], Rule(1000), tmp_path, draws=5)
        assert CARDED not in read_json(tmp_path / PAYOUT)["card"]
    finally:
        away.rename(sites)
    verify_payout(tmp_path / PAYOUT, finished[0])
    assert not capsys.readouterr().err
