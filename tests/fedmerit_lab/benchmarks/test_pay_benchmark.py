"""The benchmark of pay: it resumes, its tables hold who earns what, and Shapley values by retraining sum to 1."""

import pytest

from fedmerit.files import read_json, write_json
from fedmerit_lab.benchmarks.pay_benchmark import PayBench, pay_tables, play_all, retrained_shares
from fedmerit_lab.detection.arena import Case
from fedmerit_lab.detection.scenarios import SCENARIOS

NAMES = ("usual", "other scanner", "forecast by block", "public images")


@pytest.fixture
def bench(monkeypatch):
    found = PayBench([3], [0, 1], rounds=3, images=40, retrained=1)
    cases = [case for case in found.cases if case[1] in NAMES]
    monkeypatch.setattr(PayBench, "cases", cases)
    return found


def test_pay_tables_show_that_a_forecaster_earns_less_than_who_trains(bench, tmp_path):
    rows = play_all(bench, tmp_path)
    attackers, honest = pay_tables(bench, rows, tmp_path)
    pay = attackers.frame.set_index("Attack")["All [%]"]
    assert pay["forecast by block"] < pay["public images"]
    found = honest.frame.set_index("Scenario")
    assert found.loc["other scanner", "Retrained runs"] == 1
    assert found.loc["all", "Runs"] == len([row for row in rows if row["kind"] == "honest"])


def test_play_all_takes_federations_that_are_done(bench, tmp_path):
    rows = play_all(bench, tmp_path)
    file = next((tmp_path / "pay").glob("attack*"))
    write_json(file, {**read_json(file), "share": [0.0, 0.0, 1.0]})
    again = play_all(bench, tmp_path, on_case=lambda *_: pytest.fail("played again"))
    assert len(again) == len(rows)
    assert [0.0, 0.0, 1.0] in [row["share"] for row in again]


def test_retrained_shares_give_nothing_to_a_site_that_no_other_can_use():
    shares = retrained_shares(Case("innovation", 3, SCENARIOS["other scanner"], rounds=4))
    assert shares.sum() == pytest.approx(1)
    assert shares[0] < min(shares[1:])
