"""Which BatchNorm statistics a model is evaluated with, by the run's ``statistics``: the one place that decides.

n sites. `rule_of` names the rule that holds in a round, for the models that sites are sent, for FedCE's model without
a site and for candidates alike; `of_candidates` follows it for models that nobody trained as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmerit.capabilities.candidates import Candidates
from fedmerit.configuration.run import Training
from fedmerit.core import Method
from fedmerit.flat import Buffers


def rule_of(training: Training, round: int, of_outcome: str = "models") -> str:
    """What holds of the statistics that ``round`` gives.

    Args:
        training: of the run.
        round: its number.
        of_outcome: `Outcome.statistics`, which ``statistics=method`` follows.

    Returns:
        "models", "own", "initial" as in `Outcome.statistics`; "mean" by data share; "weights"; "recalibrated"; or
        "frozen": those of the round before.
    """
    rule = of_outcome if training.statistics == "method" else training.statistics
    if rule == "shared" or (rule == "frozen" and round < training.frozen_from):
        rule = "mean"
    if of_outcome == "initial" and rule != "frozen":  # sites start anew: what they trained is of no model any more
        return "initial"
    return rule


def estimates(training: Training) -> bool:
    """Whether models that nobody trained are evaluated with statistics of the images of whoever evaluates them."""
    return training.statistics == "recalibrated"


@dataclass(frozen=True)
class RoundStatistics:
    """What there is to choose from when a round's candidates are evaluated."""

    trained: Sequence[Buffers]  # (n,) of each site's reply; empty ones of absent sites
    sent_out: Buffers  # the mean, before this round's
    held: Sequence[Buffers] | None = None  # (n,) of each site's model as it was sent; None: all had those sent out
    weights: Tensor | None = None  # (n,) of the round's aggregation; None: not known yet


def of_candidates(
    candidates: Candidates, there: RoundStatistics, rule: str, evaluator: int | None = None
) -> tuple[tuple[Buffers, ...], Tensor]:
    """The statistics that k candidates are evaluated with.

    A candidate has the mean of its sites' trained ones by `Candidates.shares`, so that what one site alone trained
    has that site's; by rule "weights" the mean by the sites' weights, once these are known; by rule "own", of several
    sites, those that the evaluating site trained; by rule "frozen" those sent out. One that no site has a share in
    has, by rule "own", likewise the evaluating site's, else those sent out, or of those held `Candidates.received`.

    Args:
        candidates: what is evaluated.
        there: the statistics there are.
        rule: as `rule_of` gives it.
        evaluator: the row of the site that evaluates them; None: the server, on its own images.

    Returns:
        b sets of statistics, and (k, b) float64 the shares to mix them by, rows sum to 1.
    """
    shares = _by_rule(candidates, there, rule, evaluator)
    held, received = list(there.held or ()), torch.zeros(len(shares), len(there.held or ()), dtype=torch.float64)
    if there.held is not None and candidates.received is not None:
        received = candidates.received * ~shares.any(dim=1, keepdim=True)
    left = ~(shares.any(dim=1, keepdim=True) | received.any(dim=1, keepdim=True))
    shares = torch.cat([shares, received, left.double()], dim=1)
    used = shares.any(dim=0).nonzero().flatten().tolist()
    sets = [*there.trained, *held, there.sent_out]
    return tuple(sets[place] for place in used), shares[:, used]


def _by_rule(candidates: Candidates, there: RoundStatistics, rule: str, evaluator: int | None) -> Tensor:
    """(k, n) shares of the sites' trained statistics; rows of 0: none of them."""
    shares = candidates.shares
    if rule == "frozen":
        return torch.zeros_like(shares)
    if rule == "weights" and there.weights is not None:
        weighed = there.weights.nan_to_num(0.0) * (shares > 0)
        totals = weighed.sum(dim=1, keepdim=True)
        return torch.where(totals > 0, weighed / totals.where(totals > 0, 1.0), shares)
    if rule == "own" and evaluator is not None and there.trained[evaluator]:
        alone = (shares > 0).sum(dim=1) == 1
        if candidates.received is not None:  # models that sites have, with what came with them
            alone |= candidates.received.any(dim=1)
        own = torch.eye(shares.shape[1], dtype=torch.float64)[evaluator]
        return shares.where(alone[:, None], own)
    return shares


def rule_of_candidates(training: Training, round: int, method: Method) -> str:
    """`rule_of` before a round has an outcome."""
    return rule_of(training, round, "own" if method.own_statistics else "models")
