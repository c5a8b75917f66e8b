"""Federations of networks, as detectors see them."""

import pytest
from tiny import TINY

from fedmerit_evaluation.results.runs import open_run
from fedmerit_lab.attacks.attack import parse_attack
from fedmerit_lab.attacks.sybils import SYBILS
from fedmerit_lab.detection.monitored_federation import Training, monitor
from fedmerit_lab.detection.scenarios import SITE_ATTACKS, WORST, Roles

ROLES = Roles("site3", "site1", "site2")
TINY = TINY | {"augmentation": "none"}


def test_every_attack_is_one_of_the_product():
    assert set(WORST) <= set(SITE_ATTACKS)
    assert len(set(WORST)) == 10
    for attack in SITE_ATTACKS.values():
        specs = attack.specs_on_sites(ROLES, 15)
        assert all(parse_attack(spec).first >= attack.first_on_sites(15) for spec in specs.values())
        assert specs or attack.sybil in ("", *SYBILS)
    late = SITE_ATTACKS["zero update from the middle on"]
    assert late.first_on_sites(15) == parse_attack(late.specs_on_sites(ROLES, 15)["site3"]).first == 7


def test_a_trained_network_is_monitored_as_the_run_recorded_it(sites, tmp_path):
    training = Training(sites, ROLES, 4, {"guard": "on", **TINY}, "fedce")
    found = monitor(training, "fedce", "zero update", 0, tmp_path / "run")
    rows = open_run(tmp_path / "run").results.rows
    norms = rows[rows["quantity"] == "norm"].pivot(index="round", columns="site", values="value")
    assert found.evidence["norm"] == [pytest.approx(list(row), abs=1e-6) for row in norms.to_numpy()]
    assert norms["site3"].eq(0).all()
    assert all(0 <= one <= 1 for one in found.dice)
    challenge = found.suspicion["challenge images"][0][2]
    assert challenge == challenge  # not NaN
    assert found.rounds == 4
    assert found.verdicts[-1] == [0, 0, 1]  # zeros in three rounds
    assert found.weights[2] == 0


@pytest.mark.slow
@pytest.mark.parametrize("attack", SITE_ATTACKS)
def test_every_attack_is_simulated(sites, tmp_path, attack):
    found = monitor(Training(sites, ROLES, 4, {"guard": "on", **TINY}, "fedce"), "fedce", attack, 0, tmp_path / "run")
    assert found.rounds == 4
    assert len(found.weights) == len(found.sites)
