"""Means over rounds that count rounds without work as 0."""

import pandas as pd
import pytest

from fedmerit_evaluation.results.views import Results

ROUNDS = 5


def results(worked: dict[str, list[int]], absent: dict[str, list[int]]) -> Results:
    """A run in which each site's contribution is 0.5 in every round; it ``worked`` in some, and was away in others."""
    columns = ["method", "seed", "round", "site", "coalition", "split", "case", "label", "quantity", "value"]
    rows = [
        ["fedavg", 0, number, site, "", "", "", "", quantity, value]
        for site, of_site in worked.items()
        for number in range(ROUNDS)
        for quantity, value in (
            (("rejected", 1.0), ("weight", 0.0))
            if number in absent.get(site, ())
            else (("contribution", 0.5), ("weight", 0.5), ("num_samples", 9), ("worked", float(number in of_site)))
        )
    ]
    return Results(pd.DataFrame(rows, columns=columns).assign(run="run"))


def test_credited_round_without_work_is_zero():
    everywhere = list(range(ROUNDS))
    found = results({"A": everywhere, "B": [3, 4], "C": everywhere}, {"C": [0, 1, 2, 3]})
    table = found.rounds.contributions.droplevel(["method", "seed"])
    assert table["mean_contribution"].to_dict() == pytest.approx({"A": 0.5, "B": 0.2, "C": 0.1})
    assert table["mean_weight"].to_dict() == pytest.approx({"A": 0.5, "B": 0.2, "C": 0.1})
    assert table["share"]["B"] == pytest.approx(0.25)
    assert found.rounds.rankings == {}  # of one seed


def test_credited_round_outside_membership_is_nan():
    everywhere = list(range(ROUNDS))
    rows = results({"A": everywhere, "B": [2], "C": everywhere}, {"C": [1]}).rows
    member = (rows["site"] != "B") | rows["round"].between(2, 3)
    table = Results(rows[member]).rounds.contributions.droplevel(["method", "seed"])
    assert table["mean_contribution"].to_dict() == pytest.approx({"A": 0.5, "B": 0.25, "C": 0.4})
    assert table["num_samples"].to_dict() == {"A": 9, "B": 9, "C": 9}


def test_credited_without_guard_counts_absence():
    found = results({"A": [], "B": []}, {"B": [0]}).rows
    table = Results(found[found["quantity"] != "worked"]).rounds.contributions.droplevel(["method", "seed"])
    assert table["mean_contribution"].to_dict() == pytest.approx({"A": 0.5, "B": 0.4})
