"""Spent ε in a report, by site."""

from types import SimpleNamespace

import pandas as pd

from fedmerit_evaluation.report.flags import list_spent_privacy
from fedmerit_evaluation.report.redaction import _rows_of_site


def make_run(rows, plan):
    results = SimpleNamespace(rows=pd.DataFrame(rows, columns=["round", "site", "quantity", "value"]))
    return SimpleNamespace(results=results, label="fedavg", seed=0, info={"plan": plan})


def test_report_has_the_epsilon_of_the_last_round_by_site():
    rows = [(1, "A", "epsilon", 3.0), (0, "A", "epsilon", 2.0), (0, "B", "epsilon", 2.5), (1, "B", "weight", 0.5)]
    table = list_spent_privacy([make_run(rows, {"privacy": {"dp_delta": 1e-3}})])
    assert table.to_dict("list") == {
        "Method": ["fedavg"] * 2, "Seed": [0, 0], "Site": ["A", "B"],
        "ε": [3.0, 2.5], "δ": [1e-3] * 2, "Rounds": [2, 1],
    }  # fmt: skip
    assert _rows_of_site(table, "B")["ε"].tolist() == [2.5]


def test_report_without_privacy_has_no_rows():
    assert list_spent_privacy([make_run([(0, "A", "weight", 1.0)], {})]).empty
