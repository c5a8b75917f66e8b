"""Monitored federations of invented numbers."""

from fedmerit_lab.detection.monitored_federation import EVIDENCE, MonitoredFederation

SITES = ["A", "B", "C", "D"]
NAN = float("nan")


def federation(
    attack="zero update", seed=0, attackers=("D",), suspicion=(0.1, 0.2, 0.3, 0.9), flagged=(0, 0, 1, 1), **more
):
    """Two rounds; a detector has the same result in both."""
    evidence = {name: [[1.0, 1.0, 1.0, 0.0 if attackers else 1.0]] * 2 for name in EVIDENCE}
    verdicts = [[0.0] * 4, [0.0, 0.0, 0.0, float(bool(attackers))]]
    return MonitoredFederation(
        "fedce", attack, seed, SITES, list(attackers), "C", 0,
        {"one": [list(suspicion)] * 2}, {"one": [list(flagged)] * 2}, evidence, verdicts,
        **{"weights": [0.3, 0.3, 0.4, 0.0], "rewards": [1.0, 1.0, 1.0, 0.0], "dice": [0.8, 0.7, 0.6, 0.1], **more},
    )  # fmt: skip


def honest(seed=0):
    return federation(
        "honest", seed, (), (0.1, 0.2, 0.3, 0.2), (0, 0, 1, 0),
        weights=[0.25] * 4, rewards=[1.0] * 4, dice=[0.82, 0.7, 0.62, 0.5],
    )  # fmt: skip
