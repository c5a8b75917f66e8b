"""What the method gets of a round's replies, and how the sites divide what it gives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedmerit.contract.method import Outcome, Reports, inner_products
from fedmerit.guard.reward_groups import RewardGroups
from fedmerit.guard.work import Measurements


@dataclass(frozen=True)
class Admission:
    """A ruling of one round for n sites. Without a guard, every reply is admitted unchanged."""

    updates: Tensor  # (n, d) for the method
    reports: Reports  # for the method: bounded, without withheld sites, a reward group in the row of its first site
    own: Tensor  # (n, d) the bounded updates, site by site
    own_products: Tensor  # (n, n) their Gram matrix
    answered: Tensor  # (n,) bool: the site's update came
    reward_groups: RewardGroups
    withheld: Tensor  # (n,) bool: the site continues from its own model, whether it answered or not
    counted: Tensor  # (n,) bool: the site's update is part of the aggregation
    quantities: Mapping[str, Tensor] = field(default_factory=dict)  # (n,) for results.csv
    measured: Measurements | None = None  # what was measured on the updates; None: nothing was
    statistics: Sequence[Mapping[str, Tensor]] = ()  # (n,) bounded BatchNorm statistics; {}: the site is not counted

    @classmethod
    def unguarded(cls, updates: Tensor, reports: Reports) -> "Admission":
        """Return the admission of all replies, unchanged."""
        groups, nobody = RewardGroups.singles(len(updates)), torch.zeros_like(reports.present)
        products = inner_products(updates, reports)
        return cls(updates, reports, updates, products, reports.present, groups, nobody, reports.present)

    @property
    def is_unchanged(self) -> Tensor:
        """(n,) bool: the method has the update as the site sent it: neither clipped nor averaged with others."""
        first = self.reward_groups.first
        single = torch.bincount(first[self.reward_groups.parts > 0], minlength=len(first))[first] == 1
        return single & ~(self.quantities["clipped"] < 1)

    @property
    def site_reports(self) -> Reports:
        """The reports site by site, each with its share of its group's images."""
        parts = self.reports.num_samples[self.reward_groups.first] * self.reward_groups.parts
        return replace(self.reports, num_samples=parts.where(self.counted, 0.0), present=self.counted)

    @property
    def is_represented(self) -> Tensor:
        """(n,) bool: the site has no part itself, but others of its group have."""
        return self.reward_groups.parts == 0

    @property
    def group_statistics(self) -> Sequence[Mapping[str, Tensor]]:
        """(n,) the statistics by the method's rows: a group's first site, if absent, has those of another member."""
        found = list(self.statistics)
        for row, first in enumerate(self.reward_groups.first.tolist()):
            found[first] = found[first] or found[row]
        return found

    def divide(self, earned: Tensor, without: float = 0.0) -> Tensor:
        """Divide by site what each row ``earned`` (n,): sites of a group share theirs, withheld sites have nothing.

        A site that is away while its group has a part gets ``without``.
        """
        shares = (earned[self.reward_groups.first] * self.reward_groups.parts).where(self.counted, earned)
        return shares.masked_fill(self.is_represented, without).masked_fill(self.withheld & self.answered, 0.0)

    def divide_outcome(self, outcome: Outcome, received: Tensor) -> Outcome:
        """Return the outcome by site; ``received`` (d,) or (n, d) is what the sites trained from.

        A group divides what the row of its first site earned, and shares that row's model. A withheld site earns
        nothing and keeps the model that it trained.
        """
        if not self.reward_groups.has_groups and not self.withheld.any():
            return outcome
        first = self.reward_groups.first
        one, statistics = outcome.models.ndim == 1, outcome.statistics
        models = outcome.models if one else outcome.models[first]
        if one and statistics == "models":
            statistics = "shared"  # the others still have one model, and its mean statistics
        if self.withheld.any():
            models = models.expand(len(first), -1).clone()
            models[self.withheld] = (received.expand(len(first), -1) + self.own)[self.withheld]
        quantities = {
            name: values[first].double().masked_fill(self.is_represented, torch.nan)
            for name, values in outcome.quantities.items()
        }
        if "quota" in quantities:
            quantities["quota"] = quantities["quota"].masked_fill(self.withheld & self.answered, 0.0)
        vectors = {name: vector if vector.ndim == 1 else vector[first] for name, vector in outcome.vectors.items()}
        return replace(
            outcome,
            contribution=self.divide(outcome.contribution, torch.nan),
            reputation=self.divide(outcome.reputation),
            weights=self.divide(outcome.weights),
            models=models,
            quantities=quantities,
            statistics=statistics,
            vectors=vectors,
        )
