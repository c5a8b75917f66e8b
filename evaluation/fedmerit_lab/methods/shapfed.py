"""ShapFed: Tastan et al., Redefining Contributions: Shapley-Driven Federated Learning, IJCAI 2024.

A site's contribution to a class is the cosine of its update of the output layer, for that class, to the weighted sum
of all. Contributions, remembered, weigh the updates; and the more a site contributes, the nearer to the global
model is the one that it downloads.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedmerit.contract.games import cosine_values
from fedmerit.contract.method import Layout, Method, MethodSummary, Outcome, Reports, part_products
from fedmerit.contract.vectors import aggregate, cosine_to_sum, remember, share, to_sites
from fedmerit.schema.rules import About, Choice, Number


@dataclass(frozen=True)
class ShapFedState:
    """A state of ShapFed."""

    models: Tensor  # (n, d) one per site; (d,) with reward="global"
    gamma: Tensor  # (n,) γ of the last round; 0 before a site's first
    seen: Tensor  # (n,) bool: whether it took part before
    outputs: Tensor  # (labels, m) places in the vector of the output layer's parameters
    round: Tensor  # () rounds played: the seed of sampled permutations


@dataclass(frozen=True)
class ShapFed(Method):
    """A method with class-specific Shapley values (CSSV), weighted aggregation (ShapFed-WA), personal models.

    The value of a class is, as in the authors' code, the cosine of a site's update and the sum of all by share of
    images, in that class's parameters of the output layer: weights and bias of the last convolution, with heads for
    deep supervision those of the last one. A site's ψ is the mean over classes. A weight is not negative (theirs may
    be), and 1/n if no γ is positive. A personal model comes with its site's own BatchNorm statistics.
    Absent sites keep γ and model.
    """

    mu: Annotated[float, Number(0, 1), About("weight of the past in a site's contribution; its first counts whole")] = (
        0.9
    )
    contribution: Annotated[
        str,
        Choice(("cosine", "exact")),
        About("of a class, as released; or exact: Shapley values, 1 in sum over sites"),
    ] = "cosine"
    reward: Annotated[
        str, Choice(("personal", "global")), About("one model per site; or global: one for all (ShapFed-WA)")
    ] = "personal"
    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="cosine of its output layer's update to the weighted sum, or its Shapley value, mean over classes",
        weights="contribution, remembered",
        download="mean of its own and the global model, by contribution; or one global model",
        paper="Tastan et al. 2024",
    )

    @property
    def has_site_models(self) -> bool:
        """Whether each site has a model of its own: for every reward except one model for all."""
        return self.reward != "global"

    @property
    def sums_updates(self) -> bool:
        """Whether the reward is one model for all."""
        return self.reward == "global"

    def parts(self, state: ShapFedState) -> Tensor:
        """Return the output layer's parameters, class by class."""
        return state.outputs

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> ShapFedState:
        """Return the state before round 0 for ``model`` (d,); raise ValueError if it has no output layer to compare."""
        if not len(layout.outputs):
            raise ValueError("the network has no convolution that makes its logits, whose updates ShapFed compares")
        return ShapFedState(
            models=model if self.reward == "global" else model.repeat(num_sites, 1),
            gamma=torch.zeros(num_sites, dtype=torch.float64),
            seen=torch.zeros(num_sites, dtype=torch.bool),
            outputs=layout.outputs,
            round=torch.tensor(0),
        )

    def round(self, state: ShapFedState, updates: Tensor, reports: Reports) -> tuple[ShapFedState, Outcome]:
        """Return the models after a round: w_g = Σ γ̃_i w_i, w_i ← (1-γ_i) w_i + γ_i w_g; ``updates`` are (n, d)."""
        present, seed = reports.present, int(state.round)
        products = part_products(updates, reports, state.outputs)
        values = [self.class_values(of_class, reports, seed) for of_class in products]
        psi = torch.stack(values).mean(dim=0)  # NaN: absent

        gamma = remember(state.gamma, psi, self.mu, present & state.seen)
        gamma = torch.where(present & ~state.seen, psi, gamma)
        weights = share(gamma.clamp(min=0), present)  # γ̃

        trained = state.models + updates
        server = aggregate(torch.zeros_like(updates[0]), weights, trained)
        if self.reward == "global":
            models = server
        else:
            nearness = gamma.clamp(0, 1).to(updates.dtype)[:, None]
            models = torch.lerp(trained, server.expand_as(trained), nearness).where(present[:, None], state.models)
        state = ShapFedState(models, gamma, state.seen | present, state.outputs, state.round + 1)
        return state, Outcome(psi, gamma, weights, models)

    def class_values(self, products: Tensor, reports: Reports, seed: int) -> Tensor:
        """Return (n,) of one class; ``products`` (n, n) of the updates of its parameters; NaN for absent sites."""
        present = reports.present
        if self.contribution == "exact":
            values, _ = cosine_values(products, reports.data_share, seed, present)
            return values.where(present, torch.nan)
        return to_sites(cosine_to_sum(products[present][:, present], reports.data_share[present]), present)
