"""FedAVE: Wang et al., Adaptive Data Value Evaluation Framework for Collaborative Fairness in FL, 2024.

A site's data are worth the validation Dice of what it trained, the more the nearer its losses are distributed to the
server's. Its download grows with the reputation that remembers this and with that nearness.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedmerit.contract import rewards
from fedmerit.contract.capabilities import Candidates, EvaluatesCandidates, HasGuardedForm
from fedmerit.contract.games import trained_candidates, with_received
from fedmerit.contract.method import Layout, Method, MethodSummary, Outcome, Range, Reports, SiteView, inner_products
from fedmerit.contract.vectors import aggregate, gram, histogram, norms, remember, reshare, share, to_sites
from fedmerit.schema.rules import About, Choice, Count, Number

MOST_BINS = 100  # of a histogram
FLOOR = 1e-3  # of a reputation before it is normalised
SMOOTHING = 1.0  # added to the count of every bin
MOST_IMAGES = 1e9  # in one of them


@dataclass(frozen=True)
class FedAVEState:
    """The state of FedAVE."""

    models: Tensor  # (n, d)
    reputation: Tensor  # (n,) r, 0 before a site's first round
    tensor_sizes: Tensor  # (tensors,) int64; none unless form="released"


@dataclass(frozen=True)
class FedAVE(Method, EvaluatesCandidates, HasGuardedForm):
    """A server half of FedAVE, and with `report` its site half.

    KL compares histograms of losses per image of one model, on the site's training images and on the server's. The
    released code takes it between two lists of batch losses in the order they happen to come, which is not offered:
    ``form="released"`` is its score, its quota and its choice of entries. The first reputation is the first score, and
    already rewarded. Sums and maxima go over the sites present; absent ones keep reputation and model.

    KL of two samples of one distribution is not 0, so sites of one distribution would earn differently by its ratio to
    the least (K). By default it counts as no less than its expected value; ``kl_floor`` names another bound, 0.001
    being next to none, as in the paper. By default, too, a site keeps what it trained in entries that it does not earn;
    the paper's is ``unrewarded="nothing"``. With ``distributions="none"``, as under the guard, nearness is 1, and the
    method asks for no losses.
    """

    tau: Annotated[
        float | None, Number(above=0), About("norm of every upload; None: Σ p_i ‖Δ_i‖, which keeps the scale of a step")
    ] = None
    alpha: Annotated[float, Number(0, 1), About("memory of the reputation")] = 0.95
    beta: Annotated[float, Number(above=0), About("of the tanh: larger makes quotas more alike")] = 1.5
    bins: Annotated[int, Count(1, MOST_BINS), About("of a histogram of losses, on [0, 1]")] = 10
    kl_floor: Annotated[
        float | None,
        Number(above=0),
        About("of the divergence; None: its expectation by sampling, (bins - 1)/2 (1/n_i + 1/n_V)"),
    ] = None
    form: Annotated[
        str,
        Choice(("resolved", "paper", "released")),
        About("score Acc·K, quota tanh·K; paper: Acc/KL, tanh/KL; released: Acc·K², tanh·K, entries by tensor"),
    ] = "resolved"
    distributions: Annotated[
        str, Choice(("both", "reputation", "quota", "none")), About("what nearness counts in (Table 4's ablation)")
    ] = "both"
    clip: Annotated[
        float | None, Number(above=0), About("bound on every entry of an update; the paper: 1e-3; None: none")
    ] = None
    unrewarded: rewards.Unrewarded = "own"
    ranges: ClassVar[Mapping[str, Range]] = {f"loss_bin_{number}": (0, MOST_IMAGES) for number in range(MOST_BINS)}
    has_site_models: ClassVar[bool] = True
    about: ClassVar[MethodSummary] = MethodSummary(
        contribution="server validation Dice, times how alike its losses and the server's are",
        download="own model, plus the largest entries by reputation and likeness",
        site_work="training, losses of training images, evaluation of the sites' models",
        paper="Wang et al. 2024",
    )

    @property
    def asks(self) -> Mapping[str, Range]:
        """The number of the site's images by the loss of the model it received, bin by bin."""
        return dict(list(self.ranges.items())[: self.loss_bins])

    @property
    def loss_bins(self) -> int:
        """The number of bins; 0 if distributions do not count."""
        return self.bins if self.distributions != "none" else 0

    @property
    def guarded_form(self) -> "FedAVE":
        """The form without nearness, which depends on the losses that sites report."""
        return replace(self, distributions="none")

    def start(self, model: Tensor, num_sites: int, layout: Layout) -> FedAVEState:
        """Return the state before round 0; ``model`` is (d,)."""
        reputation = torch.zeros(num_sites, dtype=torch.float64)
        sizes = torch.tensor(layout.tensor_sizes if self.form == "released" else ()).long()
        return FedAVEState(model.repeat(num_sites, 1), reputation, sizes)

    def candidates(self, state: FedAVEState, updates: Tensor, reports: Reports) -> Candidates:
        """Return what the k present sites trained, for their Dice, then what they received, for its losses.

        2k models.
        """
        candidates = trained_candidates(state.models, self.clipped(updates), reports)
        return with_received(candidates, state.models, reports, self.bins) if self.loss_bins else candidates

    def most_candidates(self, sites: int) -> int:
        """Return the most candidates of a round: two per site if losses are compared, else one."""
        return 2 * sites if self.loss_bins else sites

    def round(self, state: FedAVEState, updates: Tensor, reports: Reports) -> tuple[FedAVEState, Outcome]:
        """Aggregate ``updates`` (n, d): the aggregate (Eqs. 6-7), reputations (Eqs. 8-9), quotas (Eq.

        10) and rewards.
        """
        assert reports.candidates is not None
        present, weights = reports.present, reports.data_share
        count = int(present.sum())
        accuracy = to_sites(reports.candidates.dice[:count], present)
        kl = present.double()  # all alike if no losses are compared
        if self.loss_bins:
            own = torch.stack([reports.values[name] for name in self.asks], dim=1)[present]  # (k, bins)
            validation = reports.candidates.losses[count:]
            kl = to_sites(floored_divergence(own, validation, self.kl_floor), present)
        nearness = (kl[present].min() / kl).where(present, 0.0)  # K
        factors = {"resolved": nearness, "paper": 1 / kl, "released": nearness**2}
        counts = self.distributions in ("both", "reputation")
        new = (accuracy * (factors[self.form] if counts else 1)).where(present, 0.0)
        known = remember(state.reputation, new, self.alpha, present)
        seen = state.reputation > 0
        first = share(new, present) if seen[present].any() else new  # others' reputations sum to 1
        reputation = torch.where(seen, known, first).clamp(min=FLOOR)
        reputation = reshare(state.reputation, reputation, present)

        boosted = torch.tanh(self.beta * reputation)
        quota = rewards.fractions_of_largest(boosted, present)
        if self.distributions in ("both", "quota"):
            quota = quota * (1 / kl if self.form == "paper" else nearness)
        quota = quota.clamp(max=1).where(present, 0.0)
        clipped = self.clipped(updates)
        products = inner_products(updates, reports) if self.clip is None else gram(clipped)
        update = self.weighted_uploads(weights, clipped, norms(products))
        models = rewards.Reward(
            update, quota, state.tensor_sizes.tolist(), rewards.kept(self.unrewarded, clipped)
        ).add_to(state.models)
        outcome = Outcome(
            contribution=new.where(present, torch.nan),
            reputation=reputation,
            weights=weights,
            models=models,
            quantities={"utility": accuracy, "quota": quota.where(present, torch.nan)}
            | ({"divergence": kl} if self.loss_bins else {}),
        )
        return FedAVEState(models, reputation, state.tensor_sizes), outcome

    def report(self, view: SiteView) -> dict[str, float]:
        """Return the histogram of the site's losses, of the model it received."""
        return dict(zip(self.asks, histogram(view.training_losses(), self.bins).tolist(), strict=True))

    def clipped(self, updates: Tensor) -> Tensor:
        """Return (n, d) ``updates``, every entry in its bounds (Algorithm 1, line 2)."""
        return updates if self.clip is None else updates.clamp(-self.clip, self.clip)

    def weighted_uploads(self, weights: Tensor, updates: Tensor, lengths: Tensor) -> Tensor:
        """Return (d,) Σ p_i τ Δ_i / ‖Δ_i‖, a zero update staying zero; weights p (n,), updates (n, d), ‖Δ_i‖ (n,)."""
        tau = (weights * lengths).sum() if self.tau is None else self.tau
        factors = torch.where(lengths > 0, weights * tau / lengths.where(lengths > 0, 1.0), 0.0)
        return aggregate(torch.zeros_like(updates[0]), factors, updates)


def distribution(counts: Tensor, smoothing: float = SMOOTHING) -> Tensor:
    """Return (k, bins) shares of the images in each bin, ``smoothing`` added to every count."""
    smoothed = counts.double() + smoothing
    return smoothed / smoothed.sum(dim=1, keepdim=True)


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """Return (k,) KL(p ‖ q) = Σ p ln(p/q) of the rows of two (k, bins) tensors of positive shares."""
    return (p * (p / q).log()).sum(dim=1)


def sampling_divergence(images: Tensor, others: Tensor, bins: int) -> Tensor:
    """Return (k,) the expected KL of two samples of one distribution: (B - 1)/2 (1/n + 1/m).

    Args:
        images: (k,) n, size of one sample; less than 1 counts as 1.
        others: (k,) m, size of the other.
        bins: B, 2 or more; of one bin it is 0.
    """
    return (bins - 1) / 2 * (1 / images.clamp(min=1) + 1 / others.clamp(min=1))


def floored_divergence(own: Tensor, validation: Tensor, floor: float | None) -> Tensor:
    """Return (k,) KL of the rows of two (k, bins) histograms, positive; a missing one counts as uniform.

    Args:
        own: images by loss, NaN if it is not known.
        validation: likewise, of the server's.
        floor: of the divergence; None: `sampling_divergence`.
    """
    own = own.nan_to_num(0.0)
    found = divergence(distribution(own), distribution(validation))
    if floor is not None:
        return found.clamp(min=floor)
    expected = sampling_divergence(own.sum(dim=1), validation.sum(dim=1), own.shape[1])
    return torch.maximum(found, expected.clamp(min=torch.finfo(expected.dtype).eps))  # of one bin it is 0
