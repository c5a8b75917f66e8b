"""What observing values costs: which runs are measured, and what their ratios are to."""

import pytest

from fedmerit.errors import BadInput
from fedmerit_lab.benchmarks import round_costs as module
from fedmerit_lab.benchmarks.round_costs import estimator_costs

SECONDS = {(2, ""): [2.0, 4.0], (2, "multi_round"): [3.0, 5.0], (3, ""): [10.0, 10.0], (3, "multi_round"): [40.0, 20.0]}


def test_a_round_is_held_against_one_of_as_many_sites_in_which_nothing_is_observed(tmp_path, monkeypatch):
    asked = []

    def rounds_of(work, method, sites, rounds, settings, values):
        asked.append((method, sites, rounds, settings, work))
        taken = iter(SECONDS[sites, ",".join(values)])
        return lambda: {"CPU seconds per round": next(taken)}

    monkeypatch.setattr(module, "generated_sites", lambda out, size, number: number)
    monkeypatch.setattr(module, "rounds_of", rounds_of)
    table = estimator_costs(tmp_path, [2, 3], ["multi_round"], 64, 3, 2, {"width": 2}, lambda *_: None)
    assert table.to_numpy().tolist() == [
        [2, "nothing", 3.0, 1.0, 1.0, 1.0],
        [2, "multi_round", 4.0, 1.375, 1.25, 1.5],
        [3, "nothing", 10.0, 1.0, 1.0, 1.0],
        [3, "multi_round", 30.0, 3.0, 2.0, 4.0],
    ]
    assert {case[:4:2] for case in asked} == {("fedavg", 3)}
    assert len({case[4] for case in asked}) == 4
    assert (tmp_path / "estimators.csv").exists()


@pytest.mark.parametrize(
    ("sites", "rounds", "told"), [([4, 1], 3, "--sites 1: expected 2"), ([4], 1, "--rounds 1: expected 2")]
)
def test_what_cannot_be_measured_is_refused(tmp_path, sites, rounds, told):
    with pytest.raises(BadInput, match=told):
        estimator_costs(tmp_path, sites, ["multi_round"], 64, rounds, 1, {}, lambda *_: pytest.fail("measured"))
