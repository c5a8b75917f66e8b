"""A synthetic study of attacks: its runs, and the rows of their results."""

from pathlib import Path

import pandas as pd

from fedmerit.schema.results import COLUMNS
from fedmerit_evaluation.results.views import Results
from fedmerit_lab.attacks.attacked_runs import HONEST, AttackedRun

SITES = ("A", "B", "C")
ROUNDS = 12


def attack(kind, site, seed=0, first=0, attackers=None) -> AttackedRun:
    name = "_".join(filter(None, (kind, site, str(seed))))
    return AttackedRun("fedavg", kind, site, seed, Path(name), attackers or ((site,) if site else ()), first)


def rows_of(one: AttackedRun, sites=SITES, dice=0.8, weight=None, changed=None) -> pd.DataFrame:
    """A run in which attackers get worse by training from the first round of the attack, with ``changed`` evidence."""
    rows = []

    def add(round, site, quantity, value, split="", case=""):
        rows.append((one.folder.name, one.label, one.seed, "", round, site, "", split, "", case, "x", quantity, value))

    for round in range(ROUNDS):
        for site in sites:
            attacks = site in one.attackers and round >= one.first
            quantities = {
                "weight": (weight or {}).get(site, 1 / len(sites)),
                "flagged": 0.0,
                "train_loss": 0.5,
                "cosine_to_mean": 0.6,
            }
            for name, value in (quantities | (changed if changed and attacks else {})).items():
                add(round, site, name, value)
            add(round, site, "dice", 0.5, "validation", "000")
            add(round, site, "dice", 0.2 if attacks else 0.6, "validation_trained", "000")
    for site in sites:
        for quantity, value in {"dice": dice, "hd95": 10 * dice, "nsd": dice / 2}.items():
            add(ROUNDS - 1, site, quantity, value, "testing", "000")
    return pd.DataFrame(rows, columns=COLUMNS)


def make_study() -> tuple[list[AttackedRun], Results]:
    """Two seeds; A and B send zeros in turn, and A takes part twice."""
    attacks, results = [], []
    for seed in (0, 1):
        honest = attack(HONEST, "", seed)
        zeros = [attack("zero", site, seed, first=2) for site in "AB"]
        twice = attack("duplicate", "A", seed, attackers=("A", "A-copy"))
        attacks += [honest, *zeros, twice]
        results.append(rows_of(honest, weight={"A": 0.5, "B": 0.3, "C": 0.2}))
        fewer = {"A": 0.2, "B": 0.2, "C": 0.6}
        results += [rows_of(one, dice=0.7, weight=fewer, changed={"flagged": 1.0}) for one in zeros]
        both = {"A": 0.3, "A-copy": 0.3, "B": 0.2, "C": 0.2}
        results.append(rows_of(twice, (*SITES, "A-copy"), weight=both, changed={"train_loss": 0.1}))
    return attacks, Results(pd.concat(results, ignore_index=True))
