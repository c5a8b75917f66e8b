"""Methods that have models evaluated on the server validation set before a round ends."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedmerit.core import Reports


@dataclass(frozen=True)
class Candidates:
    """k models to evaluate, as mixtures of m vectors."""

    models: Tensor  # (m, d)
    mixtures: Tensor  # (k, m) float64, rows sum to 1: what is evaluated is ``mixtures @ models``
    shares: Tensor  # (k, n) float64: whose trained BatchNorm statistics, averaged; a row of 0: those sent out, as
    # `received` says
    bins: int = 0  # of the histogram of losses per image; 0: none is wanted
    received: Tensor | None = None  # (k, n) likewise of the statistics that sites received; None: the mean of all
    coalitions: bool = False  # whether they are all coalitions of the present sites, in the order of `games.shapley`


class EvaluatesCandidates:
    """The capability."""

    @property
    def loss_bins(self) -> int:
        """`Candidates.bins` of all that it asks for: a site makes no other histogram of losses."""
        return 0

    def candidates(self, state: Any, updates: Tensor, reports: Reports) -> Candidates | None:
        """What is to be evaluated before `Method.round`, whose arguments these are; None: nothing this time.

        `Reports.candidates` has the results then.
        """
        raise NotImplementedError

    def most_candidates(self, sites: int) -> int:
        """At most so many in a round, with ``sites`` of them: a site lets no more be evaluated."""
        return sites
