"""Simulated budgets whose right shares are known: what rules misallocate, and by how much two studies differ.

``python benchmarks/simulated_payouts.py STUDIES`` prints the table of docs/valuation.md.
"""

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from fedmerit_evaluation.statistics.inference import SampleSize
from fedmerit_evaluation.statistics.ranks import ranking
from fedmerit_evaluation.valuation import payout
from fedmerit_evaluation.valuation.payout import Rule
from fedmerit_evaluation.valuation.valued_runs import Valued

RULE = Rule(10**6)
RULES = ("equal", "in proportion", "bands", "shrinkage")
DESIGNS = ((4, 3), (4, 5), (6, 3), (10, 3), (10, 5))  # hospitals, seeds
RATIOS = (0, 0.5, 1, 2, 4, 8)  # standard deviation of true values in standard errors
MEAN = 20.0  # of the true values, in standard errors


class Sampled(Valued):
    """Values of enough patients."""

    def sample(self, spec):
        """The sample size."""
        return SampleSize(20, len(self.parts), folds=self.folds)


def shares_by_rule(values):
    """(rules, n) shares by (seeds, n) values."""
    seeds, n = values.shape
    names = [f"h{site}" for site in range(n)]
    runs = [SimpleNamespace(sites=names, info={"seed": seed}) for seed in range(seeds)]
    valued, mean = Sampled(runs, {"it": values[..., None]}), values.mean(axis=0)
    band = payout._bands(ranking(names, values[..., None]))
    of_bands = np.array([mean[band == number].mean() for number in band])
    reliability, _ = valued.reliability("it")
    return np.stack([np.full(n, 1 / n), RULE.shares(mean), RULE.shares(of_bands), RULE.shares(mean, reliability)])


def misallocated(hospitals, seeds, ratio, studies):
    """Percent of the budget that each rule misallocates, and by which two studies of the same hospitals differ."""
    random = np.random.default_rng([hospitals, seeds, int(10 * ratio)])
    wrong, moved = [], []
    for _ in range(studies):
        true = np.maximum(MEAN + ratio * random.normal(size=hospitals), 0)
        both = [shares_by_rule(true + random.normal(0, np.sqrt(seeds), (seeds, hospitals))) for _ in range(2)]
        wrong += [np.abs(shares - RULE.shares(true)).sum(axis=1) / 2 for shares in both]
        moved.append(np.abs(both[0] - both[1]).sum(axis=1) / 2)
    return 100 * np.mean(wrong, axis=0), 100 * np.mean(moved, axis=0)


def payout_table(studies) -> Iterator[str]:
    """Lines of Markdown, and the largest regret of each rule: how much more it misallocates than the best in a cell."""
    yield f"| hospitals, seeds | SD / SE | {' | '.join(RULES)} | two studies differ by: {', '.join(RULES[1:])} |"
    yield f"|---|---|{'---|' * len(RULES)}---|"
    regret = np.zeros(len(RULES))
    for hospitals, seeds in DESIGNS:
        for ratio in RATIOS:
            wrong, moved = misallocated(hospitals, seeds, ratio, studies)
            regret = np.maximum(regret, wrong - wrong.min())
            cells, moves = (f"{one:.1f}" for one in wrong), ", ".join(f"{one:.1f}" for one in moved[1:])
            yield f"| {hospitals}, {seeds} | {ratio:g} | {' | '.join(cells)} | {moves} |"
    yield "largest regret: " + ", ".join(f"{name} {one:.1f}" for name, one in zip(RULES, regret, strict=True))


if __name__ == "__main__":
    for line in payout_table(int(sys.argv[1]) if len(sys.argv) > 1 else 60):
        print(line, flush=True)
