"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.

FedAvg with a term of a site's loss that keeps its model near the one that it received.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedmerit.capabilities import LocalResult, TrainingView, TrainsLocally, towards
from fedmerit.core import About, Needs
from fedmerit.methods.fedavg import FedAvg
from fedmerit.parameters import parameter


@dataclass(frozen=True)
class FedProx(FedAvg, TrainsLocally):
    """The server half is FedAvg's. With μ = 0, so is the other."""

    mu: float = parameter(1e-3, "μ, of the term that keeps a site's model near the one received", low=0)

    needs: ClassVar[Needs] = Needs()
    about: ClassVar[About] = About(
        contribution="share of training images",
        weights="share of training images",
        download="global model",
        site_work="training, held near the global model",
        paper="Li et al. 2020, FedProx",
    )

    def train(self, view: TrainingView) -> LocalResult:
        """Minimise F_i(w) + μ/2 ‖w - w_t‖² (Eq. 2, Li et al. 2020) over the trainable parameters."""
        return LocalResult(view.train(view.received, penalty=towards(view.received, self.mu)))
