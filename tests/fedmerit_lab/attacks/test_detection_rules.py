"""Rules that flag free riders, of synthetic runs in which they are known; and the figures of the study."""

from pathlib import Path

import pandas as pd
import pytest

from fedmerit.schema.results import COLUMNS
from fedmerit_evaluation.results.views import Results
from fedmerit_lab.attacks.attacked_runs import HONEST, AttackedRun
from fedmerit_lab.attacks.outcomes import FALSELY, RIGHTLY, _Detected, _rates, detection_rates
from fedmerit_lab.detection.rules import WINDOW, cosine_drops, low_losses

SITES = ("A", "B", "C", "D")


def rows_of(run, attacker, drop, growth, rounds=30):
    """Cosines drop from .8 over the rounds, the attacker's by ``drop`` more; its own error grows by ``growth``."""
    rows = []
    for round in range(rounds):
        for site in SITES:
            attacks = site == attacker
            cosine = 0.8 - (0.1 + drop * attacks) * round / (rounds - 1)
            rows.append((run, round, site, "", "", "cosine_to_mean", cosine))
            rows.append((run, round, site, "", "", "train_loss", 0.4 - (0.2 + drop) * attacks * (round >= 20)))
            rows.append((run, round, site, "validation", "000", "dice", 0.6))
            rows.append((run, round, site, "validation_trained", "000", "dice", 0.65 - (0.05 + growth) * attacks))
    return rows


def make_runs(*runs):
    """Attacks and results of ``(attacker, drop, growth)``; without an attacker the run is honest."""
    rows, attacks = [], []
    for number, (attacker, drop, growth) in enumerate(runs):
        folder = Path(f"run{number}")
        rows += rows_of(folder.name, attacker, drop, growth)
        kind = "repeat" if attacker else HONEST
        attacks.append(AttackedRun("fedce", kind, attacker or "", 0, folder, (attacker,) if attacker else ()))
    frame = pd.DataFrame(rows, columns=["run", "round", "site", "split", "case", "quantity", "value"])
    filled = {"method": "fedce", "seed": 0, "coalition": "", "label": "organ", "fold": "", "patient": ""}
    return attacks, Results(frame.assign(**filled)[list(COLUMNS)])


def test_the_drop_is_of_means_minus_the_median_drop():
    _, results = make_runs(("B", 0.29, 0.0))
    drops = cosine_drops(results)
    assert (drops.iloc[:WINDOW] == 0).all().all()
    between = (27 - 2) / 29  # middles of the last and of the first five rounds
    assert drops.iloc[-1].to_dict() == pytest.approx({"A": 0, "B": 0.29 * between, "C": 0, "D": 0})


def test_a_low_loss_is_relative_to_the_median_in_means_over_rounds():
    _, results = make_runs(("B", -0.1, 0.0))
    low = low_losses(results)
    assert low.iloc[19].to_dict() == pytest.approx(dict.fromkeys(SITES, 0), abs=1e-12)
    assert low.iloc[21].to_dict() == pytest.approx({"A": 0, "B": (2 * 0.1 / WINDOW) / 0.4, "C": 0, "D": 0}, abs=1e-12)
    assert low.iloc[-1]["B"] == pytest.approx(0.25)


def test_each_rule_flags_by_its_evidence_and_both_by_both():
    attacks, results = make_runs(("B", 0.4, 0.2), ("C", 0.4, 0.0), ("D", 0.0, 0.2), (None, 0.0, 0.0))
    table = detection_rates(attacks, results, [5, 30, 60]).frame
    assert sorted(set(table["After rounds"])) == [5, 30]
    found, names = (
        table.set_index(["After rounds", "Rule"]),
        ("free-rider value", "cosine drop", "both", "training loss", "server"),
    )
    for after, column, expected in (
        (30, RIGHTLY, (200 / 3, 200 / 3, 100 / 3, 100, 0)),
        (5, RIGHTLY, (200 / 3, 0, 0, 0, 0)),
        (30, "AUROC", (1, (1 + 1 + 0.5) / 3, (1 + 0.5 + 0.5) / 3, 1, 0.5)),  # 1/2 in a run without evidence
    ):
        assert found.loc[after, column].to_dict() == pytest.approx(dict(zip(names, expected, strict=True)))
    assert (table[FALSELY] == 0).all()


def test_an_honest_site_that_is_flagged_counts_in_honest_runs_too():
    attacks, results = make_runs(("B", 0.0, 0.2), ("A", 0.0, 0.2))
    attacks[1] = AttackedRun("fedce", HONEST, "", 0, attacks[1].folder)
    (row,) = detection_rates(attacks, results, [30]).frame.query("Rule == 'free-rider value'").to_dict("records")
    assert (row[RIGHTLY], row[FALSELY], row["Runs"]) == (100, 50, 1)


def test_tied_sites_share_the_highest_suspicion():
    equal = _Detected(frozenset("A"), frozenset(), pd.Series(0.0, index=list(SITES)))
    assert _rates([equal], [equal])["Attacker highest [%]"] == 25
    two = _Detected(frozenset("A"), frozenset(), pd.Series([2.0, 0.0, 2.0, 0.0], index=list(SITES)))
    assert _rates([two], [two])["Attacker highest [%]"] == 50
