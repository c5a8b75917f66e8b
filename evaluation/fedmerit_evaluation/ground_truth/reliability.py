"""Reliability of ground-truth values: spread over seeds and patients, noise ceiling, detectable differences.

A value by retraining is itself an estimate: another seed, or other test patients, would have given another. The
correlation of a perfect estimator with it is at most the root of its reliability, the share of its variance over sites
that is not noise (Spearman 1904, The proof and measurement of association between two things). That is the
noise ceiling, which every table of agreement shows.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import harmonic_mean
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import f

from fedmerit.contract import semivalues
from fedmerit.contract.semivalues import EMPTY_COALITION, EXACT, LEAVE_ONE_OUT, SHAPLEY, Coalition, FloatArray, Weights
from fedmerit.errors import BadInput
from fedmerit.schema.results import read_results
from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.results.views import Results, name_patients
from fedmerit_evaluation.statistics.inference import MIN_CASES, Estimate, SampleSize
from fedmerit_evaluation.statistics.ranks import Ranking, ranking
from fedmerit_evaluation.statistics.resampling import ENDS, CrossedEffects
from fedmerit_evaluation.statistics.sample_size import minimum_detectable_difference

DRAWS = 500
POINTS = 100.0
Values = Callable[[Mapping[Coalition, FloatArray]], FloatArray]  # a game of (...) utilities to (n, ...) values


@dataclass(frozen=True, eq=False)
class Resampled:
    """The values of n sites by s seeds, as observed and with the test patients drawn."""

    sites: list[str]
    seeds: list[int]
    values: FloatArray  # (s, n, D), fractions of Dice; the first is as observed
    patients: FloatArray  # (s, n, P) standard error that each of all P patients, or folds, adds; NaN: a site's only one
    fewest: int = MIN_CASES  # test patients of the site with the fewest, of any seed
    folds: int = 0  # that are drawn in place of patients; 0: patients are
    of_folds: FloatArray | None = None  # (F, n) values by the patients of each fold, mean over seeds; None: of seeds

    @property
    def ranking(self) -> Ranking:
        """The ranks of the values [fraction of Dice]; with folds over these only, as they differ by seed, too."""
        return ranking(self.sites, self.drawn, sample=self.sample, folds=self.folds)

    @property
    def sample(self) -> SampleSize:
        """The sample that the values rest on."""
        return SampleSize(self.fewest, len(self.seeds), folds=self.folds)

    @property
    def drawn(self) -> FloatArray:
        """(s, n, D) values that are drawn; with folds (1, n, D), means over seeds."""
        return self.values.mean(axis=0, keepdims=True) if self.folds else self.values

    @property
    def mean(self) -> FloatArray:
        """(n,) means over seeds."""
        return np.asarray(self.values[..., 0].mean(axis=0))

    @property
    def repeats(self) -> FloatArray:
        """(s, n) values as observed, of single seeds or, where these are drawn, of single folds."""
        return self.values[..., 0] if self.of_folds is None else self.of_folds

    @property
    def seed_variance(self) -> FloatArray:
        """(n,) variances over seeds; NaN with one seed, and with folds, which have it in theirs."""
        if len(self.seeds) < 2 or self.folds:
            return np.full(len(self.sites), np.nan)
        return np.asarray(self.values[..., 0].var(axis=0, ddof=1))

    @property
    def patient_variance(self) -> FloatArray:
        """(n,) variances of the mean over seeds, over patients; NaN if a site has a single one."""
        return np.asarray((self.patients.mean(axis=0) ** 2).sum(axis=-1))

    @property
    def standard_errors(self) -> FloatArray:
        """(n,) standard errors of the means, over seeds and patients; with one seed only over patients."""
        of_seeds = np.nan_to_num(self.seed_variance) / len(self.seeds)
        return np.asarray(np.sqrt(of_seeds + self.patient_variance))

    @cached_property
    def _variances(self) -> tuple[float, float, float]:
        """The variances of the mean over seeds: over sites; of the noise by patients and by seeds, centred over sites.

        What all sites share, such as an easy sample of patients, changes no correlation.
        """
        observed, patients = (part - part.mean(axis=1, keepdims=True) for part in (self.values[..., 0], self.patients))
        n, s = len(self.sites), len(self.seeds)
        of_patients = float((patients.mean(axis=0) ** 2).sum(axis=-1).sum()) / (n - 1)
        of_seeds = float(observed.var(axis=0, ddof=1).sum()) / (n - 1) / s if s > 1 and not self.folds else 0.0
        return float(observed.mean(axis=0).var(ddof=1)), of_patients, of_seeds

    @property
    def error_variance(self) -> float:
        """The error variance of the mean over seeds, mean over sites, centred over sites."""
        _, of_patients, of_seeds = self._variances
        return of_patients + of_seeds

    def _reliability(self, quantile: float | None) -> float:
        """Return 1 - noise / variance over sites, 0 to 1, or an end of its interval; NaN for single patients or sites.

        The interval is that of an intraclass correlation (Shrout and Fleiss 1979), the degrees of freedom of the noise
        by Satterthwaite: values of sites are taken for normal, patients and seeds for independent.
        """
        n, s = len(self.sites), len(self.seeds)
        if n < 2:
            return np.nan
        between, of_patients, of_seeds = self._variances
        noise, factor = of_patients + of_seeds, 1.0
        if quantile is not None and noise > 0:
            free = self._freedom_of_folds if self.folds else max(self.patients.shape[-1] - n, 1)
            freedom = noise**2 / (of_patients**2 / free + of_seeds**2 / max((s - 1) * (n - 1), 1))
            factor = float(f.ppf(1 - quantile, n - 1, freedom))
        return float(np.clip(1 - factor * noise / between, 0, 1)) if between > 0 else 0.0

    @property
    def _freedom_of_folds(self) -> float:
        """The degrees of freedom of the errors over F folds, F − 1 to (F − 1)(n − 1), by Satterthwaite 1946.

        Centred over n sites the errors have up to n − 1 directions, each with F − 1 degrees.
        """
        moves = self.patients.mean(axis=0)
        covariance = (moves - moves.mean(axis=0)) @ (moves - moves.mean(axis=0)).T
        squares = float((covariance**2).sum())
        return (self.folds - 1) * float(np.trace(covariance)) ** 2 / squares if squares > 0 else self.folds - 1.0

    @property
    def reliability(self) -> float:
        """The share of the variance over sites that is not estimation noise, 0 to 1; NaN for single patients."""
        return self._reliability(None)

    @property
    def noise_ceiling(self) -> Estimate:
        """The expected correlation of a perfect estimator with these values, 0 to 1: the root of the reliability."""
        return Estimate(*(float(np.sqrt(self._reliability(end))) for end in (None, *ENDS)))

    @property
    def single_seed_noise_ceiling(self) -> Estimate:
        """The noise ceiling of the values of single seeds, mean over seeds; with one seed the same as of the mean."""
        observed = self.values[..., 0]
        of_a_seed = float(observed.var(axis=1, ddof=1).mean()) if len(self.sites) > 1 else 0.0
        if of_a_seed <= 0:
            return Estimate(0.0)
        ratio = float(observed.mean(axis=0).var(ddof=1)) / of_a_seed
        ends = (self._reliability(end) * ratio for end in (None, *ENDS))
        return Estimate(*(float(np.sqrt(min(end, 1.0))) for end in ends))


def semivalue_function(weights: Weights) -> Values:
    """Return the function of a semivalue, which raises `BadInput` if a coalition is missing."""

    def values(game: Mapping[Coalition, FloatArray]) -> FloatArray:
        sites = semivalues.list_sites(game)
        if lacking := [one for one in semivalues.required_coalitions(sites, weights) if one not in game]:
            raise BadInput(f"{semivalues.format_coalitions(lacking)}: no utility")
        return semivalues.combine(game, semivalues.coefficients(sites, weights))

    return values


@dataclass(frozen=True)
class Utility:
    """The utility of a coalition's model, from the sites' means over cases: their mean, or the worst."""

    quantities: tuple[str, ...] = ("dice",)  # the first of them that is recorded
    sign: float = 1.0  # -1: lower is better
    worst: bool = False  # of the sites, instead of their mean

    def over(self, of_sites: FloatArray) -> FloatArray:
        """Return (D, coalitions) utilities by (D, coalitions, sites) means."""
        return np.asarray(of_sites.min(axis=-1) if self.worst else of_sites.mean(axis=-1))


UTILITIES: Mapping[str, Utility] = {
    "mean Dice": Utility(),
    "worst hospital's Dice": Utility(worst=True),
    "mean HD95": Utility(("hd95", "hd95_px"), -1.0),
}
MEAN_DICE = UTILITIES["mean Dice"]


def resample(
    results: Results, values: Values, draws: int = DRAWS, utility: Utility = MEAN_DICE, by_fold: bool = True
) -> Resampled:
    """Return the values of every complete seed, resampled over test patients or folds.

    Every site's patients are drawn, the same in all seeds and for all coalitions. A case counts by the mean over its
    labels. The utility of the empty coalition is 0, or for a distance the largest measured.

    Args:
        results: of a folder of trained coalitions.
        values: of one game; `BadInput` if a coalition is missing.
        draws: D - 1.
        utility: of the coalitions' models.
        by_fold: whether folds are drawn, if there are enough.

    Raises:
        BadInput: no seed has all coalitions that ``values`` takes, or the utility was not recorded.
    """
    dice = results.coalition_results.dice
    cases = {name: dice.quantity_cases(name) for name in utility.quantities}
    recorded = [table for table in cases.values() if not table.empty]
    if not recorded:
        raise BadInput(f"no {utility.quantities[0]} of trained coalitions; `fedmerit value shapley` records it")
    clusters = dice.clusters if by_fold else dice.patient_clusters
    effects = CrossedEffects.from_cases(utility.sign * recorded[0], clusters)
    games, moved, seeds, why = [], [], [], "none is trained"
    for number, seed in enumerate(effects.seeds):
        of_seed = effects.at_seed(number)
        try:
            games.append(values(_game(of_seed, of_seed.resample(draws, "test patients"), utility)))
            with_moves = values(_game(of_seed, of_seed.move_each(), utility))
            moved.append(with_moves[..., 1:] - with_moves[..., :1])
            seeds.append(seed)
        except BadInput as error:
            why = f"seed {seed}: {error}"
    if not games:
        raise BadInput(f"no seed has all coalitions ({why}); the command that trained them trains what is missing")
    by_folds = None
    if clusters.folds:
        tested = results.rows[results.rows["case"] != ""]
        single = [resample(Results(rows), values, 0, utility, by_fold=False) for _, rows in tested.groupby("fold")]
        by_folds = np.stack([fold.mean for fold in single])
    fewest = int(dice.patients.min())
    return Resampled(results.sites, seeds, np.stack(games), np.stack(moved), fewest, clusters.folds, by_folds)


def _game(effects: CrossedEffects, means: FloatArray, utility: Utility) -> dict[Coalition, FloatArray]:
    """Return the utilities (D,) of the coalitions of one seed, by (D, coalitions, 1, sites) means."""
    utilities = utility.over(means[:, :, 0]).T
    is_trained = np.asarray(np.isfinite(effects.means[:, 0]).any(axis=-1))
    nobody = np.zeros(len(means)) if utility.sign > 0 else np.fmin.reduce(utilities[is_trained], axis=0)
    coalitions = [semivalues.parse_coalition(text) for text in effects.methods]
    trained = zip(coalitions, utilities, is_trained, strict=True)
    return {EMPTY_COALITION: nobody, **{members: row for members, row, exists in trained if exists}}


@dataclass(frozen=True)
class Variances:
    """The variances of the difference of two sites' values, mean over pairs [squared fraction of Dice]."""

    seed: float  # of one seed
    patient: float  # of one test patient a site
    round: float = 0.0  # of one round, if values are estimated in a run
    patients: float = 1.0  # per site in the pilot, harmonic mean
    sites: int = 2  # that are compared
    reference: str = field(default="", compare=False)  # leave-one-out or Shapley values of the pilot

    def with_overrides(self, **stated: float | int) -> "Variances":
        """Return the variances with some of them replaced."""
        numbers: dict[str, Any] = stated
        return replace(self, **numbers)


def estimate_variances(values: Resampled, patients: float = 1.0) -> Variances:
    """Estimate the variances of resampled values, tested on ``patients`` per site.

    That over seeds is 0 with one seed or with folds.
    """
    first, second = np.triu_indices(len(values.sites), k=1)
    observed, moved = (part[:, first] - part[:, second] for part in (values.values[..., 0], values.patients))
    of_patients = float((moved.mean(axis=0) ** 2).sum(axis=-1).mean())
    of_seeds = float(observed.var(axis=0, ddof=1).mean()) if len(values.seeds) > 1 and not values.folds else 0.0
    return Variances(of_seeds, of_patients * patients, patients=patients, sites=len(values.sites))


def pilot_variances(folder: Path) -> Variances:
    """Return the variances of Shapley values if a folder of trained coalitions has two seeds, else of leave-one-out.

    Raises:
        BadInput: it has neither, or only one seed, or a site with one test patient.
    """
    results = Results(read_results(folder))
    found = dict[str, Resampled]()
    with suppress(BadInput):  # it takes more coalitions than leave-one-out
        found[SHAPLEY] = resample(results, semivalue_function(EXACT[SHAPLEY]), by_fold=False)
    if SHAPLEY not in found or len(found[SHAPLEY].seeds) < 2:
        found[LEAVE_ONE_OUT] = resample(results, semivalue_function(EXACT[LEAVE_ONE_OUT]), by_fold=False)
    reference, values = max(found.items(), key=lambda item: len(item[1].seeds))
    if values.values.shape[1] != len(values.sites):
        raise BadInput(f"--pilot {folder}: has values of other sites than took part; train its coalitions again")
    if len(values.seeds) < 2:
        raise BadInput(f"--pilot {folder}: has only one seed; train a second, or give --seed-sd and --patient-sd")
    if np.isnan(values.patients).any():
        raise BadInput(
            f"--pilot {folder}: has a site with only one test patient; test on more of them, or give --seed-sd and "
            "--patient-sd instead"
        )
    # the variance of a mean over sites goes by the mean of 1 / patients, hence the harmonic mean
    tested = results.coalition_results.dice.rows
    patients = name_patients(tested).groupby(tested["site"]).nunique()
    return replace(estimate_variances(values, harmonic_mean(patients.tolist())), reference=reference)


def power_table(variances: Variances, patients: Sequence[int], seeds: Sequence[int], rounds: int) -> Table:
    """Return the minimum detectable difference of two values, by patients per site (rows) and seeds (columns)."""
    of_rounds = variances.round / rounds
    columns: Mapping[str, list[float]] = {
        f"{number} seed{'s' * (number > 1)} [points]": [
            POINTS
            * minimum_detectable_difference(
                number, variances.seed / number, many, variances.patient / many, of_rounds / number, variances.sites
            )
            if many >= MIN_CASES
            else math.nan
            for many in patients
        ]
        for number in seeds
    }
    frame = pd.DataFrame({"Test patients per site": [str(many) for many in patients], **columns})
    sd = {name: POINTS * np.sqrt(getattr(variances, name)) for name in ("seed", "patient", "round")}
    spread = f"{sd['seed']:.2g} over seeds, {sd['patient']:.2g} over patients"
    spread += f", {sd['round']:.2g} over each of {rounds} rounds" if variances.round else ""
    caption = (
        f"Minimum detectable difference (MDD) between the values of two of {variances.sites} sites (5 % over all "
        f"pairs, two-sided, power 80 %; none with fewer than {MIN_CASES} patients); standard deviations of a "
        f"difference [points]: {spread}"
    )
    caption += f"; of {variances.reference} values" if variances.reference else ""
    if variances.seed and min(seeds) < 2:
        caption += "; with one seed the variation over seeds is unknown"
    return Table("power", caption, frame, decimals=1)


def reliability_table(references: Mapping[str, Resampled]) -> Table:
    """Return the reliability of each ground truth, its noise ceiling, mean standard error and MDD."""
    rows = [
        {
            "Ground truth": name,
            "Seeds": len(values.seeds),
            "Reliability": values.reliability,
            "Noise ceiling": values.noise_ceiling.mean,
            "Mean standard error [points]": POINTS * float(values.standard_errors.mean()),
            "MDD [points]": POINTS * _detectable_difference(values),
        }
        for name, values in references.items()
    ]
    caption = (
        "Reliability of the ground truth: share of the variance over sites that is not noise; noise ceiling, its root: "
        "expected correlation of a perfect estimator, over the same sites [95 % CI]; MDD: minimum detectable "
        "difference of two sites among all"
    )
    if any(len(values.seeds) < 2 and not values.folds for values in references.values()):
        caption += "; with one seed the variation over seeds is unknown, so all numbers are too optimistic"
    low, high = (
        pd.DataFrame({"Noise ceiling": [getattr(values.noise_ceiling, end) for values in references.values()]})
        for end in ("low", "high")
    )
    return Table("reliability", caption, pd.DataFrame(rows), decimals=2, low=low, high=high)


def _detectable_difference(values: Resampled) -> float:
    """Return the MDD of two sites' values; NaN if the sample is insufficient. Folds have the seeds in them."""
    if values.sample.insufficient_data:
        return math.nan
    variances, seeds = estimate_variances(values), values.folds or len(values.seeds)
    return minimum_detectable_difference(
        seeds, variances.seed / seeds, values.folds or values.fewest, variances.patient, sites=len(values.sites)
    )
