"""FedMGDA+: Hu, Shaloudegi, Zhang and Yu, Federated Learning Meets Multi-objective Optimization, IEEE TNSE 2022.

The step is the shortest vector among mixtures of the sites' normalised updates whose weights stay near λ0
(arXiv 2006.11489, Algorithm 1): to first order a step that hurts no site, if the weights may go far enough.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedmerit.contract.method import GlobalModel, Method, MethodSummary, Outcome, Reports, inner_products
from fedmerit.contract.vectors import aggregate, norms, ratio
from fedmerit.schema.rules import About, Number

RIDGE = 1e-6  # so that equal updates get equal weights, of all that give the same step
TINY = 1e-13  # differences of weights or slopes up to this are rounding


@dataclass(frozen=True)
class FedMGDAPlus(Method):
    """A method with λ* = argmin ‖Σ λ_i Δ_i / ‖Δ_i‖‖² over λ on the simplex with ‖λ - λ0‖_∞ ≤ ε, λ0 shares of images.

    ε = 0 is FedAvg of normalised updates, ε = 1 is MGDA.
    """

    epsilon: Annotated[float, Number(0, 1), About("ε: how far a weight may be from the share of training images")] = 0.1
    eta: Annotated[
        float | None, Number(above=0), About("η, length of a step along normalised updates; None: Σ p_i ||Δ_i||")
    ] = None
    sums_updates: ClassVar[bool] = True
    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="its weight", weights="those of the shortest mixture of normalised updates", paper="Hu et al. 2022"
    )

    def round(self, state: GlobalModel, updates: Tensor, reports: Reports) -> tuple[Any, Outcome]:
        """Return w + η Σ λ*_i Δ_i / ‖Δ_i‖ of ``updates`` (n, d)."""
        products, prior = inner_products(updates, reports), reports.data_share
        lengths = norms(products)
        weights = torch.zeros_like(prior)
        cosines = ratio(products, lengths[:, None] * lengths)
        here = reports.present
        weights[here] = shortest_mixture(cosines[here][:, here], prior[here], self.epsilon)
        eta = float(prior @ lengths) if self.eta is None else self.eta
        model = aggregate(state.model, ratio(eta * weights, lengths), updates)
        return GlobalModel(model), Outcome.by_weights(weights, reports, model)


def shortest_mixture(products: Tensor, prior: Tensor, epsilon: float) -> Tensor:
    """Return the (k,) weights λ on the simplex with ‖λ - λ0‖_∞ ≤ ε that minimise ‖Σ λ_i v_i‖² + `RIDGE` ‖λ - λ0‖².

    A quadratic program, solved by the active-set method: of the weights, some are at a bound, and those of the others
    solve a linear system (Nocedal and Wright, Numerical Optimization, Algorithm 16.3).

    Args:
        products: (k, k) inner products of the vectors v_i, of unit length or zero.
        prior: (k,) λ0, on the simplex.
        epsilon: ε.
    """
    curvature = products + RIDGE * torch.eye(len(prior), dtype=prior.dtype)
    low, high = (prior - epsilon).clamp(min=0), (prior + epsilon).clamp(max=1)
    weights, free = prior.clone(), torch.ones(len(prior), dtype=torch.bool)
    while free.any():
        count = int(free.sum())
        system = torch.ones(count + 1, count + 1, dtype=prior.dtype)  # last column: the multiplier of Σ λ = 1
        system[:-1, :-1], system[-1, -1] = curvature[free][:, free], 0.0
        rest = curvature[free][:, ~free] @ weights[~free]
        right = torch.cat([RIDGE * prior[free] - rest, 1 - weights[~free].sum()[None]])
        solution = torch.linalg.solve(system, right)
        step = torch.zeros_like(weights)
        step[free] = solution[:-1] - weights[free]
        step[step.abs() < TINY] = 0.0
        bound = torch.where(step > 0, high, low)
        longest = torch.where(step != 0, (bound - weights) / step, torch.inf)
        first = int(longest.argmin())
        weights = weights + longest[first].clamp(max=1) * step
        if longest[first] < 1:
            weights[first], free[first] = bound[first], False
            continue
        slope = curvature @ weights - RIDGE * prior + solution[-1]  # 0 of the free ones
        gain = torch.where(weights == low, -slope, slope) * (~free & (low < high))
        if gain.max() <= TINY:
            break
        free[gain.argmax()] = True
    return weights
