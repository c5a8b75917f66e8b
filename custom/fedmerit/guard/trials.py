"""What is rated, and what ratings say of sites: the method's candidates, and for FedCE the model without each site."""

import torch
from torch import Tensor

from fedmerit.capabilities.candidates import Candidates
from fedmerit.core import CandidateResults
from fedmerit.games import values_of
from fedmerit.vectors import trained_models


def models_without(
    model: Tensor,
    received: Tensor,
    updates: Tensor,
    weights: Tensor,
    data_share: Tensor,
    counted: Tensor,
    whole: bool = False,
) -> Candidates:
    """The aggregated model without each of the k ``counted`` sites: (w - ρ_i w_i) / (1 - ρ_i), as in FedCE's Eq. 3.

    Args:
        model: (d,) the aggregated one, w.
        received: (d,) or (n, d) what the sites started from, which makes w_i with
        updates: (n, d).
        weights: (n,) ρ of the aggregation, below 1.
        data_share: (n,) by which BatchNorm statistics are averaged, those of the others here.
        counted: (n,) bool.
        whole: add w itself, the last.
    """
    there, count = counted.nonzero().flatten(), int(counted.sum())
    left = 1 - weights[there]
    mixtures = torch.diag(-weights[there] / left)
    others = data_share.expand(count, -1).clone()
    others[torch.arange(count), there] = 0.0
    mixtures = torch.cat([mixtures, (1 / left)[:, None]], dim=1)
    if whole:
        mixtures = torch.cat([mixtures, torch.eye(count + 1, dtype=torch.float64)[-1:]])
        others = torch.cat([others, data_share[None]])
    models = trained_models(received, updates, counted, model)
    return Candidates(models, mixtures, others / others.sum(dim=1, keepdim=True))


def owners(candidates: Candidates) -> Tensor:
    """(k,) the site that alone made each candidate; -1: none, or several."""
    members = candidates.shares > 0
    return torch.where(members.sum(dim=1) == 1, members.long().argmax(dim=1), -1)


def scores_of(candidates: Candidates, ratings: Tensor, present: Tensor) -> Tensor:
    """(n, n) what the rater of each row found of the site of each column; NaN: nothing.

    Args:
        candidates: of the method.
        ratings: (n, k) Dice by rater and candidate; NaN: it gave none.
        present: (n,) bool: the sites that the candidates are of.
    """
    n = len(present)
    scores = torch.full((n, n), torch.nan, dtype=torch.float64)
    raters = ratings.isfinite().all(dim=1).nonzero().flatten().tolist()
    if candidates.coalitions:
        for rater in raters:
            scores[rater, present] = values_of(ratings[rater], int(present.sum()))
        return scores
    for place, site in enumerate(owners(candidates).tolist()):
        if site >= 0:
            scores[raters, site] = ratings[raters, place]
    return scores


def results_of(
    candidates: Candidates, ratings: Tensor, losses: Tensor, judged: Tensor, voice: Tensor, offsets: Tensor
) -> CandidateResults:
    """What the method gets of ``ratings`` (n, k); the others are as `guard.Guard.judge` gave them.

    ``losses`` (k, bins) are all raters' images.
    """
    mean = ratings.nanmean(dim=0)
    if not candidates.coalitions:
        owner = owners(candidates)
        known = (owner >= 0) & judged[owner].isfinite()
        return CandidateResults(judged[owner].where(known, mean).clamp(0, 1), losses)
    sizes = (candidates.shares > 0).sum(dim=1).double()
    moved = (ratings + offsets[:, None] * sizes).nan_to_num(0.0)  # an offset adds to every Shapley value
    return CandidateResults(mean, losses, judged=voice @ moved)
