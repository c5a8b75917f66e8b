"""Rows of results.csv.

TP 3, FP 1, FN 1 on case 0 make a Dice of 2*3 / (2*3 + 1 + 1) = 0.75, and TP 1, FP 0, FN 2 on case 1 one of 2/4 = 0.5:
the mean is 0.625.
"""

from fedmerit.schema.results import Row

CASES = {"0": (3, 1, 1, 0.75), "1": (1, 0, 2, 0.5)}


def row(round, site, quantity, value, **columns):
    return Row("run", "fedce", 0, round, site, quantity, value, **columns)


def measured(round, site, split, cases=CASES):
    for case, (tp, fp, fn, dice) in cases.items():
        counts = {"true_positives": tp, "false_positives": fp, "false_negatives": fn}
        for quantity, value in ({"dice": dice} | counts).items():
            yield row(round, site, quantity, value, split=split, case=case, label="disc")
