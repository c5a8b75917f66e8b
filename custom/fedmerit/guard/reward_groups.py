"""Reward groups: sites of one organisation, and near copies. The method sees each group as one site (Sybil defence)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedmerit.vectors import ratio

EXACT = 0.999  # cosine of two updates of one round
NEAR = 0.4  # of near copies: mean over rounds, without what all have in common; honest ones stay below 0
NEAR_DISTANCE_FACTOR = 0.5  # and at most this part of the distance of either from any third
FEWEST = 4  # sites, to distinguish near copies from others


@dataclass(frozen=True)
class RewardGroups:
    """Which sites are rewarded as one."""

    first: Tensor  # (n,) the first site of each site's group, in whose row the method has it; a single site: its own
    parts: Tensor  # (n,) of what the group earns; sums to 1 in each. 0: others of the group count, this one does not
    copies: Tensor  # (n,) bool: in a group of copies

    @classmethod
    def singles(cls, sites: int) -> "RewardGroups":
        """Every site by itself."""
        rows = torch.arange(sites)
        return cls(rows, torch.ones(sites, dtype=torch.float64), torch.zeros(sites, dtype=torch.bool))

    @property
    def has_groups(self) -> bool:
        """Whether any group has several sites."""
        return bool((self.first != torch.arange(len(self.first))).any())

    @property
    def averaging_matrix(self) -> Tensor:
        """(n, n): its product with updates has each group's mean in the row of its first site, zeros in the others'."""
        averaging_matrix = torch.zeros(len(self.first), len(self.first), dtype=torch.float64)
        averaging_matrix[self.first, torch.arange(len(self.first))] = self.parts
        return averaging_matrix


def find_reward_groups(counted: Tensor, counts: Tensor, copied: Tensor, organisations: Tensor) -> RewardGroups:
    """The groups of n sites.

    The first site of a group stays its first if it is absent: the method remembers in its row what the group earned.

    Args:
        counted: (n,) bool, the sites with a part in the round; sites without one form no group of their own.
        counts: (n,) images.
        copied: (n, n) bool, symmetric: near copies.
        organisations: (n,) numbers of organisations; equal ones are one.
    """
    places = torch.arange(len(counted))
    linked = copied | (organisations[:, None] == organisations)
    if int(linked.sum()) == len(linked):  # each only to itself
        return RewardGroups.singles(len(linked))
    from scipy.sparse import csr_array  # slow to import
    from scipy.sparse.csgraph import connected_components

    _, labels = connected_components(csr_array(linked.numpy()), directed=False)
    component = torch.from_numpy(labels)
    linked = component[:, None] == component
    single = ~(linked & counted).any(dim=1)
    first = torch.where(single, places, linked.long().argmax(dim=1))
    copies = (linked & copied & (places[:, None] != places)).any(dim=1) & ~single
    amounts = torch.where(copies | (counts <= 0), 1.0, counts.double()).where(counted | single, 0.0)
    total = torch.zeros(len(counted), dtype=torch.float64).index_add_(0, first, amounts)
    return RewardGroups(first, amounts / total[first], copies)


def find_near_copies(cosines: Tensor, remembered: Tensor, present: Tensor) -> Tensor:
    """(n, n) bool: pairs whose updates are equal in this round, or much nearer to each other than to any third's.

    A cluster of similar sites are not copies: of three or more, only equal updates count.

    ``cosines``: (n, n) of the round's updates; ``remembered``: (n, n) their mean over rounds; ``present``: (n,) bool.
    """
    pairs = present[:, None] & present & ~torch.eye(len(present), dtype=torch.bool)
    exact = pairs & (cosines > EXACT)
    if present.sum() < FEWEST:
        return exact
    left = centred(remembered, present)
    third = left.where(pairs, -torch.inf).topk(2, dim=1)  # the nearest two of each
    of_each = torch.where(left == third.values[:, :1], third.values[:, 1:], third.values[:, :1])
    nearest_third = torch.maximum(of_each, of_each.T)
    return exact | (pairs & (left > NEAR) & (1 - left < NEAR_DISTANCE_FACTOR * (1 - nearest_third)))


def centred(cosines: Tensor, present: Tensor) -> Tensor:
    """(n, n) cosines after the mean direction of the ``present`` (n,) is removed; from ``cosines`` (n, n)."""
    known = cosines.where(present[:, None] & present, 0.0)
    share = present.double() / present.sum()
    to_mean = known @ share
    squared = float(share @ to_mean)
    left = known - torch.outer(to_mean, to_mean) / squared if squared > 0 else known
    lengths = left.diagonal().clamp(min=0).sqrt()
    return ratio(left, torch.outer(lengths, lengths))
