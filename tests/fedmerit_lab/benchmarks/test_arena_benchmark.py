"""The benchmark of the arena: which federations, their storage, its tables."""

import pytest

from fedmerit.errors import BadInput
from fedmerit.schema.configuration.settings import GuardSettings
from fedmerit_evaluation.studies.study import parse_methods
from fedmerit_lab.benchmarks import arena_benchmark as module
from fedmerit_lab.benchmarks.arena_benchmark import ArenaBench, arena_tables, clopper_pearson, play_all
from fedmerit_lab.detection.detector import DETECTORS, Detection
from fedmerit_lab.detection.scenarios import SCENARIOS


class Suspicious:
    name = "suspicious"

    def see(self, round):
        return Detection(round.images, round.images > 100)


def bench(**changes):
    options = {"attacks": ["zero update"], "sizes": [3], "seeds": [0], "rounds": 4, "guard": GuardSettings("on")}
    return ArenaBench(parse_methods("fedavg"), **options | changes)


@pytest.fixture
def one_scenario(monkeypatch):
    monkeypatch.setattr(module, "SCENARIOS", {"usual": SCENARIOS["usual"]})
    monkeypatch.setitem(DETECTORS, "suspicious", Suspicious)


def test_rows_are_stored_and_become_tables(one_scenario, tmp_path):
    rows = play_all(bench(), tmp_path)
    assert [(row["attack"], row["detector"], row["false"], row["detected"]) for row in rows] == [
        ("", "guard", False, None),
        ("", "suspicious", True, None),
        ("zero update", "guard", False, True),
        ("zero update", "suspicious", False, True),
    ]
    assert play_all(bench(), tmp_path, lambda *_: pytest.fail("played again")) == rows
    false, power, rewards = arena_tables(rows)
    assert false.frame.set_index("Detector")["All [%]"].to_dict() == {"guard": 0, "suspicious": 100}
    assert power.frame.set_index("Detector").loc["guard", "3 sites [%]"] == 100
    assert rewards.frame.loc[0, "Reward [points]"] < -10
    with pytest.raises(BadInput, match="results with other rounds;"):
        play_all(bench(rounds=5), tmp_path)


def test_every_scenario_is_played_and_coalitions_are_minorities():
    cases = bench(attacks=["two share a direction", "noise:from=2"], sizes=[4, 6]).cases
    assert [scenario for _, scenario, attack, case in cases if not attack and case.sites == 4] == list(SCENARIOS)
    assert [(case.sites, attack) for *_, attack, case in cases if attack] == [
        (4, "noise:from=2"), (6, "two share a direction"), (6, "noise:from=2"),
    ]  # fmt: skip
    with pytest.raises(BadInput, match="--attacks sleep: unknown; there are zero update;"):
        bench(attacks=["sleep"]).cases  # noqa: B018


def test_intervals_are_those_of_clopper_and_pearson():
    assert clopper_pearson(0, 20) == pytest.approx((0, 0.1684), abs=1e-4)
    assert clopper_pearson(5, 20) == pytest.approx((0.0866, 0.4910), abs=1e-4)
    assert clopper_pearson(20, 20) == pytest.approx((0.8316, 1), abs=1e-4)
