"""FedAvg, the methods that change one of its steps, and the references of every comparison: standalone and pooled.

- FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017.
- FedAvgM: Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification,
  2019; as in Reddi et al.
- FedAdam: Reddi et al., Adaptive Federated Optimization, ICLR 2021.
- FedBN: Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021.
- SiloBN: Andreux et al., Siloed Federated Learning for Multi-Centric Histopathology Datasets, DCL (MICCAI) 2020.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedmerit.contract.capabilities import PoolsImages
from fedmerit.contract.method import GlobalModel, Layout, Method, MethodSummary, Needs, Outcome, Reports, SiteModels
from fedmerit.contract.vectors import aggregate
from fedmerit.schema.rules import About, Number


@dataclass(frozen=True)
class FedAvg(Method):
    """A method whose weights are sample shares of the sites present; so is the contribution it credits.

    Nothing is remembered.
    """

    needs: ClassVar[Needs] = Needs(sums_only=True)
    sums_updates: ClassVar[bool] = True
    about: ClassVar[MethodSummary] = MethodSummary(paper="McMahan et al. 2017")

    def round(self, state: GlobalModel, updates: Tensor, reports: Reports) -> tuple[GlobalModel, Outcome]:
        """Aggregate ``updates`` (n, d): w ← w + Σ p_i Δ_i (Algorithm 1, McMahan et al. 2017)."""
        weights = reports.data_share
        model = aggregate(state.model, weights, updates)
        return GlobalModel(model), Outcome.by_weights(weights, reports, model)


@dataclass(frozen=True)
class Standalone(Method):
    """A local-only training, the reference of all fairness measures: each site's next model is its own trained one.

    So are its BatchNorm statistics. An absent site keeps what it has.
    """

    needs: ClassVar[Needs] = Needs(
        sites=1, unfiltered="no site gets anything of another's update, so a filter would only harm its own"
    )
    has_site_models: ClassVar[bool] = True
    sums_updates: ClassVar[bool] = True
    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="none", weights="none", download="own model", paper="baseline"
    )

    def round(self, state: SiteModels, updates: Tensor, reports: Reports) -> tuple[SiteModels, Outcome]:
        """Aggregate ``updates`` (n, d): w_i ← w_i + Δ_i. Contributions are 0; weights are sample shares."""
        models = state.models + updates
        return SiteModels(models), Outcome.without_credit(reports, models)


@dataclass(frozen=True)
class Pooled(FedAvg, PoolsImages):
    """A model trained on all sites' images in one place, the reference for federated training.

    All sites send the same update, so their FedAvg equals it. A round is an epoch over all images. One update says
    nothing of the sites' contributions: no site is credited.
    """

    needs: ClassVar[Needs] = Needs(sites=1, unfiltered="nothing leaves a site: one machine holds all images")
    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="none", site_work="one training on the images of all sites; only engine local", paper="baseline"
    )

    def round(self, state: GlobalModel, updates: Tensor, reports: Reports) -> tuple[GlobalModel, Outcome]:
        """Aggregate ``updates`` (n, d), all the same."""
        state, outcome = super().round(state, updates, reports)
        nothing = torch.zeros(len(updates), dtype=torch.float64)
        return state, replace(outcome, contribution=nothing.where(reports.present, torch.nan))


@dataclass(frozen=True)
class FedAvgMState:
    """The state of FedAvgM."""

    model: Tensor  # (d,)
    momentum: Tensor  # (d,) m


@dataclass(frozen=True)
class FedAvgM(Method):
    """The server follows the mean update, as a gradient, with momentum. With β = 0 it is FedAvg."""

    beta: Annotated[float, Number(0, below=1), About("β, weight of the past in the momentum")] = 0.9
    about: ClassVar[MethodSummary] = MethodSummary(paper="Hsu et al. 2019; Reddi et al. 2021")

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> FedAvgMState:
        """Return the state before round 0; ``model`` is (d,)."""
        return FedAvgMState(model, torch.zeros_like(model))

    def round(self, state: FedAvgMState, updates: Tensor, reports: Reports) -> tuple[FedAvgMState, Outcome]:
        """Aggregate ``updates`` (n, d): m ← β m + Σ p_i Δ_i, w ← w + m."""
        weights = reports.data_share
        momentum = aggregate(self.beta * state.momentum, weights, updates)
        model = state.model + momentum
        return FedAvgMState(model, momentum), Outcome.by_weights(weights, reports, model)


BETA1, BETA2 = 0.9, 0.99  # of FedAdam: weights of the past in the first and in the second moment


@dataclass(frozen=True)
class FedAdamState:
    """The state of FedAdam."""

    model: Tensor  # (d,)
    m: Tensor  # (d,) first moment of the mean updates
    v: Tensor  # (d,) float64, second moment


@dataclass(frozen=True)
class FedAdam(Method):
    """The Algorithm 2 of Reddi et al. 2021 (FedOpt), with Adam at the server: no bias correction, v starts at τ²."""

    eta: Annotated[float, Number(above=0), About("η, the server's step")] = 1e-2
    tau: Annotated[
        float, Number(above=0), About("τ, added to the root of the second moment: the larger, the less adaptive")
    ] = 1e-3
    about: ClassVar[MethodSummary] = MethodSummary(paper="Reddi et al. 2021")

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> FedAdamState:
        """Return the state before round 0; ``model`` is (d,)."""
        return FedAdamState(model, torch.zeros_like(model), torch.full_like(model, self.tau**2, dtype=torch.float64))

    def round(self, state: FedAdamState, updates: Tensor, reports: Reports) -> tuple[FedAdamState, Outcome]:
        """Aggregate ``updates`` (n, d).

        Δ = Σ p_i Δ_i, m ← β1 m + (1-β1) Δ, v ← β2 v + (1-β2) Δ², w ← w + η m / (√v + τ).
        """
        weights = reports.data_share
        mean = aggregate(torch.zeros_like(state.model), weights, updates)
        m = BETA1 * state.m + (1 - BETA1) * mean
        v = BETA2 * state.v + (1 - BETA2) * mean.double().square()
        model = state.model + (self.eta * m / (v.sqrt() + self.tau)).to(m.dtype)
        return FedAdamState(model, m, v), Outcome.by_weights(weights, reports, model)


@dataclass(frozen=True)
class FedBNState:
    """The state of FedBN."""

    models: Tensor  # (n, d) one per site, equal except in the norms
    norms: Tensor  # (d,) bool: the parameters of normalisation layers


@dataclass(frozen=True)
class FedBN(Method):
    """A FedAvg of all parameters except the norms (Algorithm 1, Li et al. 2021).

    The paper has only BatchNorm; here every norm with γ and β counts, also group norms and affine instance norms.
    Without norms it is FedAvg. An absent site keeps its norms and gets the rest. A site's norms enter no other model;
    they pass through the server, which has every site's model, and in the final test through the sites.
    """

    own_statistics: ClassVar[bool] = True
    has_site_models: ClassVar[bool] = True
    about: ClassVar[MethodSummary] = MethodSummary(
        download="global model, with its own norms and their statistics", paper="Li et al. 2021, FedBN"
    )

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> FedBNState:
        """Return the state before round 0; ``model`` is (d,)."""
        return FedBNState(model.repeat(num_sites, 1), layout.in_norms)

    def round(self, state: FedBNState, updates: Tensor, reports: Reports) -> tuple[FedBNState, Outcome]:
        """Aggregate ``updates`` (n, d): w ← w + Σ p_i Δ_i, in norms w_i ← w_i + Δ_i."""
        weights = reports.data_share
        averaged = aggregate(state.models[0], weights, updates)  # not used for norms
        models = torch.where(state.norms, state.models + updates, averaged)
        outcome = Outcome.by_weights(weights, reports, models, statistics="own")
        return FedBNState(models, state.norms), outcome

    def restart_from(self, state: FedBNState, models: Tensor) -> FedBNState:
        """Take the norms of ``models`` (n, d) for the sites; all other parameters stay those of all."""
        return replace(state, models=torch.where(state.norms, models, state.models))


@dataclass(frozen=True)
class SiloBN(FedAvg):
    """A FedAvg of all parameters, γ and β of norms included; running means and variances stay at the site."""

    needs: ClassVar[Needs] = Needs()
    own_statistics: ClassVar[bool] = True
    about: ClassVar[MethodSummary] = MethodSummary(
        download="global model, with its own BatchNorm statistics", paper="Andreux et al. 2020"
    )

    def round(self, state: GlobalModel, updates: Tensor, reports: Reports) -> tuple[GlobalModel, Outcome]:
        """Aggregate ``updates`` (n, d), as in FedAvg."""
        state, outcome = super().round(state, updates, reports)
        return state, replace(outcome, statistics="own")
