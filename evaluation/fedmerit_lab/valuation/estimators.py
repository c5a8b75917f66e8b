"""Further estimators of values: of the laboratory's observers, Beta-Shapley values, coverage; names: pyproject.toml."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln

from fedmerit.contract.semivalues import FloatArray, Weights, semivalue
from fedmerit.schema.rules import About, Choice, Count, Number
from fedmerit_evaluation.valuation.estimators import (
    ALL,
    LEAVE_ONE_OUT,
    OTHERS,
    SHAPLEY,
    CoalitionValues,
    Estimator,
    LocalOnlyValues,
    MultiRoundValues,
    last_games,
    leave_one_out_matrix,
    mean_over_testers,
    own_patient_mask,
    place_values,
    sum_rounds,
)  # fmt: skip
from fedmerit_evaluation.valuation.observed_run import ObservedRun


def beta_weights(alpha: float, beta: float) -> Weights:
    """Return the weights of Beta-Shapley (Kwon and Zou 2022): B(s + β, n - 1 - s + α) / B(α, β) for s others.

    Large α puts weight on small coalitions, large β on large ones; α = β = 1 is the Shapley value.
    """

    def weights(n: int) -> FloatArray:
        sizes = np.arange(n)
        return np.asarray(np.exp(betaln(sizes + beta, n - 1 - sizes + alpha) - betaln(alpha, beta)))

    return weights


@dataclass(frozen=True)
class BetaShapleyValues(Estimator):
    """An estimator by Beta(α, β)-Shapley values of each round's game, summed over rounds."""

    alpha: Annotated[float, Number(above=0), About("weight on small coalitions")] = 4.0
    beta: Annotated[float, Number(above=0), About("weight on large coalitions")] = 1.0
    voice: Annotated[str, Choice((ALL, OTHERS)), About("patients that count; others: not a site's own")] = ALL

    about: ClassVar[str] = "Beta-Shapley values (Kwon and Zou 2022) of each round's mixtures of updates, summed"
    observes: ClassVar[str] = MultiRoundValues.observes
    in_dice: ClassVar[bool] = True

    def values(self, run: ObservedRun) -> FloatArray:
        """Return (n, D) points of Dice gained, fractions; raise `fedmerit.errors.BadInput` if a coalition lacks."""
        games, weights = run.games(self.observes), beta_weights(self.alpha, self.beta)
        parts = [
            mean_over_testers(
                place_values(semivalue(game.utilities, weights, game.players), game, run.sites),
                self.voice,
                own_patient_mask(game, run.sites),
            )
            for game in games
        ]
        return sum_rounds(np.stack(parts), np.stack([game.counts for game in games]))


@dataclass(frozen=True)
class OneRoundValues(CoalitionValues):
    """An estimator by models as if only coalitions' members had sent updates (OR, Song et al. 2019)."""

    over: Annotated[str, Choice(("last", "mean")), About("evaluations that count; mean: of all")] = "last"

    about: ClassVar[str] = (
        "one-round reconstruction (OR, Song et al. 2019): values of coalitions' models rebuilt from the updates"
    )
    observes: ClassVar[str] = "one_round"

    def values(self, run: ObservedRun) -> FloatArray:
        """Return (n, D) points of Dice, fractions."""
        games = run.games(self.observes)
        return np.asarray(self.of_games(games[-1:] if self.over == "last" else games, run.sites).mean(axis=0))


@dataclass(frozen=True)
class LeaveOneOutLossValues(Estimator):
    """An estimator by Σ_t Σ_{j≠i} q_j [E_j(w^{-i}) - E_j(w)], E = 1 - Dice, q_j shares of images of the others."""

    last: Annotated[int, Count(), About("rounds that count, the last ones observed; 0: all")] = 0

    about: ClassVar[str] = "loss of the others' Dice by the new model without the site, summed over rounds"
    observes: ClassVar[str] = "leave_one_out_loss"
    in_dice: ClassVar[bool] = True

    def values(self, run: ObservedRun) -> FloatArray:
        """Return (n, D) fractions of Dice."""
        games = last_games(run, self.observes, self.last)
        losses = [
            leave_one_out_losses(
                leave_one_out_matrix(game, run.sites, lacking=1), run.num_samples, own_patient_mask(game, run.sites)
            )
            for game in games
        ]
        return sum_rounds(np.stack(losses), np.stack([game.counts for game in games]))


def leave_one_out_losses(lost: FloatArray, num_samples: FloatArray, own: NDArray[np.bool_]) -> FloatArray:
    """Return (n, D) losses, mean by images over the sites that tested.

    Args:
        lost: (n, n, D) loss at column without row; NaN: did not test.
        num_samples: (n,) training images.
        own: (n, n) the testers that do not count for a row.
    """
    shares = np.where(own, 0.0, num_samples[None, :])[:, :, None]
    shares = np.where(np.isfinite(lost), shares, 0.0)
    totals = shares.sum(axis=1)
    sums = (shares * np.where(np.isfinite(lost), lost, 0.0)).sum(axis=1)
    return np.asarray(sums / np.where(totals > 0, totals, np.nan))


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
        dice = np.stack([game.utilities[frozenset([site])] for site in run.sites])
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
