"""Simulated federations whose fairness is known: how often draws of Student's t cover it.

``python tests/support/simulated_fairness.py 100`` prints the tables of docs/studies/statistics.md.
"""

import sys
from collections.abc import Iterator
from itertools import chain

import numpy as np
import pandas as pd
from simulated_studies import STABLE, TRUE, USUAL, as_cases, federations

from fedmerit_evaluation.fairness.measurement import CORRECTED, MEASURES, Compared, measure
from fedmerit_evaluation.figures.tables import DASH
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.intervals import dice_intervals, select_methods
from fedmerit_evaluation.statistics.resampling import CrossedEffects, bootstrap

LOCAL, METHOD = LABELS = ("standalone", "fedce")
DRAWS = 400
SHOWN = ("mean", "mean_gain", "std", "gain_spread", "pearson", "spearman", "euclidean", "worst", "share_worse_off")


def as_results(cases):
    """Dice by ``(method, seed, site, case)`` as test results of one label."""
    same = {"run": "r", "round": 1, "coalition": "", "split": "testing", "label": "prostate", "quantity": "dice"}
    return Results(cases.rename("value").reset_index().assign(**same, fold="", patient=""))


def true_dice(random, hospitals, true_sd):
    """(2, hospitals) of local training and of a method: SD over hospitals, correlated by .5; one point is gained."""
    one, other = random.normal(0, true_sd, (2, hospitals))
    return 100 * TRUE + np.stack([one, 1 + 0.5 * one + np.sqrt(0.75) * other])


def coverage(hospitals, seeds, patients, sd, true_sd, studies):
    """By measure: percent of the 95 % intervals that cover the true one, and of studies that have an interval."""
    random = np.random.default_rng([17, hospitals, seeds, patients, true_sd])
    compared = Compared(dict(zip(LABELS, LABELS, strict=True)), LOCAL, {}, [])
    held = []
    for _ in range(studies):
        true = true_dice(random, hospitals, true_sd)
        dice, who = federations(random, 1, seeds, patients, sd, hospitals=hospitals, methods=2)
        cases = as_cases(dice + true[:, None, :, None] / 100 - TRUE, who, LABELS)
        drawn = bootstrap(
            CrossedEffects.from_cases(cases),
            lambda dice: {key: value for pair in compared.pairs(dice) for key, value in pair.values()},
            DRAWS,
            bounds=lambda key: MEASURES[key.measure].bounds,
        )
        corrected = measure(as_results(cases), compared.methods, standalone=LOCAL, draws=DRAWS).measured
        rows = [key._asdict() | numbers for key, numbers in drawn.items()]
        rows += corrected[corrected["table"] == CORRECTED].to_dict("records")
        for row in rows:
            of_dice = row["measure"] in ("mean", "std", "worst")
            number = MEASURES[row["measure"]].of(true[1] if of_dice else true[0], true[1])
            known = np.isfinite(row["low"] + number)
            covers = row["low"] - 1e-6 <= number <= row["high"] + 1e-6
            held.append((row["method"], row["table"] == CORRECTED, row["measure"], covers if known else np.nan))
    table = pd.DataFrame(held, columns=["method", "corrected", "measure", "covers"]).astype({"covers": float})
    groups = table[table["method"] == METHOD].groupby(["corrected", "measure"])["covers"]
    return 100 * groups.mean(), 100 * groups.count() / studies


def coverage_table(studies) -> Iterator[str]:
    """Lines of Markdown."""
    names = [(False, name) for name in SHOWN] + [(True, name) for name in ("std", "gain_spread", "pearson")]
    headings = ["corrected " * corrected + MEASURES[name].heading for corrected, name in names]
    yield f"| noise, hospitals, seeds x patients | true SD | {' | '.join(headings)} |"
    yield f"|---|---|{'---|' * len(headings)}"
    for name, sd in (("usual", USUAL), ("stable", STABLE)):
        for hospitals, seeds, patients in ((4, 3, 5), (8, 3, 5), (8, 5, 10), (4, 3, 30)):
            for true_sd in (0, 3, 6):
                held, there = coverage(hospitals, seeds, patients, sd, true_sd, studies)
                cells = [f"{held[one]:.0f}" if there.get(one, 0) else DASH for one in names]
                if there.get(names[-1], 0):
                    cells[-1] += f" (of {there[names[-1]]:.0f})"
                yield f"| {name}, {hospitals}, {seeds} x {patients} | {true_sd} | {' | '.join(cells)} |"


def rank_coverage(hospitals, seeds, patients, sd, step, studies, methods=5):
    """Percent of the 95 % intervals of ranks that cover the true one, of methods ``step`` points apart; mean width."""
    random = np.random.default_rng([19, hospitals, seeds, patients])
    names = [f"m{number}" for number in range(methods)]
    found = []
    for _ in range(studies):
        dice, who = federations(random, 1, seeds, patients, sd, hospitals=hospitals, methods=methods)
        dice -= step / 100 * np.arange(methods)[:, None, None, None]
        order = [names[place] for place in np.argsort(-dice.mean(axis=(1, 2, 3)))]
        ranks = select_methods(dice_intervals(as_cases(dice, who, names), order, LOCAL), "rank").loc[names]
        true = 1 + np.arange(methods)
        found.append(((ranks["low"] <= true) & (true <= ranks["high"]), ranks["high"] - ranks["low"]))
    return 100 * np.mean([held for held, _ in found]), np.mean([width for _, width in found])


def rank_table(studies) -> Iterator[str]:
    """Lines of Markdown."""
    yield "| ranks: noise, hospitals, seeds x patients | 0.5 points | 1 | 3 |\n|---|---|---|---|"
    for name, sd in (("usual", USUAL), ("stable", STABLE)):
        for design in ((4, 3, 5), (8, 5, 10), (4, 3, 30)):
            found = [rank_coverage(*design, sd, step, studies) for step in (0.5, 1, 3)]
            cells = " | ".join(f"{held:.0f} ({width:.1f})" for held, width in found)
            yield f"| {name}, {design[0]}, {design[1]} x {design[2]} | {cells} |"


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    for line in chain(coverage_table(number), rank_table(number // 4)):
        print(line, flush=True)
