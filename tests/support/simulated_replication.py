"""Power of a comparison of methods with a baseline over folds, as `fedmerit_lab.benchmarks.contrasts` tests it.

``python tests/support/simulated_replication.py 2000`` prints the table of docs/studies/contribution-weights.md.
"""

import sys
from collections.abc import Iterator

import numpy as np
from scipy.stats import t

from fedmerit_evaluation.statistics.inference import SIGNIFICANCE_LEVEL, fold_overlap, holm


def fold_differences(random, shape, folds, sd, prepared):
    """(*shape, folds) differences of SD ``sd`` by fold, correlated as folds that share training patients.

    The correlation is the part of a fold's patients that are tested, of those trained or tested (Nadeau and Bengio).
    """
    correlation = 1 / (prepared - 1)
    shared = random.normal(0, np.sqrt(correlation), (*shape, 1))
    return sd * (shared + random.normal(0, np.sqrt(1 - correlation), (*shape, folds)))


def fold_p(differences, prepared=0):
    """(...) p of the means of (..., F) differences, as `contrasts.estimate_over_folds` has it."""
    folds = differences.shape[-1]
    error = differences.std(axis=-1, ddof=1) / np.sqrt(folds) * fold_overlap(folds, prepared)
    return 2 * t.sf(np.abs(differences.mean(axis=-1)) / error, folds - 1)


def found(random, studies, folds, methods, sds, gain, prepared):
    """Percent of studies in which the gain of the first method's mean is found, and in which any other is."""
    differences = np.stack([fold_differences(random, (studies, methods), folds, sd, prepared) for sd in sds], axis=1)
    differences[:, 0, 0] += gain
    corrected = np.stack([holm(p) for p in fold_p(differences, prepared).reshape(studies, -1)])
    significant = corrected <= SIGNIFICANCE_LEVEL
    return 100 * significant[:, 0].mean(), 100 * significant[:, 1:].any(axis=1).mean()


def power_table(studies) -> Iterator[str]:
    """Lines of Markdown."""
    gains = (1, 2, 4, 6, 8, 12)
    yield f"| folds | methods | SD by fold: mean, worst | {' | '.join(f'{gain}' for gain in gains)} | any wrong |"
    yield f"|---|---|---|{'---|' * (len(gains) + 1)}"
    for folds, prepared, methods in ((5, 5, 14), (5, 5, 1), (10, 10, 14), (3, 5, 14), (4, 5, 14)):
        for sd in (0.5, 1.0, 2.0):
            random = np.random.default_rng([23, folds, methods, int(10 * sd)])
            parts = [found(random, studies, folds, methods, (sd, 2 * sd), gain, prepared) for gain in gains]
            cells = [f"{power:.0f}" for power, _ in parts]
            wrong = np.mean([wrong for _, wrong in parts])
            shown = f"{folds}" if folds == prepared else f"{folds} of {prepared}"
            yield f"| {shown} | {methods} | {sd}, {2 * sd} | {' | '.join(cells)} | {wrong:.1f} |"


if __name__ == "__main__":
    print("\n".join(power_table(int(sys.argv[1]))))
