"""Further estimators of values: of the laboratory's observers, Beta-Shapley values; names: pyproject.toml."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln

from fedmerit.contract.semivalues import FloatArray, Weights, semivalue
from fedmerit.schema.rules import About, Choice, Count, Number
from fedmerit_evaluation.valuation.estimators import (
    ALL,
    OTHERS,
    CoalitionValues,
    Estimator,
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
