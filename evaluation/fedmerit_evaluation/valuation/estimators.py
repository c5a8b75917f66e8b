"""The contract of an estimator of values: a frozen dataclass of parameters and one function of a run; and the simplest.

The simplest estimators use only what every run records: the method's own contributions, and the number of images.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedmerit.contract.semivalues import FloatArray, format_coalitions
from fedmerit.errors import BadInput
from fedmerit.plugins import Catalogue
from fedmerit.schema.declarations import Checked, parameter, parse_spec
from fedmerit_evaluation.ground_truth.shapley_approximations import shapley_or_regression
from fedmerit_evaluation.statistics.resampling import nan_mean
from fedmerit_evaluation.valuation.observed_run import ObservedRun, RoundGame

ROUNDING = 1e-6  # of the largest contribution per image


class Estimator(Checked):
    """An estimate of the values of the sites from one run."""

    about: ClassVar[str]  # one line of description
    observes: ClassVar[str] = ""  # the observer that it needs; "": none
    in_dice: ClassVar[bool] = False  # whether its values are fractions of Dice, else of its own unit

    def values(self, run: ObservedRun) -> FloatArray:
        """(n, D) values by site name, higher is better, as observed and in D - 1 bootstrap samples.

        Values that do not depend on evaluated models are the same in all samples.

        Raises:
            BadInput: the run lacks what it needs.
        """
        raise NotImplementedError

    def rests_on_training(self, run: ObservedRun) -> bool:
        """Whether values could be others by chance in training; if not, such as counts, they are not tested."""
        return bool(self.observes)


@dataclass(frozen=True)
class OwnContribution(Estimator):
    """Mean over rounds of each site's contribution by the run's method."""

    about: ClassVar[str] = "contribution by the run's own method, mean over rounds"

    def values(self, run: ObservedRun) -> FloatArray:
        """(n, D) in the method's units; rounds are resampled."""
        table = run.results.rounds.of("contribution").droplevel(["method", "seed"]).reindex(columns=run.sites)
        if table.isna().all(axis=None):
            raise BadInput(f"{run.path}: its method {run.info['method']} makes no estimate of contributions")
        recorded = table.to_numpy(dtype=np.float64)  # (T, n)
        counts = run.round_counts(len(recorded))  # (T, D)
        known = np.isfinite(recorded)
        totals = known.T.astype(np.float64) @ counts
        sums = np.where(known, recorded, 0.0).T @ counts
        drawn = sums / np.where(totals > 0, totals, np.nan)
        return np.where(np.isfinite(drawn), drawn, nan_mean(recorded, axis=0)[:, None])

    def rests_on_training(self, run: ObservedRun) -> bool:
        """Whether it is no multiple of the sites' training images, as FedAvg's is in every round."""
        rounds = run.results.rounds
        ratio = rounds.of("contribution") / rounds.of("num_samples")
        return not bool((ratio.max(axis=1) - ratio.min(axis=1) <= ROUNDING * ratio.max(axis=1)).all())


@dataclass(frozen=True)
class DataSize(Estimator):
    """n_i."""

    about: ClassVar[str] = "training images"

    def values(self, run: ObservedRun) -> FloatArray:
        """(n, D) counts."""
        return np.repeat(run.num_samples[:, None], run.count, axis=1)


SHAPLEY, LEAVE_ONE_OUT = "shapley", "leave_one_out"
ALL, OTHERS = "all", "others"


def shapley_matrix(game: RoundGame, sites: Sequence[str]) -> FloatArray:
    """(n, n, D) Shapley values of row for the Dice at column; 0 in the rows of sites that took no part in the round."""
    return _placed(shapley_or_regression(game.utilities, game.players), game, sites)


def leave_one_out_matrix(game: RoundGame, sites: Sequence[str], lacking: int = 0) -> FloatArray:
    """(n, n, D) loss of the Dice at column without row, likewise; 0 if nothing is left without it.

    Args:
        lacking: number of players without which there may be no model: 1 that has all the weight.

    Raises:
        BadInput: a necessary model was not evaluated.
    """
    grand = frozenset(game.players)
    missing = [rest for rest in (grand - {site} for site in game.players) if rest not in game.utilities]
    if grand not in game.utilities or len(missing) > (lacking if len(grand) > 1 else 1):
        raise BadInput(
            f"round {game.round}: {format_coalitions(missing or [grand])}: not evaluated; leave-one-out needs "
            "the models of all and without each, so observe 2 n + 2 coalitions of n sites or more (most=)"
        )
    whole = game.utilities[grand]
    lost = [whole - game.utilities.get(grand - {site}, whole) for site in game.players]
    return _placed(np.stack(lost), game, sites)


MATRICES: Mapping[str, Callable[[RoundGame, Sequence[str]], FloatArray]] = {
    SHAPLEY: shapley_matrix,
    LEAVE_ONE_OUT: leave_one_out_matrix,
}


def own_patient_mask(game: RoundGame, sites: Sequence[str]) -> NDArray[np.bool_]:
    """(n, n) whether the patients at column are those of the site at row, or of its reward group."""
    own = np.eye(len(sites), dtype=bool)
    for group in game.parts.values():
        places = [sites.index(site) for site in group]
        own[np.ix_(places, places)] = True
    return own


def mean_over_testers(matrix: FloatArray, voice: str, own: NDArray[np.bool_]) -> FloatArray:
    """(n, D) mean of (n, n, D) over the sites that tested: all, or all except a row's own."""
    if voice == OTHERS:
        matrix = np.where(own[:, :, None], np.nan, matrix)
    return nan_mean(matrix, axis=1)


@dataclass(frozen=True)
class MultiRoundValues(Estimator):
    """Σ_t φ_i(v_t), by linearity the Shapley value of Σ_t v_t (Wang et al. 2020)."""

    kind: str = parameter(SHAPLEY, "of each round's game", choices=tuple(MATRICES))
    voice: str = parameter(ALL, "patients that count; others: not a site's own", choices=(ALL, OTHERS))
    last: int = parameter(0, "rounds that count, the last ones observed; 0: all", low=0)
    weigh: str = parameter(
        "alike",
        "rounds; progress: by what the round gained, 0 where nothing; level: by the Dice it began with",
        choices=("alike", "progress", "level"),
    )

    about: ClassVar[str] = (
        "multi-round reconstruction (MR, Song et al. 2019): values of each round's mixtures of updates, summed"
    )
    observes: ClassVar[str] = "multi_round"
    in_dice: ClassVar[bool] = True

    def values(self, run: ObservedRun) -> FloatArray:
        """(n, D) points of Dice gained, fractions."""
        games = _last(run, self.observes, self.last)
        parts = np.stack([_responding_sites(self.kind, game, run.sites, self.voice) for game in games])  # (T, n, D)
        weights = np.stack([game.counts for game in games]) * self._weights(games)  # (T, D)
        return _summed(parts, weights)

    def _weights(self, games: Sequence[RoundGame]) -> FloatArray:
        """(T, D), of mean 1 over rounds."""
        if self.weigh == "alike":
            return np.ones((len(games), 1))
        nobody = np.stack([game.on_average(frozenset()) for game in games])
        everyone = np.stack([game.on_average(frozenset(game.players)) for game in games])
        amounts = np.maximum(everyone - nobody, 0) if self.weigh == "progress" else nobody
        mean = amounts.mean(axis=0)
        return np.asarray(amounts / np.where(mean > 0, mean, 1.0))


@dataclass(frozen=True)
class OneRoundValues(Estimator):
    """Values of the models that coalitions would have if only their members had sent updates (OR, Song et al. 2019)."""

    kind: str = parameter(SHAPLEY, "of the reconstructed models' game", choices=tuple(MATRICES))
    voice: str = parameter(ALL, "patients that count; others: not a site's own", choices=(ALL, OTHERS))
    over: str = parameter("last", "evaluations that count; mean: of all", choices=("last", "mean"))

    about: ClassVar[str] = (
        "one-round reconstruction (OR, Song et al. 2019): values of coalitions' models rebuilt from the updates"
    )
    observes: ClassVar[str] = "one_round"
    in_dice: ClassVar[bool] = True

    def values(self, run: ObservedRun) -> FloatArray:
        """(n, D) points of Dice, fractions."""
        games = run.games(self.observes)
        chosen = games[-1:] if self.over == "last" else games
        return np.asarray(
            np.mean([_responding_sites(self.kind, game, run.sites, self.voice) for game in chosen], axis=0)
        )


@dataclass(frozen=True)
class LeaveOneOutLossValues(Estimator):
    """Σ_t Σ_{j≠i} q_j [E_j(w^{-i}) - E_j(w)], E = 1 - Dice, q_j the shares of images among the others."""

    last: int = parameter(0, "rounds that count, the last ones observed; 0: all", low=0)

    about: ClassVar[str] = "loss of the others' Dice by the new model without the site, summed over rounds"
    observes: ClassVar[str] = "leave_one_out_loss"
    in_dice: ClassVar[bool] = True

    def values(self, run: ObservedRun) -> FloatArray:
        """(n, D) fractions of Dice."""
        games = _last(run, self.observes, self.last)
        lost = [(leave_one_out_matrix(game, run.sites, lacking=1), own_patient_mask(game, run.sites)) for game in games]
        parts = np.stack([leave_one_out_losses(one, run.num_samples, own) for one, own in lost])
        return _summed(parts, np.stack([game.counts for game in games]))


def leave_one_out_losses(lost: FloatArray, num_samples: FloatArray, own: NDArray[np.bool_]) -> FloatArray:
    """(n, D) of (n, n, D) losses of column without row: mean by images over the sites that tested, not its ``own``."""
    shares = np.where(own, 0.0, num_samples[None, :])[:, :, None]
    shares = np.where(np.isfinite(lost), shares, 0.0)
    totals = shares.sum(axis=1)
    sums = (shares * np.where(np.isfinite(lost), lost, 0.0)).sum(axis=1)
    return np.asarray(sums / np.where(totals > 0, totals, np.nan))


@dataclass(frozen=True)
class LocalOnlyValues(Estimator):
    """v({i}): Dice of the local-only model of a site, the first marginal of every permutation that it begins."""

    voice: str = parameter(ALL, "patients that count; others: not a site's own", choices=(ALL, OTHERS))
    copies: str = parameter(
        "share", "sites with the same training images; share: one site's value", choices=("share", "apart")
    )

    about: ClassVar[str] = "Dice of each site's local-only model on all sites' patients"
    observes: ClassVar[str] = "local_only"
    in_dice: ClassVar[bool] = True

    def values(self, run: ObservedRun) -> FloatArray:
        """(n, D) Dice, fractions."""
        game = run.games(self.observes)[-1]
        of_each = np.stack([game.utilities[frozenset([site])] for site in run.sites])
        reached = mean_over_testers(of_each, self.voice, own_patient_mask(game, run.sites))
        return reached / run.holders[:, None] if self.copies == "share" else reached


def _responding_sites(kind: str, game: RoundGame, sites: Sequence[str], voice: str) -> FloatArray:
    return mean_over_testers(MATRICES[kind](game, sites), voice, own_patient_mask(game, sites))


def benefit_matrix(run: ObservedRun) -> FloatArray:
    """(n, n) Σ_t of `shapley_matrix`, as observed; 0 for rounds in which the site of a column did not test."""
    parts = np.stack([shapley_matrix(game, run.sites)[..., 0] for game in run.games(MultiRoundValues.observes)])
    return _summed(parts, np.ones((len(parts), 1)))


def efficiency_gap(run: ObservedRun) -> float:
    """Gap of multi-round values from efficiency: total gain in Dice minus Σ_t [v_t(N) - v_t(∅)], a fraction of Dice.

    Σ_t [v_{t+1}(∅) - v_t(N)] over consecutive observed rounds; 0 if the method weighs by images and every round is
    observed.
    """
    games = run.games(MultiRoundValues.observes)
    began = [float(game.on_average(frozenset())[0]) for game in games]
    ended = [float(game.on_average(frozenset(game.players))[0]) for game in games]
    return sum(after - before for after, before in zip(began[1:], ended[:-1], strict=True))


def _last(run: ObservedRun, observer: str, number: int) -> list[RoundGame]:
    """The last observed rounds; 0: all. If they are a part, only these are resampled."""
    games = run.games(observer)
    chosen = games[-number:]
    if len(chosen) == len(games):
        return games
    return [replace(game, counts=one) for game, one in zip(chosen, run.round_counts(len(chosen)), strict=True)]


def _summed(parts: FloatArray, weights: FloatArray) -> FloatArray:
    """(n, D) Σ_t of parts (T, n, D) by weights (T, D); rounds without a test count as 0.

    NaN if no round has one.
    """
    known = np.isfinite(parts)
    return np.where(known.any(axis=0), (np.where(known, parts, 0.0) * weights[:, None]).sum(axis=0), np.nan)


def _placed(values: FloatArray, game: RoundGame, sites: Sequence[str]) -> FloatArray:
    """Rows of the round's players among those of all sites; a reward group divides its player's value."""
    if unknown := sorted(set(game.players) - set(sites)):
        raise BadInput(f"round {game.round}: {', '.join(unknown)} is not among the run's sites {', '.join(sites)}")
    result = np.zeros((len(sites), *values.shape[1:]))
    for player, value in zip(game.players, values, strict=True):
        for site, part in game.parts.get(player, {player: 1.0}).items():
            result[sites.index(site)] = part * value
    return result


ESTIMATORS: Mapping[str, type[Estimator]] = {
    "multi_round": MultiRoundValues,
    "one_round": OneRoundValues,
    "leave_one_out_loss": LeaveOneOutLossValues,
    "local_only": LocalOnlyValues,
    "contribution": OwnContribution,
    "data_size": DataSize,
}


@cache
def estimators() -> Catalogue[type[Estimator]]:
    """By name, built-in ones and plugins."""
    return Catalogue(
        "estimators",
        ESTIMATORS,
        lambda part: isinstance(part, type) and issubclass(part, Estimator),
        "a frozen dataclass derived from fedmerit_evaluation.valuation.estimators.Estimator",
    )


def parse(spec: str) -> Estimator:
    """The estimator of a spec such as ``multi_round:voice=others``; `BadInput` if there is none."""
    estimator: Estimator = parse_spec(spec, estimators(), "--estimators")
    return estimator


def parse_all(specs: Sequence[str]) -> dict[str, Estimator]:
    """By spec; `BadInput` if one is given twice."""
    found = {spec: parse(spec) for spec in specs}
    if len(found) < len(specs):
        raise BadInput(f"--estimators {','.join(specs)}: name each once")
    return found
