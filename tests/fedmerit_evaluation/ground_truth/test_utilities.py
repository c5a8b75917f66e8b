"""The utility of coalitions, from their test Dice."""

import pandas as pd
import pytest

from fedmerit.errors import BadInput
from fedmerit.records.results import COLUMNS
from fedmerit_evaluation.ground_truth.ground_truths import coalition_utilities
from fedmerit_evaluation.ground_truth.semivalues import EMPTY_COALITION
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.studies.comparison_tables import tables


def dice(coalition, site, case, value, *, label="disc", seed=0, number=9):
    head = dict.fromkeys(COLUMNS, "") | {"run": coalition, "method": "standalone" if "+" not in coalition else "fedavg"}
    return head | {
        "seed": seed, "round": number, "site": site, "coalition": coalition, "split": "testing", "case": case,
        "label": label, "quantity": "dice", "value": value,
    }  # fmt: skip


def long(rows):
    return Results(pd.DataFrame(rows, columns=COLUMNS).astype({"value": float}))


def test_the_utility_of_a_coalition_is_the_average_of_the_tables():
    rows = [
        # A: case 0 (.8 + .6) / 2 = .7, case 1 .5 (its cup is empty): .6;  B: .9
        dice("A+B", "A", "0", 0.8), dice("A+B", "A", "0", 0.6, label="cup"),
        dice("A+B", "A", "1", 0.5), dice("A+B", "A", "1", None, label="cup"),
        dice("A+B", "B", "0", 0.9), dice("A+B", "B", "0", 0.9, label="cup"),
        dice("A", "A", "0", 0.4), dice("A", "B", "0", 0.2),
        dice("A", "A", "0", 0.1, number=3),  # not the last round
        dice("B", "A", "0", 0.5, seed=1), dice("B", "B", "0", 0.5, seed=1),
    ]  # fmt: skip
    found = coalition_utilities(long(rows))
    assert found.keys() == {0, 1}
    assert {one: float(value) for one, value in found[0].items()} == pytest.approx(
        {frozenset(): 0, frozenset("AB"): 0.75, frozenset("A"): 0.3}
    )
    assert found[1][frozenset("B")] == pytest.approx(0.5)
    both = coalition_utilities(long(rows[:6]), per_label=True)[0]
    assert both[frozenset("AB")] == pytest.approx([(0.65 + 0.9) / 2, (0.6 + 0.9) / 2])
    assert both[EMPTY_COALITION].tolist() == [0, 0]
    one_label = long([row for row in rows[:6] if row["label"] == "disc"])
    shown, *_ = tables(Results(one_label.rows.assign(coalition="", method="fedavg")), ["fedavg"], [0])
    assert 100 * float(coalition_utilities(one_label)[0][frozenset("AB")]) == pytest.approx(shown.frame["Avg."][0])


def test_a_coalition_not_tested_everywhere_is_named():
    rows = [dice("A+B", site, "0", 0.5) for site in "AB"] + [dice("A", "A", "0", 0.5)]
    with pytest.raises(BadInput, match=r"coalition A, seed 0: not tested on the cases of B"):
        coalition_utilities(long(rows))
    with pytest.raises(BadInput, match=r"coalition A\+C.* of C"):
        coalition_utilities(long([dice("A+C", "A", "0", 0.5)]))
