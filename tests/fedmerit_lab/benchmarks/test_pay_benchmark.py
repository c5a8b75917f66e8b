"""The benchmark of pay: it resumes, its tables hold who earns what, and Shapley values by retraining sum to 1."""

from dataclasses import replace

import pytest
import torch

from fedmerit.contract.games import compute_values
from fedmerit.files import read_json, write_json
from fedmerit.schema.configuration.settings import GuardSettings
from fedmerit_lab.benchmarks.pay_benchmark import TEST_IMAGES, PayBench, pay_tables, play_all, retrained_shares
from fedmerit_lab.detection.arena import Case, Federation
from fedmerit_lab.detection.scenarios import SCENARIOS
from fedmerit_lab.detection.small_trainings import generate_images, soft_scores

NAMES = ("usual", "other scanner", "forecast by block", "public images")


@pytest.fixture
def bench(monkeypatch):
    found = PayBench([3], [0, 1], rounds=3, images=40, retrained=1)
    cases = [case for case in found.cases if case[1] in NAMES]
    monkeypatch.setattr(PayBench, "cases", cases)
    return found


def test_pay_tables_show_that_a_forecaster_earns_less_than_who_trains(bench, tmp_path):
    rows = play_all(bench, tmp_path)
    attackers, honest = pay_tables(rows)
    pay = attackers.frame.set_index("Attack")["All [%]"]
    assert pay["forecast by block"] < pay["public images"]
    found = honest.frame.set_index("Scenario")
    assert found.loc["other scanner", "Retrained runs"] == 1
    assert found.loc["all", "Runs"] == len([row for row in rows if row["kind"] == "honest"])
    assert 0 < found.loc["all", "All sites: retraining [points]"] < found.loc["all", "All sites: weights [points]"]


def test_play_all_takes_federations_that_are_done(bench, tmp_path):
    rows = play_all(bench, tmp_path)
    file = next((tmp_path / "pay").glob("attack*"))
    write_json(file, {**read_json(file), "share": [0.0, 0.0, 1.0]})
    again = play_all(bench, tmp_path, on_case=lambda *_: pytest.fail("played again"))
    assert len(again) == len(rows)
    assert [0.0, 0.0, 1.0] in [row["share"] for row in again]


def test_retrained_shares_are_shapley_values_of_federations_of_each_coalition():
    case = Case("fedavg", 3, SCENARIOS["own filter"], rounds=3)
    utilities = torch.zeros(8, dtype=torch.float64)
    for code in range(8):
        federation = Federation(replace(case, guard=GuardSettings()))
        images = generate_images(TEST_IMAGES, federation._random("data"), federation._random("test"))
        federation.claims = federation.claims * torch.tensor([code >> row & 1 for row in range(3)])
        for number in range(3):
            if code:
                federation.play(number)
            utilities[code] += soft_scores(federation.models[None], *images).mean() / 3
    values = compute_values(utilities, 3).clamp(min=0)
    assert retrained_shares(case) == pytest.approx((values / values.sum()).numpy(), abs=1e-6)


def test_retrained_shares_of_another_training_seed_differ_a_little():
    case = Case("innovation", 3, SCENARIOS["usual"], rounds=4)
    distance = abs(retrained_shares(case) - retrained_shares(replace(case, training_seed=1))).mean()
    assert 0 < distance < 0.1


def test_retrained_shares_give_nothing_to_a_site_that_no_other_can_use():
    shares = retrained_shares(Case("innovation", 3, SCENARIOS["other scanner"], rounds=4))
    assert shares.sum() == pytest.approx(1)
    assert shares[0] < min(shares[1:])
