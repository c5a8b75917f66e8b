"""Federations of made-up sites and trained ones, as detectors see them."""

import pytest

from fedmerit.methods.registry import build_method
from fedmerit_evaluation.results.run_folders import open_run
from fedmerit_lab.detection import attack_matrix
from fedmerit_lab.detection.monitored_federation import ATTACKS, Roles, Training, monitor_synthetic, monitor_trained

TINY = {
    "guard": "on", "architecture": "unet", "width": "2", "depth": "2", "residual_units": "0", "augment": "false",
}  # fmt: skip


@pytest.fixture
def training(sites):
    return Training(sites, Roles("site3", "site1", "site2"), 4, TINY, "fedce")


def test_both_worlds_have_the_same_attacks():
    """But for three that are one world's alone."""
    alone = {"11 % of the honest update", "claims 1e9 images", "claims 1,000 times its images"}
    assert set(attack_matrix.ATTACKS) ^ set(ATTACKS) == alone


def test_a_made_up_federation():
    found = monitor_synthetic(build_method("fedce", {}), "fedce", "zero update", 0, True, "withhold")
    assert (found.attackers, found.outlier, found.rounds) == (["site6"], "site4", attack_matrix.ROUNDS)
    assert [row[5] for row in found.flagged["guard"]] == [row[5] for row in found.verdicts]
    assert found.verdicts[-1] == [0, 0, 0, 0, 0, 1]
    assert found.weights[5] == found.rewards[5] == 0


def test_a_trained_federation_is_seen_as_it_was(training, tmp_path):
    found = monitor_trained(training, "fedce", "zero update", 0, tmp_path / "run")
    assert found.attackers == ["site3"]
    rows = open_run(tmp_path / "run").results.rows
    norms = rows[rows["quantity"] == "norm"].pivot(index="round", columns="site", values="value")
    assert found.evidence["norm"] == [pytest.approx(list(row), abs=1e-6) for row in norms.to_numpy()]
    assert norms["site3"].eq(0).all()
    assert all(0 <= one <= 1 for one in found.dice)
    assert found.suspicion["challenge images"][0][2] == found.suspicion["challenge images"][0][2]  # known
    assert found.rounds == 4


@pytest.mark.slow
@pytest.mark.parametrize("attack", [name for name in ATTACKS if name != "zero update"])
def test_every_attack_is_trained(training, tmp_path, attack):
    found = monitor_trained(training, "fedce", attack, 0, tmp_path / "run")
    assert found.rounds == 4
    assert len(found.weights) == len(found.sites)
