"""SiloBN: Andreux et al., Siloed Federated Learning for Multi-Centric Histopathology Datasets, DCL (MICCAI) 2020.

One global model, whose BatchNorm statistics are each site's own.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from fedmerit.core import About, GlobalModel, Needs, Outcome, Reports
from fedmerit.methods.fedavg import FedAvg


@dataclass(frozen=True)
class SiloBN(FedAvg):
    """FedAvg of all parameters, γ and β of norms included; running means and variances stay at the site."""

    needs: ClassVar[Needs] = Needs()
    own_statistics: ClassVar[bool] = True
    about: ClassVar[About] = About(
        download="global model, with its own BatchNorm statistics", paper="Andreux et al. 2020"
    )

    def round(self, state: GlobalModel, updates: Tensor, reports: Reports) -> tuple[GlobalModel, Outcome]:
        """``updates`` (n, d), as in FedAvg."""
        state, outcome = super().round(state, updates, reports)
        return state, replace(outcome, statistics="own")
