"""Counts of images: what a site committed to before round 0, held to three times the median."""

import torch
from torch import Tensor

from fedmerit.guard.rule import Rule, shrinking

TIMES = 3.0  # of the four prostate hospitals the largest has 2.4 times the median of the others

RULE = Rule(
    "counts",
    "A site commits to its counts before round 0, and every later claim has to be the same; an earner counts at most "
    f"{TIMES:g} times the median of the others.",
    "invented images: weights, rewards and statistics of a site that claims 1e9",
    "a site with more than three times the median is weighed as if it had three times",
)


def bounded_counts(counts: Tensor, earner: Tensor, parts: Tensor, copies: Tensor) -> Tensor:
    """(n,) what each site's images count, float64.

    Args:
        counts: (n,) as enrolled; 0: not known.
        earner: (n,) the first of the sites that earn as one.
        parts: (n,) of each site in what these earn.
        copies: (n,) bool: of whom the images of the others are copies, which count once.
    """
    total = torch.zeros_like(counts).index_add_(0, earner, counts)
    largest = torch.zeros_like(counts).scatter_reduce_(0, earner, counts, "amax")
    of_earner = torch.where(copies[earner], largest[earner], total[earner])
    first = earner == torch.arange(len(counts))
    bounded = of_earner * shrinking(of_earner, first & (total > 0), TIMES)[earner]
    return (bounded * parts).where(counts > 0, 0.0)
