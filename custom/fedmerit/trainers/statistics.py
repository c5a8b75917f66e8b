"""BatchNorm statistics: which ones a round's models have, and those of models that nobody trained.

`statistics_rule` is the one place that decides by the run's ``statistics``. It names the rule of a round for the
models that sites are sent, for FedCE's model without a site and for candidates alike; `candidate_statistics` applies
it to models that nobody trained. n sites.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmerit.contract.capabilities import Candidates
from fedmerit.contract.flat import Buffers
from fedmerit.contract.method import Method
from fedmerit.evidence.ledger import GENESIS
from fedmerit.schema.configuration.settings import Training
from fedmerit.schema.messages import Evaluation


def statistics_rule(training: Training, round: int, by_outcome: str = "models") -> str:
    """Return the rule for the statistics that ``round`` gives.

    Args:
        training: the run's settings.
        round: number of the round.
        by_outcome: the outcome's ``statistics``, which ``statistics=method`` follows.

    Returns:
        "models", "own", "initial" as an outcome names them; "mean" by data share; "weights"; "recalibrated"; or
        "frozen": those of the round before.
    """
    rule = by_outcome if training.statistics == "method" else training.statistics
    if rule == "shared" or (rule == "frozen" and round < training.frozen_from):
        rule = "mean"
    if by_outcome == "initial" and rule != "frozen":  # sites start again: no model has what they trained
        return "initial"
    return rule


def estimates_statistics(training: Training) -> bool:
    """Return whether models that nobody trained are evaluated with statistics estimated on the evaluating side's
    images.
    """
    return training.statistics == "recalibrated"


@dataclass(frozen=True)
class RoundStatistics:
    """The statistics to choose from when a round's candidates are evaluated."""

    trained: Sequence[Buffers]  # (n,) of each site's reply; empty ones of absent sites
    sent_out: Buffers  # the mean, before this round's
    held: Sequence[Buffers] | None = None  # (n,) of each site's model when it was sent; None: all had those sent out
    weights: Tensor | None = None  # (n,) of the round's aggregation; None: not known yet


def candidate_statistics(
    candidates: Candidates, there: RoundStatistics, rule: str, evaluator: int | None = None
) -> tuple[tuple[Buffers, ...], Tensor]:
    """Return the statistics that k candidates are evaluated with.

    A candidate has the mean of its sites' trained ones by `Candidates.shares`, so one site's model has that site's; by
    rule "weights" the mean by the sites' weights, once these are known; by rule "own", for several sites, those that
    the evaluating site trained; by rule "frozen" those sent out. A candidate that no site has a share in has, by rule
    "own", also the evaluating site's; else those sent out, or those held by `Candidates.received`.

    Args:
        candidates: the models.
        there: the statistics there are.
        rule: of `statistics_rule`.
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
    """Return (k, n) shares of the sites' trained statistics; rows of 0: none of them."""
    shares = candidates.shares
    if rule == "frozen":
        return torch.zeros_like(shares)
    if rule == "weights" and there.weights is not None:
        weighed = there.weights.nan_to_num(0.0) * (shares > 0)
        totals = weighed.sum(dim=1, keepdim=True)
        return torch.where(totals > 0, weighed / totals.where(totals > 0, 1.0), shares)
    if rule == "own" and evaluator is not None and there.trained[evaluator]:
        keeps = (shares > 0).sum(dim=1) == 1
        if candidates.received is not None:  # models that sites received, with the statistics sent with them
            keeps |= candidates.received.any(dim=1)
        own = torch.eye(shares.shape[1], dtype=torch.float64)[evaluator]
        return shares.where(keeps[:, None], own)
    return shares


def candidate_statistics_rule(training: Training, round: int, method: Method) -> str:
    """Return the `statistics_rule` before a round has an outcome."""
    return statistics_rule(training, round, "own" if method.own_statistics else "models")


def candidate_task(
    candidates: Candidates,
    statistics: tuple[tuple[Buffers, ...], Tensor],
    round: int,
    split: str,
    ledger: str = GENESIS,
) -> Evaluation:
    """Return the evaluation of candidate models on a split, with ``statistics`` of `candidate_statistics`."""
    models, mixtures, bins = candidates.models, candidates.mixtures, candidates.bins
    return Evaluation(round, split, models, mixtures, *statistics, bins, candidates.soft, ledger=ledger)
