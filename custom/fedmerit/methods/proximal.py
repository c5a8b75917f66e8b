"""Methods that train near the global model: FedProx and Ditto.

- FedProx: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.
- Ditto: Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021. Beside the global
  model every site trains one of its own, near the global one, which is its final model.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fedmerit.contract.capabilities import LocalResult, TrainingView, TrainsLocally, towards
from fedmerit.contract.method import MethodSummary, Needs
from fedmerit.methods.fedavg import FedAvg
from fedmerit.schema.rules import About, Number


@dataclass(frozen=True)
class FedProx(FedAvg, TrainsLocally):
    """A FedAvg with a term of the loss that keeps a site's model near the one it received. With μ = 0 it is FedAvg."""

    mu: Annotated[float, Number(0), About("μ, of the term that keeps a site's model near the one received")] = 1e-3
    needs: ClassVar[Needs] = Needs()
    about: ClassVar[MethodSummary] = MethodSummary(
        site_work="training, held near the global model", paper="Li et al. 2020, FedProx"
    )

    def train(self, view: TrainingView) -> LocalResult:
        """Minimise F_i(w) + μ/2 ‖w - w_t‖² (Eq. 2, Li et al. 2020) over the trainable parameters."""
        return LocalResult(view.train(view.received, penalty=towards(view.received, self.mu)))


@dataclass(frozen=True)
class Ditto(FedAvg, TrainsLocally):
    """A FedAvg, and v_i, which never leaves its site and which the site tests. It starts as the global model."""

    lambda_: Annotated[float, Number(0), About("λ, of the term that keeps a site's own model near the global one")] = (
        0.1
    )
    keeps_own_model: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs()
    about: ClassVar[MethodSummary] = MethodSummary(
        download="global model; it keeps one of its own",
        site_work="training of two models, its own held near the global one",
        paper="Li et al. 2021, Ditto",
    )

    def train(self, view: TrainingView) -> LocalResult:
        """Train for FedAvg; then minimise F_i(v) + λ/2 ‖v - w_t‖² (Algorithm 1, Li et al. 2021) for as many epochs."""
        trained = view.train(view.received)
        start, statistics = view.own or (view.received, view.buffers)
        return LocalResult(trained, own=view.train(start, statistics, penalty=towards(view.received, self.lambda_)))
