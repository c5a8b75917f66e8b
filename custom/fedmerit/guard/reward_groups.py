"""Reward groups: sites of one organisation, and near copies. The method sees each group as one site (Sybil defence).

Copies share what no other update explains, the noise of training included; honest sites, even of one scanner, little.
It is the partial correlation of two updates given all others. How little is estimated from the run: a pair are copies
if its mean over rounds lies above the prediction interval of the other pairs' (Student's t: Hahn and Meeker 1991,
Statistical Intervals, Section 4.8), and if what they share outweighs the rest of each.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

EXACT = 0.999  # cosine of two updates of one round
MOST = 0.5  # of what others do not explain: copies share more
RIDGE = 1e-6  # of the Gram matrix, which equal updates make singular
FEWEST = 4  # sites, to distinguish near copies from others


@dataclass(frozen=True)
class RewardGroups:
    """A partition of the sites into those that are rewarded as one."""

    first: Tensor  # (n,) the first site of each site's group, in whose row the method has it; a single site: its own
    parts: Tensor  # (n,) of what the group earns; sums to 1 in each. 0: others of the group count, this one does not
    copies: Tensor  # (n,) bool: in a group of copies

    @classmethod
    def singles(cls, sites: int) -> "RewardGroups":
        """Return groups of one site each."""
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


def find_reward_groups(
    counted: Tensor, counts: Tensor, copied: Tensor, organisations: Tensor, shared: Tensor | None = None
) -> RewardGroups:
    """Return the groups of n sites.

    The first site of a group stays its first if it is absent: the method remembers in its row what the group earned.

    Args:
        counted: (n,) bool, the sites with a part in the round; sites without one form no group of their own.
        counts: (n,) images.
        copied: (n, n) bool, symmetric: near copies.
        organisations: (n,) numbers of organisations; equal ones are one.
        shared: (n, n) bool, symmetric: sites that hold each other's cases; None: none.
    """
    places = torch.arange(len(counted))
    linked = copied | (organisations[:, None] == organisations)
    linked = linked if shared is None else linked | shared
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


def find_near_copies(cosines: Tensor, remembered: Tensor, present: Tensor, level: float) -> Tensor:
    """Return (n, n) bool: pairs whose updates are equal in this round, or that are related unlike other pairs.

    A cluster of similar sites are not copies: they widen the interval of the others.

    Args:
        cosines: (n, n) of the round's updates.
        remembered: (n, n) their `partial_correlations`, mean over rounds; finite for pairs of present sites.
        present: (n,) bool.
        level: probability, in a round, that any pair of honest sites is found.
    """
    pairs = present[:, None] & present & ~torch.eye(len(present), dtype=torch.bool)
    exact = pairs & (cosines > EXACT)
    if present.sum() < FEWEST:
        return exact
    from scipy.special import stdtrit  # slow to import

    shared, others = remembered.where(pairs, 0.0), int(pairs.sum()) // 2 - 1
    mean = (shared.sum() / 2 - shared) / others
    squares = (shared.square().sum() / 2 - shared.square() - others * mean.square()).clamp(min=0)
    spread = (squares / (others - 1) * (1 + 1 / others)).sqrt()
    bound = -float(stdtrit(others - 1, level / (others + 1)))
    return exact | (pairs & (shared > MOST) & (shared - mean > bound * spread))


def partial_correlations(cosines: Tensor) -> Tensor:
    """Return (n, n) of two updates given all others; ``cosines`` (n, n), rows of zeros of sites without one."""
    inverse: Tensor = torch.linalg.inv(cosines + RIDGE * torch.eye(len(cosines), dtype=cosines.dtype))
    lengths = inverse.diagonal().sqrt()
    return -inverse / torch.outer(lengths, lengths)
