"""Synthetic tables of rounds with a known free rider."""

import math

import pandas as pd

from fedmerit.schema.results import COLUMNS
from fedmerit_evaluation.results.views import Results
from fedmerit_lab.attacks.outcomes import first_flags

SITES = ("A", "B", "C", "D")
HONEST = {"weight": 0.25, "cosine_to_mean": 0.6, "train_loss": 0.5, "flagged": 0.0, "before": 0.5, "after": 0.6}
FREE_RIDER = "B"
# By detector, the values of the free rider that only it flags.
EVIDENCE = {"free-rider value": {"after": 0.2}, "training loss": {"train_loss": 0.1}, "server": {"flagged": 1.0}}


def table(run="run", rounds=6, start=2, **evidence) -> Results:
    """A run in which `FREE_RIDER` has other values from round ``start`` on."""
    rows = []
    for round in range(rounds):
        for site in SITES:
            values = HONEST | (evidence if site == FREE_RIDER and round >= start else {})
            for quantity, value in values.items():
                where = {"before": "validation", "after": "validation_trained"}.get(quantity, "")
                if where:
                    for case, add in (("000", -0.1), ("001", 0.1), ("002", math.nan)):
                        rows.append((run, round, site, where, case, "dice", value + add))
                else:
                    rows.append((run, round, site, "", "", quantity, value))
    frame = pd.DataFrame(rows, columns=["run", "round", "site", "split", "case", "quantity", "value"])
    return Results(frame.assign(method="fedavg", seed=0, coalition="", label="prostate", fold="", patient="")[COLUMNS])


def flagged(results, since=None):
    found = first_flags(results, since)
    return {(row.detector, row.site): row.round for row in found.itertuples()}
