"""The models that sites train alone, which the others evaluate, too: what each site is worth by itself.

v({i}), of every i. Of a game that is all that n trainings of one site each tell, together the work of one training of
all: Σ_i n_i images a round.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedmerit.capabilities.candidates import Candidates
from fedmerit.parameters import parameter
from fedmerit.values.observing import Observation, Observer, RoundView, State


@dataclass(frozen=True)
class Alone(Observer):
    """The model of each site, every so many rounds or in the end."""

    every: int = parameter(0, "rounds from one evaluation to the next; 0: in the end alone", low=0)

    about: ClassVar[str] = "each site's own model, of a run of standalone"
    of_lone_sites: ClassVar[bool] = True

    def most_models(self, sites: int) -> int:
        """One a site."""
        return sites

    def observe(self, state: State, view: RoundView) -> tuple[State, Observation | None]:
        """As the module says; the model of a site that is not here, with the BatchNorm statistics it received."""
        if not view.due(self.every):
            return state, None
        each = torch.eye(len(view.updates), dtype=torch.float64)
        trained = each * view.reports.present
        return state, Observation(Candidates(view.ended, each, trained, received=each), each.bool())
