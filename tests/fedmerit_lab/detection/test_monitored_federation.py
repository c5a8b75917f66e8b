"""Federations of synthetic sites and of networks, as detectors see them."""

import pytest

from fedmerit.attacks.catalogue import parse
from fedmerit.trainers.monai_trainer.data import open_sites
from fedmerit_evaluation.results.run_folders import open_run
from fedmerit_lab.attacks.sybils import SYBILS
from fedmerit_lab.detection.monitored_federation import Training, monitor
from fedmerit_lab.detection.simulated_attacks import ATTACKS, WORST, Roles, assign_roles
from fedmerit_lab.detection.synthetic_sites import OUTLIER, SETTINGS, generate_sites

SYNTHETIC = Roles("site6", "site1", "site2", OUTLIER)


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory):
    """The synthetic sites of seed 0."""
    return generate_sites(tmp_path_factory.mktemp("synthetic") / "sites", 0)


def train(sites, out, attack, method="fedavg", rounds=3, seed=0, **settings):
    training = Training(sites, assign_roles(sites, outlier=OUTLIER), rounds, {**SETTINGS, **settings}, method)
    return monitor(training, method, attack, seed, out / "run")


def test_synthetic_sites_depend_only_on_the_seed(synthetic, tmp_path):
    again, other = (generate_sites(tmp_path / str(seed), seed) for seed in (0, 1))
    digests = [[folder.digest for folder in open_sites(sites)] for sites in (synthetic, again, other)]
    assert digests[0] == digests[1]
    array = "site1/training0_label.npy"
    assert (synthetic / array).read_bytes() == (again / array).read_bytes() != (other / array).read_bytes()
    before = (again / array).stat().st_mtime_ns
    assert generate_sites(again, 0) == again
    assert (again / array).stat().st_mtime_ns == before  # not written again
    assert assign_roles(synthetic, outlier=OUTLIER) == SYNTHETIC


def test_honest_federations_learn_and_the_guard_flags_no_site(synthetic, tmp_path):
    short, long = (train(synthetic, tmp_path, "honest", rounds=rounds, guard="on") for rounds in (1, 10))
    assert (long.attackers, long.outlier, long.rounds) == ([], OUTLIER, 10)
    honest = [place for place, site in enumerate(long.sites) if site != OUTLIER]
    assert all(long.dice[place] > short.dice[place] + 0.02 for place in honest)
    assert not any(any(row) for row in long.flagged["guard"])
    outlier = long.sites.index(OUTLIER)
    assert all(row[outlier] == min(row) for row in long.evidence["cosine_to_mean"][:3])
    again = train(synthetic, tmp_path, "honest", rounds=10, guard="on")
    assert again.to_json() == long.to_json()  # bit for bit


def test_the_guard_detects_zero_updates_and_withholds_the_reward(synthetic, tmp_path):
    found = train(synthetic, tmp_path, "zero update", rounds=12, guard="on", on_verdict="withhold")
    assert found.attackers == ["site6"]
    assert found.verdicts[0] == [0] * 6
    assert found.verdicts[-1] == [0, 0, 0, 0, 0, 1]
    assert [row[5] for row in found.flagged["guard"]] == [row[5] for row in found.verdicts]
    assert found.weights == pytest.approx([0.2] * 5 + [0])
    assert found.rewards == [1, 1, 1, 1, 1, 0]


@pytest.mark.parametrize(
    ("attack", "attackers", "weight"),
    [
        ("claims 1,000 times its images", ["site6"], 1000 / 1005),
        ("a site split in two", ["site6-a", "site6-b"], 1 / 6),
        ("two rig the evaluation", ["site1", "site6"], 2 / 6),
        ("two exact copies", ["site6", "site6-copy"], 2 / 7),
    ],
)
def test_fedavg_without_the_guard_weights_by_claimed_images(synthetic, tmp_path, attack, attackers, weight):
    found = train(synthetic, tmp_path, attack)
    assert sorted(found.attackers) == attackers
    assert sum(found.weights[found.sites.index(site)] for site in attackers) == pytest.approx(weight)
    assert set(found.rewards) == {1}  # one model for all
    assert not any(any(row) for row in found.verdicts)


def test_every_attack_is_one_of_the_product():
    assert set(WORST) <= set(ATTACKS)
    assert len(set(WORST)) == 10
    for attack in ATTACKS.values():
        specs = attack.specs(SYNTHETIC, 15)
        assert all(parse(spec).first >= attack.first(15) for spec in specs.values())
        assert specs or attack.sybil in ("", *SYBILS)
    late = ATTACKS["zero update from the middle on"]
    assert late.first(15) == parse(late.specs(SYNTHETIC, 15)["site6"]).first == 7


def test_a_trained_network_is_monitored_as_the_run_recorded_it(sites, tmp_path):
    tiny = {"architecture": "unet", "width": "2", "depth": "2", "residual_units": "0", "augment": "false"}
    training = Training(sites, Roles("site3", "site1", "site2"), 4, {"guard": "on", **tiny}, "fedce")
    found = monitor(training, "fedce", "zero update", 0, tmp_path / "run")
    rows = open_run(tmp_path / "run").results.rows
    norms = rows[rows["quantity"] == "norm"].pivot(index="round", columns="site", values="value")
    assert found.evidence["norm"] == [pytest.approx(list(row), abs=1e-6) for row in norms.to_numpy()]
    assert norms["site3"].eq(0).all()
    assert all(0 <= one <= 1 for one in found.dice)
    challenge = found.suspicion["challenge images"][0][2]
    assert challenge == challenge  # not NaN
    assert found.rounds == 4


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("method", ["fedce", "cgsv"])
def test_every_attack_is_simulated(synthetic, tmp_path, method, attack):
    found = train(synthetic, tmp_path, attack, method, rounds=4, guard="on")
    assert found.rounds == 4
    assert len(found.weights) == len(found.sites)
