"""Naming a rider, on made-up runs in which who rides is known."""

from pathlib import Path

import pandas as pd
import pytest

from fedmerit.records.results import COLUMNS
from fedmerit_evaluation.results.views import Results
from fedmerit_lab.attacks.attacked_runs import HONEST, Attack
from fedmerit_lab.attacks.detection_rules import WINDOW, _Found, _summary, cosine_drops, detection_rates, low_losses

SITES = ("A", "B", "C", "D")


def rows_of(run, rider, fall, growth, rounds=30):
    """Cosines fall from .8 over the rounds, the rider's by ``fall`` more; its own error grows by ``growth``."""
    rows = []
    for round in range(rounds):
        for site in SITES:
            rides = site == rider
            cosine = 0.8 - (0.1 + fall * rides) * round / (rounds - 1)
            rows.append((run, round, site, "", "", "cosine_to_mean", cosine))
            rows.append((run, round, site, "", "", "train_loss", 0.4 - (0.2 + fall) * rides * (round >= 20)))
            rows.append((run, round, site, "validation", "000", "dice", 0.6))
            rows.append((run, round, site, "validation_trained", "000", "dice", 0.65 - (0.05 + growth) * rides))
    return rows


def study(*runs):
    """Attacks and results of ``(rider, fall, growth)``; without a rider all are honest."""
    rows, attacks = [], []
    for number, (rider, fall, growth) in enumerate(runs):
        folder = Path(f"run{number}")
        rows += rows_of(folder.name, rider, fall, growth)
        kind = "repeat" if rider else HONEST
        attacks.append(Attack("fedce", kind, rider or "", 0, folder, (rider,) if rider else ()))
    frame = pd.DataFrame(rows, columns=["run", "round", "site", "split", "case", "quantity", "value"])
    filled = {"method": "fedce", "seed": 0, "coalition": "", "label": "organ"}
    return attacks, Results(frame.assign(**filled)[list(COLUMNS)])


def test_the_fall_is_that_of_means_beyond_the_median():
    _, results = study(("B", 0.29, 0.0))
    falls = cosine_drops(results)
    assert (falls.iloc[:WINDOW] == 0).all().all()
    between = (27 - 2) / 29  # middles of the last and of the first five rounds
    assert falls.iloc[-1].to_dict() == pytest.approx({"A": 0, "B": 0.29 * between, "C": 0, "D": 0})


def test_a_low_loss_is_one_below_the_medians_over_rounds():
    _, results = study(("B", -0.1, 0.0))
    low = low_losses(results)
    assert low.iloc[19].to_dict() == pytest.approx(dict.fromkeys(SITES, 0), abs=1e-12)
    assert low.iloc[21].to_dict() == pytest.approx({"A": 0, "B": (2 * 0.1 / WINDOW) / 0.4, "C": 0, "D": 0}, abs=1e-12)
    assert low.iloc[-1]["B"] == pytest.approx(0.25)


def test_each_rule_names_who_is_given_away_to_it_and_both_whom_both_name():
    attacks, results = study(("B", 0.4, 0.2), ("C", 0.4, 0.0), ("D", 0.0, 0.2), (None, 0.0, 0.0))
    table = detection_rates(attacks, results, [5, 30, 60]).frame
    assert sorted(set(table["After rounds"])) == [5, 30]
    found = table.set_index(["After rounds", "Rule"])
    assert found.loc[30, "Rider named alone [%]"].to_dict() == pytest.approx(
        {"free-rider value": 200 / 3, "cosine's fall": 200 / 3, "both": 100 / 3, "training loss": 100}
    )
    assert found.loc[5, "Rider named alone [%]"].to_dict() == pytest.approx(
        {"free-rider value": 200 / 3, "cosine's fall": 0, "both": 0, "training loss": 0}
    )
    assert (table["Honest site named [%]"] == 0).all()
    assert found.loc[30, "AUROC"].to_dict() == pytest.approx(  # 1/2 in a run where the rule sees nothing
        {"free-rider value": 1, "cosine's fall": (1 + 1 + 0.5) / 3, "both": (1 + 0.5 + 0.5) / 3, "training loss": 1}
    )


def test_an_honest_site_that_is_named_counts_in_runs_without_a_rider_too():
    attacks, results = study(("B", 0.0, 0.2), ("A", 0.0, 0.2))
    attacks[1] = Attack("fedce", HONEST, "", 0, attacks[1].folder)
    (row,) = detection_rates(attacks, results, [30]).frame.query("Rule == 'free-rider value'").to_dict("records")
    assert (row["Rider named alone [%]"], row["Honest site named [%]"], row["Runs"]) == (100, 50, 1)


def test_of_sites_that_are_equally_suspicious_none_is_the_highest_by_its_name():
    all_alike = _Found(frozenset("A"), frozenset(), pd.Series(0.0, index=list(SITES)))
    assert _summary([all_alike], [all_alike])["Rider highest [%]"] == 25
    two = _Found(frozenset("A"), frozenset(), pd.Series([2.0, 0.0, 2.0, 0.0], index=list(SITES)))
    assert _summary([two], [two])["Rider highest [%]"] == 50
