"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017.

Every site's update is weighted by its share of the training images.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedmerit.core import About, GlobalModel, Method, Needs, Outcome, Reports
from fedmerit.vectors import aggregate


@dataclass(frozen=True)
class FedAvg(Method):
    """Weights are sample shares of the sites present; so is the contribution it credits. Nothing is remembered."""

    needs: ClassVar[Needs] = Needs(sums_only=True)
    about: ClassVar[About] = About(paper="McMahan et al. 2017")

    def round(self, state: GlobalModel, updates: Tensor, reports: Reports) -> tuple[GlobalModel, Outcome]:
        """``updates`` (n, d): w ← w + Σ p_i Δ_i (Algorithm 1, McMahan et al. 2017)."""
        weights = reports.data_share
        model = aggregate(state.model, weights, updates)
        return GlobalModel(model), Outcome.by_weights(weights, reports, model)
