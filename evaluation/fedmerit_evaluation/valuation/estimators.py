"""Estimators of the values of sites from one run: the contract, the built-in ones, and where plugins are found.

The simplest use only what every run records: the method's own contributions, and the number of images. The others use
evaluations of coalitions' models by the sites; `fedmerit.contract.observers` says which models.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedmerit.contract.semivalues import FloatArray, format_coalitions
from fedmerit.errors import BadInput
from fedmerit.plugins import Catalogue
from fedmerit.schema.declarations import Checked, parse_spec
from fedmerit.schema.rules import About, Choice, Count
from fedmerit_evaluation.ground_truth.shapley_approximations import shapley_or_regression
from fedmerit_evaluation.results.runs import declares_estimates
from fedmerit_evaluation.statistics.resampling import nan_mean
from fedmerit_evaluation.valuation.observed_run import ObservedRun, RoundGame

SHAPLEY, LEAVE_ONE_OUT = "shapley", "leave_one_out"
ALL, OTHERS = "all", "others"


class Estimator(Checked):
    """An estimate of the values of the sites from one run."""

    about: ClassVar[str]  # one line of description
    observes: ClassVar[str] = ""  # the observer that it needs; "": none
    in_dice: ClassVar[bool] = False  # whether its values are fractions of Dice, else of a unit of its own

    def values(self, run: ObservedRun) -> FloatArray:
        """Return (n, D) values by site name, higher is better, as observed and in D - 1 bootstrap samples.

        Values that do not depend on evaluated models are the same in all samples.

        Raises:
            BadInput: the run lacks what the estimator needs.
        """
        raise NotImplementedError

    @property
    def needs_standalone(self) -> bool:
        """Whether it can be estimated only on local-only training, as its observer says."""
        from fedmerit.schema.configuration.requirements import parse_observer  # loads PyTorch, which a report needs not

        return bool(self.observes) and parse_observer(self.observes).needs_standalone

    def require_few(self, sites: int, where: object) -> None:
        """Raise `BadInput`, which begins with ``where``, if so many sites are too many."""

    def rests_on_training(self, run: ObservedRun) -> bool:
        """Return whether values could be others by chance in training; if not, such as counts, they are not tested."""
        return bool(self.observes)


@dataclass(frozen=True)
class OwnContribution(Estimator):
    """The mean of each site's contribution by the run's method, over all rounds in which any site has one.

    A round without the site, or in which it did not work by the guard, counts as 0: nobody is paid by its best rounds.
    """

    about: ClassVar[str] = "contribution by the run's own method, mean over rounds; 0 in those without the site"

    def values(self, run: ObservedRun) -> FloatArray:
        """Return (n, D) contributions in the method's units; rounds are resampled. NaN: the site never has one."""
        rounds = run.results.rounds
        known = rounds.of("contribution").reindex(columns=run.sites).notna()
        if not known.any(axis=None):
            raise BadInput(f"{run.path}: its method {run.info['method']} makes no estimate of contributions")
        credited = rounds.credited("contribution").reindex(columns=run.sites)[known.any(axis=1)].fillna(0.0)
        counts = run.round_counts(len(known))[known.any(axis=1).to_numpy()]  # (T, D)
        drawn, totals = credited.to_numpy(dtype=np.float64).T @ counts, counts.sum(axis=0)
        means = np.where(totals > 0, drawn / np.where(totals > 0, totals, 1.0), credited.mean().to_numpy()[:, None])
        return np.where(known.any().to_numpy()[:, None], means, np.nan)

    def rests_on_training(self, run: ObservedRun) -> bool:
        """Return whether the method declares that it estimates contributions: shares of images do not."""
        return declares_estimates(run.info)


@dataclass(frozen=True)
class DataSize(Estimator):
    """The number of training images, n_i."""

    about: ClassVar[str] = "training images"

    def values(self, run: ObservedRun) -> FloatArray:
        """Return (n, D) counts."""
        return np.repeat(run.num_samples[:, None], run.count, axis=1)


def shapley_matrix(game: RoundGame, sites: Sequence[str]) -> FloatArray:
    """Return (n, n, D) Shapley values of row for the Dice at column; 0 in the rows of sites that were absent."""
    return place_values(shapley_or_regression(game.utilities, game.players), game, sites)


def leave_one_out_matrix(game: RoundGame, sites: Sequence[str], lacking: int = 0) -> FloatArray:
    """Return (n, n, D) losses of the Dice at column without row; 0 if nothing is left without it.

    Args:
        game: of a round.
        sites: n names; rows of sites that were absent are 0.
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
    dice = game.utilities[grand]
    lost = [dice - game.utilities.get(grand - {site}, dice) for site in game.players]
    return place_values(np.stack(lost), game, sites)


MATRICES: Mapping[str, Callable[[RoundGame, Sequence[str]], FloatArray]] = {
    SHAPLEY: shapley_matrix,
    LEAVE_ONE_OUT: leave_one_out_matrix,
}


def place_values(values: FloatArray, game: RoundGame, sites: Sequence[str]) -> FloatArray:
    """Return the values of the round's players in rows of all sites; a reward group divides its player's value."""
    if unknown := sorted(set(game.players) - set(sites)):
        raise BadInput(f"round {game.round}: {', '.join(unknown)} is not among the run's sites {', '.join(sites)}")
    result = np.zeros((len(sites), *values.shape[1:]))
    for player, value in zip(game.players, values, strict=True):
        for site, part in game.parts.get(player, {player: 1.0}).items():
            result[sites.index(site)] = part * value
    return result


def own_patient_mask(game: RoundGame, sites: Sequence[str]) -> NDArray[np.bool_]:
    """Return (n, n) whether the patients at column are those of the site at row, or of its reward group."""
    mask = np.eye(len(sites), dtype=bool)
    for group in game.parts.values():
        places = [sites.index(site) for site in group]
        mask[np.ix_(places, places)] = True
    return mask


def mean_over_testers(matrix: FloatArray, voice: str, own: NDArray[np.bool_]) -> FloatArray:
    """Return the (n, D) mean of (n, n, D) over the sites that tested: all, or all except a row's own."""
    if voice == OTHERS:
        matrix = np.where(own[:, :, None], np.nan, matrix)
    return nan_mean(matrix, axis=1)


@dataclass(frozen=True)
class CoalitionValues(Estimator):
    """The values of games of evaluated coalitions."""

    kind: Annotated[str, Choice(tuple(MATRICES)), About("of each game")] = SHAPLEY
    voice: Annotated[str, Choice((ALL, OTHERS)), About("patients that count; others: not a site's own")] = ALL

    in_dice: ClassVar[bool] = True

    def of_games(self, games: Sequence[RoundGame], sites: Sequence[str]) -> FloatArray:
        """Return (T, n, D) the values in each of T games, mean over the sites that tested."""
        matrices = (MATRICES[self.kind](game, sites) for game in games)
        masks = (own_patient_mask(game, sites) for game in games)
        return np.stack(
            [mean_over_testers(matrix, self.voice, own) for matrix, own in zip(matrices, masks, strict=True)]
        )


@dataclass(frozen=True)
class MultiRoundValues(CoalitionValues):
    """The sum over rounds Σ_t φ_i(v_t), by linearity the Shapley value of Σ_t v_t (Wang et al. 2020)."""

    last: Annotated[int, Count(), About("rounds that count, the last ones observed; 0: all")] = 0
    weigh: Annotated[
        str,
        Choice(("alike", "progress", "level")),
        About("rounds; progress: by what the round gained, 0 where nothing; level: by the Dice it began with"),
    ] = "alike"

    about: ClassVar[str] = (
        "multi-round reconstruction (MR, Song et al. 2019): values of each round's mixtures of updates, summed"
    )
    observes: ClassVar[str] = "multi_round"

    def values(self, run: ObservedRun) -> FloatArray:
        """Return (n, D) points of Dice gained, fractions."""
        games = last_games(run, self.observes, self.last)
        weights = np.stack([game.counts for game in games]) * self._weights(games)  # (T, D)
        return sum_rounds(self.of_games(games, run.sites), weights)

    def _weights(self, games: Sequence[RoundGame]) -> FloatArray:
        """Return (T, D) weights of mean 1 over rounds."""
        if self.weigh == "alike":
            return np.ones((len(games), 1))
        nobody = np.stack([game.on_average(frozenset()) for game in games])
        everyone = np.stack([game.on_average(frozenset(game.players)) for game in games])
        amounts = np.maximum(everyone - nobody, 0) if self.weigh == "progress" else nobody
        mean = amounts.mean(axis=0)
        return np.asarray(amounts / np.where(mean > 0, mean, 1.0))


@dataclass(frozen=True)
class LocalOnlyValues(Estimator):
    """The Dice v({i}) of the local-only model of a site, the first marginal of every permutation that it begins."""

    voice: Annotated[str, Choice((ALL, OTHERS)), About("patients that count; others: not a site's own")] = ALL
    copies: Annotated[
        str, Choice(("share", "apart")), About("sites with the same training images; share: one site's value")
    ] = "share"

    about: ClassVar[str] = "Dice of each site's local-only model on all sites' patients"
    observes: ClassVar[str] = "local_only"
    in_dice: ClassVar[bool] = True

    def values(self, run: ObservedRun) -> FloatArray:
        """Return (n, D) Dice, fractions."""
        game = run.games(self.observes)[-1]
        dice = local_only_dice(game, run.sites)
        reached = mean_over_testers(dice, self.voice, own_patient_mask(game, run.sites))
        return reached / run.holders[:, None] if self.copies == "share" else reached


def local_only_dice(game: RoundGame, sites: Sequence[str]) -> FloatArray:
    """Return (n, n, D) Dice of the local-only model of row at column; 0 of a site that was absent, as it has none."""
    is_tested = np.isfinite(np.stack([*game.utilities.values()])).any(axis=0)
    absent = np.where(is_tested, 0.0, np.nan)
    return np.stack([game.utilities.get(frozenset([site]), absent) for site in sites])


@dataclass(frozen=True)
class InnovationValues(Estimator):
    """The sum over rounds of a site's part of what updates add beyond the server's forecast, on others' patients.

    Source: `fedmerit.contract.innovation`. A site is paid for no patient of its own: voice=others.
    """

    voice: Annotated[str, Choice((ALL, OTHERS)), About("patients that count; others: not a site's own")] = OTHERS

    about: ClassVar[str] = "what updates add beyond the server's forecast of them, summed over rounds"
    observes: ClassVar[str] = "innovation"
    in_dice: ClassVar[bool] = True

    def values(self, run: ObservedRun) -> FloatArray:
        """Return (n, D) points of soft Dice, fractions; negative ones stay."""
        games = run.games(self.observes)
        parts = [self._divide_gain(game, run.sites) for game in games]
        return sum_rounds(np.stack(parts), np.stack([game.counts for game in games]))

    def _divide_gain(self, game: RoundGame, sites: Sequence[str]) -> FloatArray:
        """Return (n, D) what each site has of a round's gain."""
        import torch  # a report needs it not

        from fedmerit.contract.innovation import divide_gain

        nobody, everyone = frozenset[str](), frozenset(game.players)
        added = np.stack([game.utilities[frozenset([site])] - game.utilities[nobody] for site in game.players])
        own = own_patient_mask(game, sites)
        additions = mean_over_testers(place_values(added, game, sites), self.voice, own)
        gain = torch.from_numpy(game.on_average(everyone) - game.on_average(nobody))
        return np.asarray(additions * divide_gain(torch.from_numpy(np.nan_to_num(additions)), gain).numpy())


@dataclass(frozen=True)
class CoverageValues(Estimator):
    """An estimator by the game w(S), the mean over testing sites of the Dice of the best local-only model in S."""

    kind: Annotated[str, Choice((SHAPLEY, LEAVE_ONE_OUT)), About("of the game")] = SHAPLEY
    voice: Annotated[str, Choice((ALL, OTHERS)), About("patients that count; others: not a site's own")] = ALL

    about: ClassVar[str] = "coverage: value in the game of the best local-only model for each site's patients"
    observes: ClassVar[str] = LocalOnlyValues.observes
    in_dice: ClassVar[bool] = True

    def values(self, run: ObservedRun) -> FloatArray:
        """Return (n, D) points of Dice, fractions."""
        game = run.games(self.observes)[-1]
        dice = local_only_dice(game, run.sites)
        return mean_over_testers(coverage_matrix(dice, self.kind), self.voice, own_patient_mask(game, run.sites))


def coverage_matrix(dice: FloatArray, kind: str = SHAPLEY) -> FloatArray:
    """Return (n, n, D) values of row in the game w(S) = max_{i∈S} Dice of i at column, w(∅) = 0.

    Leave-one-out values are what column would lose without row: the lead of its best model. In Shapley values a step
    from one model to the next better one is shared by all that reach it (Littlechild and Owen, A simple expression for
    the Shapley value in a special case, 1973).

    Args:
        dice: (n, n, D) of the local-only model of row at column; NaN: did not test.
        kind: of value.
    """
    order = dice.argsort(axis=0, kind="stable")
    steps = np.diff(np.take_along_axis(dice, order, axis=0), axis=0, prepend=0.0)
    if kind == LEAVE_ONE_OUT:
        steps[:-1] *= 0.0  # NaN stays
        ranked = steps
    else:
        ranked = np.cumsum(steps / np.arange(len(dice), 0, -1)[:, None, None], axis=0)
    values = np.empty_like(ranked)
    np.put_along_axis(values, order, ranked, axis=0)
    return values


def benefit_matrix(run: ObservedRun) -> FloatArray:
    """Return (n, n) Σ_t of `shapley_matrix`, as observed; 0 for rounds in which the site of a column did not test."""
    parts = np.stack([shapley_matrix(game, run.sites)[..., 0] for game in run.games(MultiRoundValues.observes)])
    return sum_rounds(parts, np.ones((len(parts), 1)))


def efficiency_gap(run: ObservedRun) -> float:
    """Return the total gain in Dice minus Σ_t [v_t(N) - v_t(∅)], a fraction of Dice: what multi-round values miss.

    Σ_t [v_{t+1}(∅) - v_t(N)] over consecutive observed rounds; 0 if the method weighs by images and every round is
    observed.
    """
    games = run.games(MultiRoundValues.observes)
    began = [float(game.on_average(frozenset())[0]) for game in games]
    ended = [float(game.on_average(frozenset(game.players))[0]) for game in games]
    return sum(after - before for after, before in zip(began[1:], ended[:-1], strict=True))


def last_games(run: ObservedRun, observer: str, number: int) -> list[RoundGame]:
    """Return the games of the last observed rounds; 0: all. If they are a part, only these are resampled."""
    games = run.games(observer)
    last = games[-number:]
    if len(last) == len(games):
        return games
    return [replace(game, counts=counts) for game, counts in zip(last, run.round_counts(len(last)), strict=True)]


def sum_rounds(parts: FloatArray, weights: FloatArray) -> FloatArray:
    """Return (n, D) sums of parts (T, n, D) by weights (T, D); rounds without a test count as 0.

    NaN if no round has one.
    """
    is_tested = np.isfinite(parts)
    sums = (np.where(is_tested, parts, 0.0) * weights[:, None]).sum(axis=0)
    return np.where(is_tested.any(axis=0), sums, np.nan)


ESTIMATORS: Mapping[str, type[Estimator]] = {
    "multi_round": MultiRoundValues,
    "local_only": LocalOnlyValues,
    "coverage": CoverageValues,
    "contribution": OwnContribution,
    "data_size": DataSize,
    "innovation": InnovationValues,
}


@cache
def estimators() -> Catalogue[type[Estimator]]:
    """Return the estimators by name, built-in ones and plugins."""
    return Catalogue(
        "estimators",
        ESTIMATORS,
        lambda part: isinstance(part, type) and issubclass(part, Estimator),
        "a frozen dataclass derived from fedmerit_evaluation.valuation.estimators.Estimator",
    )


def parse(spec: str) -> Estimator:
    """Return the estimator of a spec such as ``multi_round:voice=others``; `BadInput` if there is none."""
    estimator: Estimator = parse_spec(spec, estimators(), "--estimators")
    return estimator


def parse_all(specs: Sequence[str]) -> dict[str, Estimator]:
    """Return the estimators by spec; `BadInput` if one is given twice."""
    by_spec = {spec: parse(spec) for spec in specs}
    if len(by_spec) < len(specs):
        raise BadInput(f"--estimators {','.join(specs)}: name each once")
    return by_spec
