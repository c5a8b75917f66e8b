"""Ditto: Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021.

Beside the global model every site trains one of its own, near the global one, which is its final model.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedmerit.capabilities import LocalResult, TrainingView, TrainsLocally, towards
from fedmerit.core import About, Needs
from fedmerit.methods.fedavg import FedAvg
from fedmerit.parameters import parameter


@dataclass(frozen=True)
class Ditto(FedAvg, TrainsLocally):
    """FedAvg, and v_i, which never leaves its site and which the site tests. It starts as the global model."""

    lambda_: float = parameter(0.1, "λ, of the term that keeps a site's own model near the global one", low=0)

    keeps_own_model: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs()
    about: ClassVar[About] = About(
        contribution="share of training images",
        weights="share of training images",
        download="global model; it keeps one of its own",
        site_work="training of two models, its own held near the global one",
        paper="Li et al. 2021, Ditto",
    )

    def train(self, view: TrainingView) -> LocalResult:
        """As FedAvg; then minimise F_i(v) + λ/2 ‖v - w_t‖² (Algorithm 1, Li et al. 2021) for as many epochs."""
        trained = view.train(view.received)
        start, statistics = view.own or (view.received, view.buffers)
        return LocalResult(trained, own=view.train(start, statistics, penalty=towards(view.received, self.lambda_)))
