"""From values to money: shrinkage, floor, cap and rounding explicitly; what hospitals can do about their amounts.

And a statement that anybody recomputes.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from run_factory import make_sites
from tiny import TINY

from fedmerit.engines import runs
from fedmerit.errors import BadInput
from fedmerit.evidence.ledger import Ledger
from fedmerit.evidence.signatures import Trust
from fedmerit.evidence.verification.findings import Contradiction
from fedmerit.files import read_json, write_json
from fedmerit.schema.scores import SPLITS
from fedmerit_dossier.payout_statement import PAYOUT, divide_logs, payout_tables, verify_payout, write_payout
from fedmerit_evaluation.statistics.inference import SampleSize
from fedmerit_evaluation.valuation import payout, valued_runs
from fedmerit_evaluation.valuation.payout import IN_PROPORTION, Rule, pay
from fedmerit_evaluation.valuation.valued_runs import Valued

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


@pytest.mark.parametrize(
    "change",
    [
        {"budget": 0},
        {"budget": 10**15 + 1},
        {"budget": 10, "floor": 1.1},
        {"budget": 10, "cap": 0.9},
        {"budget": 1, "slope": -1},
    ],
)
def test_rules_out_of_range(change):
    with pytest.raises(BadInput, match="expected a budget of 1 or more"):
        Rule(**{"budget": 10, **change})


def test_more_draws_than_a_statement_may_name_are_refused_before_values_are_computed(tmp_path):
    with pytest.raises(BadInput, match="--draws 100001: expected at most 100000"):
        write_payout([tmp_path / "none"], ["data_size"], Rule(10), tmp_path, draws=100_001)


@pytest.fixture
def valued(monkeypatch):
    """Six seeds of four hospitals: two good, two poor, alike within each pair; by another estimator all alike."""
    random = np.random.default_rng(0)
    values = np.array([3.0, 3.0, 1.0, 1.0])[None, :, None] + random.normal(0, 0.05, (6, 4, 1))
    observed = [SimpleNamespace(sites=list(SITES), info={"seed": seed}) for seed in range(6)]
    monkeypatch.setattr(Valued, "sample", lambda self, spec: SampleSize(20, len(self.parts), folds=self.folds))
    return Valued(observed, {"good": values, "other": 0 * values + 1})


def test_shares_are_shrunk_to_equal_ones_by_the_reliability(valued):
    paid = pay(valued, "good", Rule(1001))
    means = valued.values("good")[..., 0]
    error = (means - means.mean(axis=1, keepdims=True)).var(axis=0, ddof=1).sum() / 3 / 6
    reliability = 1 - error / means.mean(axis=0).var(ddof=1)
    assert paid.reliability == pytest.approx(reliability)
    share = 1 / 4 + reliability * (means.mean(axis=0) / means.mean(axis=0).sum() - 1 / 4)
    assert paid.amounts.tolist() == pytest.approx(1001 * share, abs=1)
    assert paid.amounts.sum() == 1001
    assert paid.band.tolist() == [1, 1, 2, 2]
    assert paid.sentence.endswith("(reliability 1.00, slope 1). Test beside it: 2 bands differ significantly.")
    assert paid.alternatives["by other"].tolist() == paid.alternatives["equal shares"].tolist() == [251, 250, 250, 250]
    assert [name for name in paid.alternatives if name.startswith("without seed")] == [
        f"without seed {seed}" for seed in range(6)
    ]
    assert (paid.low < paid.amounts).all()
    assert (paid.amounts < paid.high).all()
    half = pay(valued, "good", Rule(1001, slope=0.5))
    assert half.amounts - 250.25 == pytest.approx((paid.amounts - 250.25) / 2, abs=1)
    assert half.alternatives[IN_PROPORTION].tolist() == paid.alternatives[IN_PROPORTION].tolist()


def test_values_that_are_all_noise_get_equal_shares(valued):
    paid = pay(valued, "other", Rule(1000))
    assert paid.amounts.tolist() == [250] * 4
    assert paid.sentence == (
        "Equal shares: the reliability of the values is 0 (differences between values are no larger than their errors)."
    )


def test_audited_pay_is_multiplied_by_the_share_of_repeated_rounds(valued, monkeypatch):
    monkeypatch.setattr(valued_runs, "repeated_shares", lambda run, sites, auditors: np.array([1.0, 0.5, 1.0, 0.0]))
    for run in valued.runs:
        run.path = Path("run")
    plain, paid = (
        pay(valued, "good", Rule(10_000)),
        pay(replace(valued, auditors=Trust(Path("rootCA.pem"))), "good", Rule(10_000)),
    )
    expected = plain.amounts * np.array([1.0, 0.5, 1.0, 0.0])
    assert paid.amounts.tolist() == pytest.approx(10_000 * expected / expected.sum(), abs=1)
    assert "an auditor repeated: Alder 1.00, Birch 0.50, Cedar 1.00, Doum 0.00." in paid.sentence
    assert paid.alternatives["equal shares"].tolist() == [2500] * 4
    floor = pay(replace(valued, auditors=Trust(Path("rootCA.pem"))), "good", Rule(10_000, floor=0.2))
    assert floor.amounts[3] == 500  # nobody audited it


NOISE = np.array([[-1, 0.3, 0.7], [0.6, -1, 0.4], [0.2, 0.8, -1], [-0.5, -0.5, 1]]).T  # of three seeds, four sites


def of_values(means, noise):
    """Runs of three seeds or more whose sites have these values, with that noise."""
    values = noise + np.array(means, dtype=float)
    observed = [SimpleNamespace(sites=[f"h{site}" for site in range(values.shape[1])], info={"seed": seed})
                for seed in range(len(values))]  # fmt: skip
    return Valued(observed, {"good": values[..., None]})


def share(means, noise):
    """The shares of the sites."""
    return payout._amounts(of_values(means, noise), "good", Rule(10**6)) / 10**6


def bands(means, noise):
    """The number of bands that differ significantly."""
    return payout._bands(of_values(means, noise).ranking("good")).max()


@pytest.fixture
def patients(monkeypatch):
    """The fewest validation patients of a site, which may be set."""
    fewest = {"cases": 20}
    monkeypatch.setattr(Valued, "sample", lambda self, spec: SampleSize(fewest["cases"], len(self.parts)))
    return fewest


@pytest.mark.usefixtures("patients")
def test_amounts_do_not_jump():
    """By bands a leader whose lead grew by .05 points got 32,470 instead of 25,000 of 100,000."""
    shares = np.array([share([20, 20, 20, 20 + lead], NOISE) for lead in np.arange(0, 12, 0.05)])
    assert np.abs(np.diff(shares, axis=0)).max() < 0.005
    assert (np.diff(shares[:, 3]) >= -1e-6).all()
    assert bands([20, 20, 20, 20], NOISE) < bands([20, 20, 20, 32], NOISE)  # they change between


def test_few_patients_of_a_hospital_are_no_veto(patients):
    """By bands a hospital that validated on four patients got 25,000 instead of 14,286."""
    values = [10, 20, 20, 20], 0.3 * NOISE
    enough = share(*values)
    assert bands(*values) > 1
    patients["cases"] = 4
    assert bands(*values) == 1
    assert share(*values).tolist() == enough.tolist()
    assert enough[0] < 0.15


@pytest.mark.usefixtures("patients")
def test_value_that_varies_by_seed_gains_little():
    """By bands the poorest hospital got 25,000 instead of 14,286 if its own value was eight times as noisy."""
    noisy = 0.3 * NOISE * [8, 1, 1, 1]
    assert bands([10, 20, 20, 20], noisy) == 1
    assert share([10, 20, 20, 20], 0.3 * NOISE)[0] < 0.15
    assert share([10, 20, 20, 20], noisy)[0] < 0.17


@pytest.mark.usefixtures("patients")
def test_hospitals_that_others_link_are_paid_by_their_own_values():
    """By bands neighbours that do not differ linked all: 10, 14, 18 and 22 were paid alike."""
    assert bands([10, 14, 18, 22], NOISE) == 1
    assert (np.diff(share([10, 14, 18, 22], NOISE)) > 0.04).all()


@pytest.mark.usefixtures("patients")
def test_hospitals_that_join_do_not_change_the_pay_of_a_worse_one():
    """By bands a sixth equal hospital raised the worst of them from 74 to 100 % of an equal share."""
    noise = np.random.default_rng(0).normal(size=(5, 12))
    noise = 1.4 * (noise - noise.mean(axis=0)) / noise.std(axis=0, ddof=1)
    of_equal = [n * share([14, *[20] * (n - 1)], noise[:, :n])[0] for n in (4, 5, 6, 8, 10, 12)]
    assert max(of_equal) < 0.85
    assert np.ptp(of_equal) < 0.08


@pytest.mark.usefixtures("patients")
def test_raising_the_own_value_never_lowers_the_own_pay():
    random = np.random.default_rng(3)
    for _ in range(500):
        values, noise = random.uniform(10, 25, 4), random.normal(0, 0.8, (3, 4))
        site, raised = random.integers(4), random.uniform(0.1, 2)
        higher = values + raised * (np.arange(4) == site)
        assert share(higher, noise)[site] >= share(values, noise)[site] - 1e-6


def recorded(contributions, images=(78, 96, 78, 97), estimates=False):
    """A run of one round, of which only that is known, by seeds; ``estimates``: whether its method declares any."""
    of = {"contribution": contributions, "num_samples": images}
    rounds = SimpleNamespace(of=lambda quantity: pd.DataFrame([of[quantity]], columns=SITES, dtype=float))
    results = SimpleNamespace(rounds=rounds)
    return lambda seed: SimpleNamespace(sites=list(SITES), info={"seed": seed, "estimates": estimates}, results=results)


def test_one_seed_never_pays_equal_hospitals_differently():
    """Their luck lasts through the run, so its rounds vary less: without a floor 94 of 100 were differentiated."""
    random = np.random.default_rng(0)
    for _ in range(3):
        luck = random.normal(1, 0.05, 4)
        draws = luck[None, :, None] + random.normal(0, 0.005, (1, 4, 201))
        paid = pay(Valued([recorded(luck, estimates=True)(0)], {"contribution": draws}), "contribution", Rule(1000))
        assert paid.amounts.tolist() == [250] * 4
        assert "reliability of the values is 0 (only one seed)" in paid.sentence
        assert len(set(paid.alternatives[IN_PROPORTION])) > 1
    several = [recorded(luck, estimates=True)(seed) for seed in range(5)]
    values = np.array([3.0, 3.0, 1.0, 1.0])[None, :, None] + random.normal(0, 0.05, (5, 4, 1))
    assert pay(Valued(several, {"contribution": values}), "contribution", Rule(1000)).reliability > 0.99


@pytest.mark.parametrize(("spec", "seeds"), [("data_size", 1), ("data_size", 3), ("contribution", 3)])
def test_counts_are_not_tested(spec, seeds):
    """FedAvg's contributions are counts, too, even where folds move them a little."""
    images = np.array([78.0, 96.0, 78.0, 97.0])
    values = images[None, :, None] + np.random.default_rng(0).normal(0, 0.5, (seeds, 4, 1))
    observed = [recorded(images / images.sum())(seed) for seed in range(seeds)]
    paid = pay(Valued(observed, {spec: values}), spec, Rule(349))
    assert paid.sentence == (
        "Equal shares: the reliability of the values is 0 (a count or another measure of data: no test shows how much "
        "more a larger one is worth). To pay by it all the same, agree on the amounts in proportion."
    )
    assert set(paid.amounts) == {87, 88}
    assert paid.alternatives[IN_PROPORTION].tolist() == pytest.approx(images, abs=1.5)


def test_amounts_by_other_estimators_are_alternatives(valued):
    paid = pay(valued, "other", Rule(1000))
    assert paid.alternatives["by good"].tolist() == pytest.approx([375, 375, 125, 125], abs=5)
    other = payout_tables(pay(valued, "good", Rule(1000)))[1].frame["Assumption"].tolist()
    assert {"equal shares", "by other: equal", "in proportion"} <= {*other}
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
    assert payout._bands(found).tolist() == expected


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
                    settings=TINY, values=["one_round"])  # fmt: skip
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
    assert all(one["low"] - 1 <= one["amount"] <= one["high"] + 1 for one in stated["hospitals"].values())
    assert (stated["slope"], 0 <= stated["reliability"] <= 1) == (1.0, True)
    assert {"task", "software", "sensitivity to preparation"} <= set(stated["card"])
    assert "payout.json" in (out / "payout.html").read_text()
    shown = fedmerit("verify", finished[1], "--payout", out / PAYOUT)
    assert shown.exit_code == 3, shown.output
    for other in {*finished} - {finished[1]}:  # a payout is shown if all its runs are
        assert f"not shown: {other.name}: that the server sent all sites the same" in shown.output
    assert "the same values, amounts and card; not signed" in shown.output


@pytest.fixture(scope="module")
def written(finished, tmp_path_factory):
    """The statement of both seeds: never change it."""
    place = tmp_path_factory.mktemp("written")
    write_payout(finished, ["data_size"], Rule(1000), place, draws=5)
    return read_json(place / PAYOUT)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"runs": {"seed0": "0" * 64, "seed1": "0" * 64}}, "runs.seed0: states"),
        ({"runs": {"seed0": "", "../seed1": ""}}, "expected a folder beside"),
        ({"runs": {"seed9": ""}}, "is not about seed0"),
        ({"budget": "1000"}, "not a payout: budget"),
        ({"reliability": 0.5}, "reliability: states 0.5; recomputed from the runs: 0.0"),
        ({"slope": 11.0}, "not a payout: slope"),
        ({"more": 1}, "not a payout: more"),
        ({"draws": 10**9}, "not a payout: draws"),
        ({"estimator": "handed_over:Net"}, "'handed_over': unknown"),
    ],
)
def test_a_changed_statement_is_found(finished, written, tmp_path, change, fault):
    write_json(tmp_path / PAYOUT, written | change)
    with pytest.raises(BadInput, match=fault):
        verify_payout(tmp_path / PAYOUT, finished[0])


CARDED = "patients and slices"


@pytest.mark.parametrize(
    ("where", "content", "fault"),
    [
        (("hospitals", "Birch", "amount"), 999, r"hospitals\.Birch\.amount: states 999; recomputed from the runs: 33"),
        (("hospitals", "Cedar", "low"), 1.0, r"hospitals\.Cedar\.low: states 1\.0; .*: null"),
        (("card", CARDED), "500 test patients each", "card.patients and slices: states .500 test patients each.; reco"),
        (("card", "software"), "better", "card.software: states"),
        (("card", "sensitivity to preparation"), "none", "card.sensitivity to preparation: states"),
    ],
)
def test_a_changed_part_is_named(finished, written, tmp_path, where, content, fault):
    write_json(tmp_path / PAYOUT, _changed(written, where, content))
    with pytest.raises(BadInput, match=fault):
        verify_payout(tmp_path / PAYOUT, finished[0])


def _changed(stated, where, content):
    """The statement with another content at a place."""
    name, *inner = where
    return stated | {name: _changed(stated[name], inner, content) if inner else content}


def test_version_and_free_text_are_taken_as_stated(finished, written, tmp_path, capsys):
    write_json(tmp_path / PAYOUT, _changed(written | {"version": "0.0"}, ("card", "ethics"), "approved"))
    assert verify_payout(tmp_path / PAYOUT, finished[0]) == ""
    assert "not recomputed, as stated: card: ethics" in capsys.readouterr().err


def test_logs_of_several_runs_go_to_their_own(finished, written, tmp_path):
    write_json(tmp_path / PAYOUT, written)
    logs = {run.resolve(): sorted(run.glob("sites/*/site_log.jsonl")) for run in finished}
    assert all(logs.values())
    given = [log for of_run in logs.values() for log in of_run]
    assert divide_logs(tmp_path / PAYOUT, finished[0], given) == logs


def test_log_of_another_plan_than_any_run_of_a_payout_contradicts_it(finished, written, tmp_path, fedmerit):
    """The server gave the site another plan than the run folder has: that log is not left out."""
    write_json(tmp_path / PAYOUT, written)
    log = tmp_path / "site_log.jsonl"
    entries = [json.loads(line) for line in sorted(finished[0].glob("sites/*/site_log.jsonl"))[0].open()]
    for entry in entries:
        Ledger(log).append({name: value for name, value in entry.items() if name not in ("previous", "hash")}
                           | ({"plan": "0" * 64} if "plan" in entry else {}))  # fmt: skip
    reported = fedmerit("verify", finished[0], "--payout", tmp_path / PAYOUT, "--site-log", log)
    assert reported.exit_code == 1
    assert "trained by another plan than" in reported.stderr


@pytest.mark.parametrize("content", [{"reliability": 0.5}, {"draws": 0}, None])
def test_verify_of_a_changed_payout_ends_with_1(finished, written, tmp_path, fedmerit, content):
    write_json(tmp_path / PAYOUT, written | content if content else content)
    assert fedmerit("verify", finished[0], "--payout", tmp_path / PAYOUT).exit_code == 1


@pytest.mark.parametrize("name", ["run.json", "site_log.jsonl"])
def test_what_contradicts_a_run_is_reported_beside_a_payout_too(finished, written, tmp_path, fedmerit, name):
    runs = [Path(shutil.copytree(run, tmp_path / run.name)) for run in finished]
    write_json(tmp_path / PAYOUT, written)
    log = sorted(runs[0].glob("sites/*/site_log.jsonl"))[0]
    (log if name == log.name else runs[0] / name).write_text("{}\n")
    reported = fedmerit("verify", runs[0], "--payout", tmp_path / PAYOUT, "--site-log", log)
    assert reported.exit_code == 1
    assert "no signature convicts anybody" in reported.stderr


def test_payout_by_images_that_only_site_folders_show_is_no_contradiction_without_them(tmp_path):
    """Cedar is a copy of Birch, and no ledger says so: each has half of a value, where the folders are."""
    sites = make_sites(tmp_path / "sites", SITES[:2], size=16)
    copied = Path(shutil.copytree(sites / "Birch", sites / "Cedar"))
    write_json(copied / "site.json", read_json(copied / "site.json") | {"name": "Cedar"})
    folders = [tmp_path / f"seed{seed}" for seed in range(2)]
    for seed, run in enumerate(folders):
        runs.create(run, method="standalone", sites=sites, rounds=1, seed=seed, engine="local", threads=1,
                    settings=TINY | {"guard": "off"}, values=["local_only"])  # fmt: skip
        runs.execute(run, lambda record: None)
    write_payout(folders, ["local_only"], Rule(1000), tmp_path, draws=5)
    assert verify_payout(tmp_path / PAYOUT, folders[0]) == ""
    sites.rename(tmp_path / "away")
    with pytest.raises(BadInput, match="Which sites hold the same images is not known here") as found:
        verify_payout(tmp_path / PAYOUT, folders[0])
    assert not isinstance(found.value, Contradiction)


def test_without_site_folders_what_only_they_hold_is_as_stated(finished, written, tmp_path, capsys):
    """A card of who has them, and one of who has not."""
    write_json(tmp_path / PAYOUT, written)
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
