"""What is observed of a run, so that what its sites are worth can be told: models that the sites evaluate.

n sites, d trainable parameters. An observer makes models of what a round gave; every site evaluates them on its
validation patients, and the Dice is written down. It changes nothing of the run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedmerit.capabilities.candidates import Candidates
from fedmerit.core import Reports
from fedmerit.parameters import Checked

State = Mapping[str, Tensor]  # what an observer remembers; it lies in the run's checkpoint


@dataclass(frozen=True)
class RoundView:
    """What the server holds when a round is aggregated."""

    round: int  # t
    rounds: int  # T, of the run
    began: Tensor  # (d,) w_t; (n, d) where sites train alone
    ended: Tensor  # w_{t+1}, likewise
    updates: Tensor  # (n, d) Δ_i, zero rows for absent sites
    weights: Tensor  # (n,) ρ_i of the aggregation
    reports: Reports

    def due(self, every: int) -> bool:
        """Whether the round is one of those that are ``every`` so many observed, the last among them; 0: that alone."""
        return self.round == self.rounds - 1 or (every > 0 and (self.rounds - 1 - self.round) % every == 0)


@dataclass(frozen=True)
class Observation:
    """k models to evaluate, and who stands behind each."""

    candidates: Candidates
    coalitions: Tensor  # (k, n) bool


class Observer(Checked):
    """The contract: a frozen dataclass of parameters and two pure functions."""

    about: ClassVar[str]  # one line: what is evaluated
    of_lone_sites: ClassVar[bool] = False  # whether it looks at sites that train alone, not at a model for all

    def most_models(self, sites: int) -> int:
        """How many models it has evaluated in a round at most, of a run of so many sites: a site's budget."""
        raise NotImplementedError

    def start(self, model: Tensor, num_sites: int) -> State:
        """What is remembered before round 0; ``model`` is (d,)."""
        return {}

    def observe(self, state: State, view: RoundView) -> tuple[State, Observation | None]:
        """After every round: what is remembered from now on, and what is to be evaluated; None: nothing this time."""
        raise NotImplementedError
