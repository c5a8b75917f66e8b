"""A made-up study of free riders: its attacks, and the rows of their results."""

from pathlib import Path

import pandas as pd

from fedmerit.records.results import COLUMNS
from fedmerit_evaluation.results.views import Results
from fedmerit_lab.attacks.attacked_runs import HONEST, Attack

SITES = ("A", "B", "C")
ROUNDS = 12


def attack(kind, site, seed=0, first=0, riders=None) -> Attack:
    name = "_".join(filter(None, (kind, site, str(seed))))
    own = riders or ((site,) if site else ())
    return Attack("fedavg", kind, site, seed, Path(name), own, first)


def rows_of(one: Attack, sites=SITES, dice=0.8, weight=None, told=None) -> pd.DataFrame:
    """A run in which a rider gets worse by training, from its first round on, and what ``told`` says of it besides."""
    rows = []

    def add(round, site, quantity, value, split="", case=""):
        rows.append((one.folder.name, one.label, one.seed, round, site, "", split, case, "x", quantity, value))

    for round in range(ROUNDS):
        for site in sites:
            rides = site in one.riders and round >= one.first
            quantities = {"weight": (weight or {}).get(site, 1 / len(sites)), "norm": 1.0, "repeated": 0.0}
            quantities |= {"cosine_to_mean": 0.6, "cosine_to_previous": 0.1, "largest_pair_cosine": 0.2}
            for name, value in (quantities | (told if told and rides else {})).items():
                add(round, site, name, value)
            add(round, site, "dice", 0.5, "validation", "000")
            add(round, site, "dice", 0.2 if rides else 0.6, "validation_trained", "000")
    for site in sites:
        tested = dice if not isinstance(dice, dict) else dice[site]
        for quantity, value in {"dice": tested, "hd95": 10 * tested, "nsd": tested / 2}.items():
            add(ROUNDS - 1, site, quantity, value, "testing", "000")
    return pd.DataFrame(rows, columns=COLUMNS)


def ridden_study() -> tuple[list[Attack], Results]:
    """Two seeds, A and B ride in turn by zeros; and A stands twice."""
    attacks, results = [], []
    for seed in (0, 1):
        honest = attack(HONEST, "", seed)
        attacks.append(honest)
        results.append(rows_of(honest, weight={"A": 0.5, "B": 0.3, "C": 0.2}))
        for site in "AB":
            one = attack("zero", site, seed, first=2)
            attacks.append(one)
            dice = {"A": 0.7, "B": 0.7, "C": 0.7}
            results.append(rows_of(one, dice=dice, weight={"A": 0.2, "B": 0.2, "C": 0.6}, told={"norm": 0.0}))
        twice = attack("duplicate", "A", seed, riders=("A", "A-copy"))
        attacks.append(twice)
        results.append(
            rows_of(
                twice,
                (*SITES, "A-copy"),
                weight={"A": 0.3, "A-copy": 0.3, "B": 0.2, "C": 0.2},
                told={"largest_pair_cosine": 1.0},
            )
        )
    return attacks, Results(pd.concat(results, ignore_index=True))
