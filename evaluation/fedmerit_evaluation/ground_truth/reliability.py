"""Reliability of ground-truth values: spread over seeds and patients, noise ceiling.

A value by retraining is itself an estimate: another seed, or other test patients, would have given another. The
correlation of a perfect estimator with it is at most the root of its reliability, the share of its variance over sites
that is not noise (Spearman 1904, The proof and measurement of association between two things). That is the
noise ceiling, which every table of agreement shows.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import harmonic_mean
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import f, nct, norm, t

from fedmerit.errors import BadInput
from fedmerit.schema.results import read_results
from fedmerit.seeds import random_seed
from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.ground_truth import semivalues
from fedmerit_evaluation.ground_truth.semivalues import (
    EMPTY_COALITION,
    EXACT,
    LEAVE_ONE_OUT,
    SHAPLEY,
    Coalition,
    FloatArray,
    Weights,
    coefficients,
)
from fedmerit_evaluation.results.views import Results, name_patients
from fedmerit_evaluation.statistics.inference import (
    MIN_CASES,
    MIN_FOLDS,
    SIGNIFICANCE_LEVEL,
    Estimate,
    SampleSize,
    degrees_of_freedom,
    fold_overlap,
)
from fedmerit_evaluation.statistics.ranks import Ranking, ranking
from fedmerit_evaluation.statistics.resampling import StudentDraws, nan_mean

DRAWS = 500
POINTS = 100.0
PATIENT, FOLD = "patient", "fold"
Values = Callable[[Mapping[Coalition, FloatArray]], FloatArray]  # a game of (...) utilities to (n, ...) values


@dataclass(frozen=True, eq=False)
class Resampled:
    """Values of n sites by s seeds, as observed and with the test patients drawn."""

    sites: list[str]
    seeds: list[int]
    values: FloatArray  # (s, n, D), fractions of Dice; the first is as observed
    patients: FloatArray  # (s, n, P) standard error that each of all P patients, or folds, adds; NaN: a site's only one
    fewest: int = MIN_CASES  # test patients of the site with the fewest, of any seed
    folds: int = 0  # that are drawn in place of patients; 0: patients are
    of_folds: FloatArray | None = None  # (F, n) values by the patients of one fold, mean over seeds; None: of seeds

    @property
    def ranking(self) -> Ranking:
        """Ranks of the values, fractions of Dice; of folds over these only, as they differ by seed, too."""
        return ranking(self.sites, self.drawn, sample=self.sample, folds=self.folds)

    @property
    def sample(self) -> SampleSize:
        """What the values rest on."""
        return SampleSize(self.fewest, len(self.seeds), folds=self.folds)

    @property
    def drawn(self) -> FloatArray:
        """The values that are drawn, (s, n, D); over folds (1, n, D), means over seeds."""
        return self.values.mean(axis=0, keepdims=True) if self.folds else self.values

    @property
    def mean(self) -> FloatArray:
        """(n,) over seeds."""
        return np.asarray(self.values[..., 0].mean(axis=0))

    @property
    def repeats(self) -> FloatArray:
        """(s, n) as observed, of single seeds or, where these are drawn, of single folds."""
        return self.values[..., 0] if self.of_folds is None else self.of_folds

    @property
    def seed_variance(self) -> FloatArray:
        """(n,) variance over seeds; NaN with one seed, and over folds, which have it in theirs."""
        if len(self.seeds) < 2 or self.folds:
            return np.full(len(self.sites), np.nan)
        return np.asarray(self.values[..., 0].var(axis=0, ddof=1))

    @property
    def patient_variance(self) -> FloatArray:
        """(n,) variance of the mean over seeds, over patients; NaN if a site has a single one."""
        return np.asarray((self.patients.mean(axis=0) ** 2).sum(axis=-1))

    @property
    def standard_errors(self) -> FloatArray:
        """(n,) of the means, over seeds and patients; with one seed only over patients."""
        of_seeds = np.nan_to_num(self.seed_variance) / len(self.seeds)
        return np.asarray(np.sqrt(of_seeds + self.patient_variance))

    @cached_property
    def _variances(self) -> tuple[float, float, float]:
        """Of the mean over seeds: variance over sites; noise in it, by patients and by seeds, centred over sites.

        What all sites share, such as an easy sample of patients, changes no correlation.
        """
        observed, patients = (one - one.mean(axis=1, keepdims=True) for one in (self.values[..., 0], self.patients))
        n, s = len(self.sites), len(self.seeds)
        of_patients = float((patients.mean(axis=0) ** 2).sum(axis=-1).sum()) / (n - 1)
        of_seeds = float(observed.var(axis=0, ddof=1).sum()) / (n - 1) / s if s > 1 and not self.folds else 0.0
        return float(observed.mean(axis=0).var(ddof=1)), of_patients, of_seeds

    @property
    def error_variance(self) -> float:
        """Of the mean over seeds, mean over sites, centred over sites."""
        _, of_patients, of_seeds = self._variances
        return of_patients + of_seeds

    def _reliability(self, quantile: float | None) -> float:
        """1 - noise / variance over sites, 0 to 1, or an end of its CI; NaN for single patients or a single site."""
        n, s = len(self.sites), len(self.seeds)
        if n < 2:
            return np.nan
        between, of_patients, of_seeds = self._variances
        noise, factor = of_patients + of_seeds, 1.0
        if quantile is not None and noise > 0:
            free = self.folds - 1 if self.folds else max(self.patients.shape[-1] - n, 1)
            freedom = noise**2 / (of_patients**2 / free + of_seeds**2 / max((s - 1) * (n - 1), 1))
            factor = float(f.ppf(1 - quantile, n - 1, freedom))
        return float(np.clip(1 - factor * noise / between, 0, 1)) if between > 0 else 0.0

    @property
    def reliability(self) -> float:
        """Share of the variance over sites that is not estimation noise, 0 to 1; NaN for single patients."""
        return self._reliability(None)

    @property
    def noise_ceiling(self) -> Estimate:
        """Expected correlation of a perfect estimator with these values, 0 to 1: the root of the reliability.

        Its 95 % CI is that of an intraclass correlation (Shrout and Fleiss 1979), the degrees of freedom of the noise
        by Satterthwaite: values of sites are taken for normal, patients and seeds for independent.
        """
        return Estimate(*(float(np.sqrt(self._reliability(end))) for end in (None, 0.025, 0.975)))

    @property
    def single_seed_noise_ceiling(self) -> Estimate:
        """Likewise with the values of single seeds, mean over seeds; with one seed the same as `noise_ceiling`."""
        observed = self.values[..., 0]
        of_a_seed = float(observed.var(axis=1, ddof=1).mean()) if len(self.sites) > 1 else 0.0
        if of_a_seed <= 0:
            return Estimate(0.0)
        ratio = float(observed.mean(axis=0).var(ddof=1)) / of_a_seed
        ends = (self._reliability(end) * ratio for end in (None, 0.025, 0.975))
        return Estimate(*(float(np.sqrt(min(one, 1.0))) for one in ends))


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


def resample(
    results: Results, values: Values, draws: int = DRAWS, utility: Utility = MEAN_DICE, by_fold: bool = True
) -> Resampled:
    """The values of every seed that has all coalitions that ``values`` takes, resampled over test patients or folds.

    Every site's patients are drawn, the same in all seeds and for all coalitions (`drawn_means`). A case counts by the
    mean over its labels. The utility of the empty coalition is 0, or for a distance the largest measured.

    Args:
        results: of a folder of trained coalitions.
        values: of one game; `BadInput` if a coalition is missing.
        utility: of the coalitions' models.
        by_fold: whether folds are drawn, if there are `MIN_FOLDS` or more.

    Raises:
        BadInput: no seed is complete.
    """
    cases, patients, folds = _cases(results, utility, by_fold)
    sites, games, moved, seeds, why = results.sites, [], [], [], "none is trained"
    for seed, rows in cases.groupby(level="seed"):
        try:
            of_seed = rows.droplevel("seed")
            games.append(values(_game(of_seed, drawn_means(of_seed, draws, "test patients"), utility)))
            with_one_moved = values(_game(of_seed, _moved_means(of_seed), utility))
            moved.append(with_one_moved[..., 1:] - with_one_moved[..., :1])
            seeds.append(int(str(seed)))
        except BadInput as error:
            why = f"seed {seed}: {error}"
    if not games:
        raise BadInput(f"no seed has all coalitions ({why}); the command that trained them trains what is missing")
    of_folds = _values_of_folds(results, values, utility) if folds else None
    return Resampled(sites, seeds, np.stack(games), np.stack(moved), patients, folds, of_folds)


def _values_of_folds(results: Results, values: Values, utility: Utility) -> FloatArray:
    """(F, n) values by the patients of each fold, mean over seeds."""
    tested = results.rows[results.rows["case"] != ""]
    single = [resample(Results(own), values, 1, utility, by_fold=False) for _, own in tested.groupby("fold")]
    return np.stack([one.mean for one in single])


def _cases(results: Results, utility: Utility, by_fold: bool) -> tuple[pd.DataFrame, int, int]:
    """As `by_cluster`, ``(seed, coalition)`` in rows; the fewest patients of a site and seed; the folds, 0: none."""
    coalition_results = results.rows[results.rows["coalition"] != ""]
    there = [name for name in utility.quantities if (coalition_results["quantity"] == name).any()]
    if not there:
        raise BadInput(f"no {utility.quantities[0]} of trained coalitions; `fedmerit value shapley` records it")
    trained = coalition_results[coalition_results["quantity"] == there[0]]
    trained = trained.assign(value=utility.sign * trained["value"], patient=name_patients(trained))
    fewest = int(trained.groupby(["seed", "site"])["patient"].nunique().min())
    folds = trained["fold"].nunique() if by_fold and trained["fold"].nunique() >= MIN_FOLDS else 0
    return by_cluster(trained, ["seed", "coalition"], FOLD if folds else PATIENT), fewest, folds


def by_cluster(rows: pd.DataFrame, models: list[str], cluster: str) -> pd.DataFrame:
    """Dice of ``models`` in rows by site and `PATIENT`, or by site and `FOLD` in columns, sorted.

    A site's n cases, each the mean over its labels, in k clusters: x̄ + k/n Σ (x - x̄) over the cases of the cluster.
    So the columns' mean is that of the cases, and their spread that of independent clusters (linearised ratio; Cochran
    1977, Sampling Techniques, chapter 6); a case that is a patient of its own keeps its Dice.
    """
    cases = rows.groupby([*models, "site", cluster, "case"])["value"].mean().dropna()
    of_site = cases.groupby([*models, "site"])
    mean = of_site.transform("mean")
    table = pd.DataFrame({"mean": mean, "distance": (cases - mean) / of_site.transform("size")})
    clusters = table.groupby([*models, "site", cluster]).agg({"mean": "first", "distance": "sum"})
    number = clusters.groupby([*models, "site"])["mean"].transform("size")
    return pd.DataFrame((clusters["mean"] + number * clusters["distance"]).unstack(["site", cluster])).sort_index(
        axis=1
    )


def _by_site(rows: pd.DataFrame) -> Iterator[tuple[str, NDArray[np.bool_], FloatArray]]:
    """The sites, sorted: the name, which columns are its patients or folds, and these (rows, columns)."""
    tested = rows.columns.get_level_values("site").to_numpy()
    for site in sorted(set(tested)):
        yield str(site), tested == site, rows.to_numpy(dtype=np.float64)[:, tested == site]


def drawn_means(rows: pd.DataFrame, draws: int, what: str) -> FloatArray:
    """(sites, models, 1 + D) each site's mean over its patients or folds, as observed and drawn by `StudentDraws`.

    If a site has only one, every draw is NaN: nothing is known of how they vary.

    Args:
        rows: as `by_cluster` gives them. Folds get the same draws at all sites.
        what: the draws are of; the same word gives a site with as many patients the same draws.
    """
    of_sites, single = [], False
    for site, _, own in _by_site(rows):
        random = np.random.default_rng(random_seed(what, "" if FOLD in rows.columns.names else site))
        drawn = StudentDraws.random(own.shape[1], draws, random)
        of_sites.append(nan_mean(own, axis=1)[:, None] + np.insert(drawn.deviations(own), 0, 0.0, axis=1))
        single |= int(np.isfinite(own).any(axis=0).sum()) == 1
    means = np.stack(of_sites)
    means[..., 1:] = np.nan if single else means[..., 1:]
    return means


def _moved_means(rows: pd.DataFrame) -> FloatArray:
    """(sites, models, 1 + P) means; of each of all P patients with its site's moved by (x - x̄) / √(n (n - 1)).

    The squares of these moves add up to the squared standard error of a site's mean of n patients, as of the jackknife
    (Efron and Tibshirani 1993, chapter 11); NaN for a single one. A fold moves all sites at once.
    """
    shared = FOLD in rows.columns.names
    place = pd.factorize(rows.columns.get_level_values(FOLD))[0] if shared else np.arange(rows.shape[1])
    of_sites = []
    for _, there, own in _by_site(rows):
        means, known = nan_mean(own, axis=1)[:, None], np.isfinite(own).sum(axis=1, keepdims=True)
        moves = np.zeros((len(own), 2 + int(place.max())))
        root = np.sqrt(np.where(known > 1, known * (known - 1), np.nan))
        moves[:, 1 + place[there]] = np.nan_to_num(own - means) / root
        of_sites.append(means + moves)
    return np.stack(of_sites)


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


POWER = 0.8


@dataclass(frozen=True)
class Variances:
    """Variances of the difference of two sites' values, mean over pairs, squared fractions of Dice."""

    seed: float  # of one seed
    patient: float  # of one test patient a site
    round: float = 0.0  # of one round, if values are estimated in a run
    patients: float = 1.0  # per site in the pilot, harmonic mean
    sites: int = 2  # that are compared
    reference: str = field(default="", compare=False)  # leave-one-out or Shapley values of the pilot

    @property
    def mean_patient_variance(self) -> float:
        """Of the pilot's patients."""
        return self.patient / self.patients

    def with_overrides(self, **stated: float | int) -> "Variances":
        """With some of them replaced."""
        numbers: dict[str, Any] = stated
        return replace(self, **numbers)


def significance_factor(sites: int, seeds: int) -> float:
    """How many times half of its CI a difference of two ``sites`` has to be, to be significant among all pairs."""
    pairs = sites * (sites - 1) // 2
    of_all, of_one = t.ppf(1 - SIGNIFICANCE_LEVEL / 2 / np.array([pairs, 1]), degrees_of_freedom(seeds))
    return float(of_all / of_one)


def detectable_standard_errors(seeds: float = math.inf, factor: float = 1.0) -> float:
    """k: the MDD in standard errors, if these are estimated from that many seeds; NaN with one seed.

    For a difference of ``factor`` times half of its two-sided 95 % CI, with `POWER`; with infinitely many seeds the
    standard error is known.
    """
    level = 1 - SIGNIFICANCE_LEVEL / 2
    if math.isinf(seeds):
        return float(factor * norm.ppf(level) + norm.ppf(POWER))
    if seeds < 2:
        return math.nan
    critical = factor * float(t.ppf(level, seeds - 1))
    return float(brentq(lambda shift: nct.sf(critical, seeds - 1, shift) - POWER, 0, 3 * critical))


def minimum_detectable_difference(
    seeds: int, of_seeds: float, patients: float, of_patients: float, of_rounds: float = 0.0, sites: int = 2
) -> float:
    """MDD of two of the ``sites`` from the variances of their difference, in the unit of their roots.

    Args:
        seeds: number of them.
        of_seeds: variance of the mean over seeds.
        patients: number at each of the two.
        of_patients: variance of the mean over patients.
        of_rounds: further variance.
        sites: that are compared.
    """
    factor = significance_factor(sites, seeds)
    over_seeds = detectable_standard_errors(seeds, factor) ** 2 * of_seeds if of_seeds else 0.0
    over_patients = detectable_standard_errors(patients, factor) ** 2 * of_patients
    return math.sqrt(over_seeds + over_patients + detectable_standard_errors(factor=factor) ** 2 * of_rounds)


def estimate_variances(one: Resampled, patients: float = 1.0) -> Variances:
    """Variances of resampled values, tested on ``patients`` per site; that of seeds is 0 of one seed or of folds."""
    first, second = pairs(len(one.sites))
    values, moved = (every[:, first] - every[:, second] for every in (one.values[..., 0], one.patients))  # (s, pairs)
    of_patients = float((moved.mean(axis=0) ** 2).sum(axis=-1).mean())
    of_seeds = float(values.var(axis=0, ddof=1).mean()) if len(one.seeds) > 1 and not one.folds else 0.0
    return Variances(of_seeds, of_patients * patients, patients=patients, sites=len(one.sites))


def pilot_variances(folder: Path) -> Variances:
    """Variances of Shapley values if a folder of trained coalitions has two seeds, else of leave-one-out values.

    Raises:
        BadInput: it has neither, or only one seed, or a site with one test patient.
    """
    results = Results(read_results(folder))
    found = dict[str, Resampled]()
    with suppress(BadInput):  # it takes more coalitions than leave-one-out
        found[SHAPLEY] = resample(results, semivalue_function(EXACT[SHAPLEY]), by_fold=False)
    if SHAPLEY not in found or len(found[SHAPLEY].seeds) < 2:
        found[LEAVE_ONE_OUT] = resample(results, semivalue_function(EXACT[LEAVE_ONE_OUT]), by_fold=False)
    reference, one = max(found.items(), key=lambda item: len(item[1].seeds))
    if one.values.shape[1] != len(one.sites):
        raise BadInput(f"--pilot {folder}: has values of other sites than took part; train its coalitions again")
    if len(one.seeds) < 2:
        raise BadInput(f"--pilot {folder}: has only one seed; train a second, or give --seed-sd and --patient-sd")
    if np.isnan(one.patients).any():
        raise BadInput(
            f"--pilot {folder}: has a site with only one test patient; test on more of them, or give --seed-sd and "
            "--patient-sd instead"
        )
    tested = results.rows[(results.rows["coalition"] != "") & (results.rows["quantity"] == "dice")]
    # the variance of a mean over sites goes by the mean of 1 / patients, hence the harmonic mean
    of_pilot = estimate_variances(one, harmonic_mean(name_patients(tested).groupby(tested["site"]).nunique().tolist()))
    return replace(of_pilot, reference=reference)


def power_table(variances: Variances, patients: Sequence[int], seeds: Sequence[int], rounds: int) -> Table:
    """Minimum detectable difference of two values, by patients per site (rows) and seeds (columns)."""
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


def _detectable(one: Resampled, variances: Variances) -> float:
    """MDD of two sites' values; NaN if the sample is insufficient. Folds have the seeds in them."""
    if one.sample.insufficient_data:
        return math.nan
    seeds = one.folds or len(one.seeds)
    return fold_overlap(one.folds) * minimum_detectable_difference(
        seeds, variances.seed / seeds, one.folds or one.fewest, variances.mean_patient_variance, sites=len(one.sites)
    )


def reliability_table(of: Mapping[str, Resampled]) -> Table:
    """Reliability of each ground truth, noise ceiling, mean standard error, MDD."""
    rows = []
    for name, one in of.items():
        variances = estimate_variances(one)
        rows.append(
            {
                "Ground truth": name,
                "Seeds": len(one.seeds),
                "Reliability": one.reliability,
                "Noise ceiling": one.noise_ceiling.mean,
                "Mean standard error [points]": POINTS * float(one.standard_errors.mean()),
                "MDD [points]": POINTS * _detectable(one, variances),
            }
        )
    caption = (
        "Reliability of the ground truth: share of the variance over sites that is not noise; noise ceiling, its root: "
        "expected correlation of a perfect estimator, over the same sites [95 % CI]; MDD: minimum detectable "
        "difference of two sites among all"
    )
    if any(len(one.seeds) < 2 and not one.folds for one in of.values()):
        caption += "; with one seed the variation over seeds is unknown, so all numbers are too optimistic"
    frame = pd.DataFrame(rows)
    low, high = (
        pd.DataFrame({"Noise ceiling": [getattr(one.noise_ceiling, end) for one in of.values()]})
        for end in ("low", "high")
    )
    return Table("reliability", caption, frame, decimals=2, low=low, high=high)
