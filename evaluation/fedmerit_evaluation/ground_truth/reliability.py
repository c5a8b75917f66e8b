"""Reliability of ground-truth values: spread over seeds and patients, split-half correlations, noise ceiling.

A value by retraining is itself an estimate: another seed, or other test patients, would have given another. The
correlation of a perfect estimator with it is at most the root of its reliability, the share of its variance over sites
that is not noise (Spearman 1904, The proof and measurement of association between two things). That is the
noise ceiling, which every table of agreement shows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedmerit.errors import BadInput
from fedmerit.seeds import random_seed
from fedmerit_evaluation.ground_truth import semivalues
from fedmerit_evaluation.ground_truth.semivalues import EMPTY_COALITION, Coalition, FloatArray, Weights, coefficients
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.bootstrap import bootstrap_counts, correct_small_sample

DRAWS = 500
HALVES = 200  # random halvings of the patients
POINTS = 100.0
Values = Callable[[Mapping[Coalition, FloatArray]], FloatArray]  # a game of (...) utilities to (n, ...) values


@dataclass(frozen=True, eq=False)
class Resampled:
    """Values of n sites by s seeds, as observed and with the test patients bootstrap resampled."""

    sites: list[str]
    seeds: list[int]
    values: FloatArray  # (s, n, D), fractions of Dice; the first is as observed
    halves: FloatArray  # (s, n, 2, h) by each half of the patients, h random splits; NaN: too few patients
    single: bool = False  # every site has only one test patient

    @property
    def mean(self) -> FloatArray:
        """(n,) over seeds."""
        return np.asarray(self.values[..., 0].mean(axis=0))

    @property
    def seed_variance(self) -> FloatArray:
        """(n,) variance over seeds; NaN with one seed."""
        if len(self.seeds) < 2:
            return np.full(len(self.sites), np.nan)
        return np.asarray(self.values[..., 0].var(axis=0, ddof=1))

    @property
    def patient_variance(self) -> FloatArray:
        """(n,) variance of the mean over seeds, over bootstrap samples of patients; NaN for single patients."""
        return np.asarray(self.values[..., 1:].mean(axis=0).var(axis=-1, ddof=1))

    @property
    def standard_errors(self) -> FloatArray:
        """(n,) of the means, over seeds and patients; with one seed only over patients."""
        of_seeds = np.nan_to_num(self.seed_variance) / len(self.seeds)
        return np.asarray(np.sqrt(of_seeds + self.patient_variance))

    @property
    def reliability(self) -> float:
        """Share of the variance over sites that is not estimation noise, 0 to 1; NaN for single patients.

        1 - mean variance of the estimates / variance of the values over sites, both centred over sites: what all
        sites share, such as an easy sample of patients, changes no correlation.
        """
        centred = self.values - self.values.mean(axis=1, keepdims=True)
        n = len(self.sites)
        if n < 2:
            return np.nan
        between = float(centred[..., 0].mean(axis=0).var(ddof=1))
        noise = centred[..., 1:].mean(axis=0).var(axis=-1, ddof=1).mean() * n / (n - 1)
        if len(self.seeds) > 1:
            noise += centred[..., 0].var(axis=0, ddof=1).mean() * n / (n - 1) / len(self.seeds)
        return float(np.clip(1 - noise / between, 0, 1)) if between > 0 else 0.0

    @property
    def noise_ceiling(self) -> float:
        """Expected correlation of a perfect estimator with these values, 0 to 1: the root of the reliability."""
        return float(np.sqrt(self.reliability))

    @property
    def single_seed_noise_ceiling(self) -> float:
        """Likewise with the values of single seeds, mean over seeds; with one seed the same as `noise_ceiling`."""
        observed = self.values[..., 0]
        of_a_seed = float(observed.var(axis=1, ddof=1).mean()) if len(self.sites) > 1 else 0.0
        own = self.reliability * float(observed.mean(axis=0).var(ddof=1)) if of_a_seed > 0 else 0.0
        return float(np.sqrt(min(own / of_a_seed, 1.0))) if of_a_seed > 0 else 0.0

    @property
    def between_seeds(self) -> float:
        """Mean correlation of the values of two halves of the seeds, Spearman-Brown corrected; NaN with one seed."""
        number = len(self.seeds)
        if number < 2:
            return np.nan
        observed = self.values[..., 0]
        found = []
        for chosen in combinations(range(number), number // 2):
            other = [place for place in range(number) if place not in chosen][: len(chosen)]
            found.append(correlation(observed[list(chosen)].mean(axis=0), observed[other].mean(axis=0)))
        return spearman_brown(np.array(found), number / (number // 2))

    @property
    def patient_half_correlation(self) -> float:
        """Mean correlation of the values by two halves of the test patients, Spearman-Brown corrected."""
        halves = self.halves.mean(axis=0)  # (n, 2, h)
        found = [correlation(halves[:, 0, way], halves[:, 1, way]) for way in range(halves.shape[-1])]
        return spearman_brown(np.array(found), 2.0)


def correlation(one: FloatArray, other: FloatArray) -> float:
    """Pearson's, -1 to 1; NaN if either is constant or has fewer than 3 entries."""
    if len(one) < 3 or not (np.isfinite(one).all() and np.isfinite(other).all() and np.ptp(one) > 0 < np.ptp(other)):
        return np.nan
    return float(np.corrcoef(one, other)[0, 1])


def spearman_brown(correlations: NDArray[np.float64], times: float) -> float:
    """Expected correlation with ``times`` as much data, from the mean of ``correlations`` (Spearman, Brown 1910)."""
    known = correlations[np.isfinite(correlations)]
    if not len(known):
        return np.nan
    mean = float(known.mean())
    return times * mean / (1 + (times - 1) * mean) if mean > 0 else mean


def semivalue_function(weights: Weights) -> Values:
    """The function of a semivalue, NaN in draws with an unknown utility; `BadInput` if a coalition is missing."""

    def values(game: Mapping[Coalition, FloatArray]) -> FloatArray:
        sites = semivalues.list_sites(game)
        if lacking := [one for one in semivalues.required_coalitions(sites, weights) if one not in game]:
            raise BadInput(f"{semivalues.format_coalitions(lacking)}: no utility")
        return semivalues.combine(game, coefficients(sites, weights))

    return values


@dataclass(frozen=True)
class Utility:
    """Utility of a coalition's model, from the sites' means over cases: their mean, or the worst."""

    quantities: tuple[str, ...] = ("dice",)  # the first of them that is recorded
    sign: float = 1.0  # -1: lower is better
    worst: bool = False  # of the sites, instead of their mean

    def over(self, of_sites: FloatArray) -> FloatArray:
        """(coalitions, D) of (sites, coalitions, D)."""
        return np.asarray(of_sites.min(axis=0) if self.worst else of_sites.mean(axis=0))


UTILITIES: Mapping[str, Utility] = {
    "mean Dice": Utility(),
    "worst hospital's Dice": Utility(worst=True),
    "mean HD95": Utility(("hd95", "hd95_px"), -1.0),
}
MEAN_DICE = UTILITIES["mean Dice"]


def resample(results: Results, values: Values, draws: int = DRAWS, utility: Utility = MEAN_DICE) -> Resampled:
    """The values of every seed that has all coalitions that ``values`` takes, resampled over test patients.

    Every site's cases are drawn with replacement, the same in all seeds and for all coalitions, with the small-sample
    correction; a site with one case takes deviations of the others' patients. A case counts by the mean over its
    labels. The utility of the empty coalition is 0, or for a distance the largest measured.

    Args:
        results: of a folder of trained coalitions.
        values: of one game; `BadInput` if a coalition is missing.
        draws: of the patients.
        utility: of the coalitions' models.

    Raises:
        BadInput: no seed is complete.
    """
    cases = _cases(results, utility)
    sites, games, halved, seeds, why = results.sites, [], [], [], "none is trained"
    counts, halves = resampled_case_counts(cases, draws, "test patients"), _halves(cases)
    single = all(number == 1 for number in _numbers(cases).values())
    for seed, rows in cases.groupby(level="seed"):
        try:
            of_seed = rows.droplevel("seed")
            games.append(values(_game(of_seed, resampled_means(of_seed, counts), utility)))
            halved.append(values(_game(of_seed, _means(of_seed, halves), utility)))
            seeds.append(int(str(seed)))
        except BadInput as error:
            why = f"seed {seed}: {error}"
    if not games:
        raise BadInput(f"no seed has all coalitions ({why}); the command that trained them trains what is missing")
    split = np.stack(halved)
    return Resampled(sites, seeds, np.stack(games), split.reshape(*split.shape[:2], 2, -1), single)


def _cases(results: Results, utility: Utility) -> pd.DataFrame:
    """Of each case, the mean over labels: ``(seed, coalition)`` x ``(site, case)``."""
    coalition_results = results.rows[results.rows["coalition"] != ""]
    there = [name for name in utility.quantities if (coalition_results["quantity"] == name).any()]
    if not there:
        raise BadInput(f"no {utility.quantities[0]} of trained coalitions; `fedmerit value shapley` records it")
    trained = coalition_results[coalition_results["quantity"] == there[0]]
    means = utility.sign * trained.groupby(["seed", "coalition", "site", "case"])["value"].mean()
    return pd.DataFrame(means.unstack(["site", "case"])).sort_index(axis=1)


def resampled_case_counts(cases: pd.DataFrame, draws: int, what: str) -> FloatArray:
    """(cases, 1 + draws) how often each case counts: once, then as sampled within its site, by ``what``."""
    columns = []
    for site, number in cases.columns.get_level_values("site").value_counts(sort=False).items():
        random = np.random.default_rng(random_seed(what, site))
        columns.append(bootstrap_counts(number, draws, random).T)
    return np.concatenate(columns)


def _halves(cases: pd.DataFrame) -> FloatArray:
    """(cases, 2 h) 1 if a case is in the half: h random splits, first the first halves, then the second ones."""
    columns = []
    for site, number in cases.columns.get_level_values("site").value_counts(sort=False).items():
        random = np.random.default_rng(random_seed("halves", site))
        first = np.argsort(random.random((number, HALVES)), axis=0) < number // 2
        columns.append(np.concatenate([first, ~first], axis=1))
    return np.concatenate(columns).astype(np.float64)


def _numbers(cases: pd.DataFrame) -> dict[str, int]:
    """How many cases each site has, sites sorted."""
    numbers = cases.columns.get_level_values("site").value_counts().sort_index()
    return {str(site): int(number) for site, number in numbers.items()}


def _means(rows: pd.DataFrame, counts: FloatArray) -> FloatArray:
    """(sites, coalitions, D) means of each site's cases as often as they count; NaN if no case of a site counts."""
    known = np.isfinite(rows.to_numpy(dtype=np.float64))
    filled = np.where(known, rows.to_numpy(dtype=np.float64), 0.0)
    tested = rows.columns.get_level_values("site").to_numpy()
    of_sites = []
    for site in sorted(set(tested)):
        own = tested == site
        amounts = known[:, own] @ counts[own]
        of_sites.append((filled[:, own] @ counts[own]) / np.where(amounts > 0, amounts, np.nan))
    return np.stack(of_sites)


def resampled_means(rows: pd.DataFrame, counts: FloatArray) -> FloatArray:
    """Likewise, as observed and bootstrap resampled, small-sample corrected.

    A site with one patient takes, in each sample, the deviation of one patient of another site; if all sites have one
    patient, every sample is NaN.

    Args:
        rows: of models (rows): the means over labels of cases ``(site, case)``, sorted.
        counts: (cases, D) as `resampled_case_counts` of them.
    """
    means, numbers = _means(rows, counts), _numbers(rows)
    deviations = [
        (rows[site].to_numpy(dtype=np.float64) - means[place, :, :1]) * np.sqrt(number / (number - 1))
        for place, (site, number) in enumerate(numbers.items())
        if number > 1
    ]
    if not deviations:
        means[..., 1:] = np.nan
        return means
    lent = np.nan_to_num(np.concatenate(deviations, axis=1))
    for place, (site, number) in enumerate(numbers.items()):
        if number > 1:
            means[place] = correct_small_sample(means[place], number)
        else:
            drawn = np.random.default_rng(random_seed("lent patients", site))
            means[place, :, 1:] += lent[:, drawn.integers(lent.shape[1], size=means.shape[-1] - 1)]
    return means


def _game(rows: pd.DataFrame, of_sites: FloatArray, utility: Utility) -> dict[Coalition, FloatArray]:
    """Utilities (D,) of the coalition of each row, by its means at the sites."""
    utilities = utility.over(of_sites)
    nobody = np.zeros(utilities.shape[1]) if utility.sign > 0 else np.fmin.reduce(utilities, axis=0)
    game = {semivalues.parse_coalition(str(text)): utilities[row] for row, text in enumerate(rows.index)}
    return {EMPTY_COALITION: nobody, **game}


def pairs(n: int) -> tuple[Sequence[int], Sequence[int]]:
    """Every two of n sites."""
    first, second = np.triu_indices(n, k=1)
    return first.tolist(), second.tolist()
