"""A synthetic judged scenario of three sites."""

import numpy as np

from fedmerit_evaluation.ground_truth.reliability import Resampled
from fedmerit_evaluation.ground_truth.value_tables import REFERENCES
from fedmerit_lab.benchmarks.budget_allocation import Outcome
from fedmerit_lab.benchmarks.value_benchmark import ScenarioResult


def result(values, seeds=2):
    """A scenario of three sites whose reference values are 1, 2 and 4 points without noise."""
    by_seed = np.repeat(np.array([[0.01, 0.02, 0.04]] * seeds)[:, :, None], 5, axis=2)
    reference = Resampled(["A", "B", "C"], list(range(seeds)), by_seed, np.zeros((seeds, 3, 6)))
    arrays = {spec: np.tile(np.array(line, dtype=float)[None, :, None], (seeds, 1, 5)) for spec, line in values.items()}
    outcome = Outcome(np.full((seeds, 3), 0.8), np.full((seeds, 3), 0.7))
    costs, outcomes = dict.fromkeys(values, 0.25), dict.fromkeys(values, outcome)
    return ScenarioResult("noise:sites=3", "C last", dict.fromkeys(REFERENCES, reference), arrays, costs, outcomes)
