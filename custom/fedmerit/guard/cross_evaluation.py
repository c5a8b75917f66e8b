"""Cross evaluation: the other sites measure what a site may earn by, each with one vote, never for itself.

What is rated are the method's candidates, and for FedCE the model without each site. Every rater's ratings are first
moved to a common level: it can then only divide among the others, not take from their sum, the idea of an impartial
division (de Clippel, Moulin and Tideman 2008). The result is a trimmed mean over the raters.
"""

import torch
from torch import Tensor

from fedmerit.contract.capabilities import Candidates
from fedmerit.contract.games import compute_values
from fedmerit.contract.method import CandidateResults
from fedmerit.contract.vectors import trained_models
from fedmerit.guard.bounds import median_of_others

OUTLIER_FACTOR = 4.0  # times the others' median distance from the combined ratings
MIN_OUTLIER_DISTANCE = 0.05  # of Dice: nearer raters are no outliers, however near the others are


def voices(scores: Tensor, heard: Tensor) -> tuple[Tensor, Tensor]:
    """Return (n, n) weight of the rater of each column for the site of each row, rows sum to 1 or 0; and (n,) offsets.

    Args:
        scores: (n, n) float64, rating by the rater of each row of the site of each column; NaN: none, as of itself.
        heard: (n,) bool: raters with a vote.
    """
    found = scores.isfinite() & heard[:, None]
    levels = scores.where(found, torch.nan).nanmean(dim=1)
    offsets = (levels.nanquantile(0.5) - levels).nan_to_num(0.0)
    moved = (scores + offsets[:, None]).where(found, torch.inf).T  # of each site, by rater
    counts, order = found.sum(dim=0)[:, None], moved.argsort(dim=1, stable=True)
    places = torch.arange(len(scores)).expand_as(moved)
    cut = (counts - 1).clamp(min=0) // 2  # of a median
    kept = ((places >= cut) & (places < counts - cut)).double()
    kept = kept / kept.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.zeros_like(moved).scatter_(1, order, kept), offsets


def aggregate_ratings(voice: Tensor, offsets: Tensor, scores: Tensor) -> Tensor:
    """Return (n,) the combined rating of each site, by the weights and offsets of `voices`; NaN: no site rated it."""
    found = (voice.T * (scores + offsets[:, None]).nan_to_num(0.0)).sum(dim=0)
    return found.where(voice.sum(dim=1) > 0, torch.nan)


def distances(scores: Tensor, offsets: Tensor, judged: Tensor, heard: Tensor) -> Tensor:
    """Return (n,) mean distance of each rater's ratings from the combined ones, in Dice; NaN: the rater has no vote."""
    return (scores + offsets[:, None] - judged).abs().nanmean(dim=1).where(heard, torch.nan)


def find_outlier_raters(away: Tensor) -> Tensor:
    """Return (n,) bool: the raters far from the combined ratings, compared with the others.

    ``away`` (n,) are `distances`.
    """
    typical = median_of_others(away, away.isfinite())
    return (away > MIN_OUTLIER_DISTANCE) & (away > OUTLIER_FACTOR * typical)


def leave_one_out_models(
    model: Tensor,
    received: Tensor,
    updates: Tensor,
    weights: Tensor,
    data_share: Tensor,
    counted: Tensor,
    whole: bool = False,
) -> Candidates:
    """Return the aggregated model without each of the k ``counted`` sites (FedCE's Eq. 3).

    Model i is (w - ρ_i w_i) / (1 - ρ_i).

    Args:
        model: (d,) the aggregated one, w.
        received: (d,) or (n, d) what the sites started from; w_i is the sum of this and
        updates: (n, d).
        weights: (n,) ρ of the aggregation, below 1.
        data_share: (n,) by which the others' BatchNorm statistics are averaged.
        counted: (n,) bool.
        whole: add w itself as the last candidate.
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


def candidate_owners(candidates: Candidates) -> Tensor:
    """Return (k,) row of the only site that made each candidate; -1: none, or several."""
    members = candidates.shares > 0
    return torch.where(members.sum(dim=1) == 1, members.long().argmax(dim=1), -1)


def rating_matrix(candidates: Candidates, ratings: Tensor, present: Tensor) -> Tensor:
    """Return (n, n) rating by the rater of each row of the site of each column; NaN: none.

    Args:
        candidates: of the method.
        ratings: (n, k) Dice by rater and candidate; NaN: none.
        present: (n,) bool: the sites that the candidates are of.
    """
    n = len(present)
    scores = torch.full((n, n), torch.nan, dtype=torch.float64)
    raters = ratings.isfinite().all(dim=1).nonzero().flatten().tolist()
    if candidates.coalitions:
        for rater in raters:
            scores[rater, present] = compute_values(ratings[rater], int(present.sum()))
        return scores
    if candidates.soft:
        scores[:, present] = ratings[:, 1:-1] - ratings[:, :1]
        return scores
    for place, site in enumerate(candidate_owners(candidates).tolist()):
        if site >= 0:
            scores[raters, site] = ratings[raters, place]
    return scores


def candidate_results(
    candidates: Candidates, ratings: Tensor, losses: Tensor, judged: Tensor, voice: Tensor, offsets: Tensor
) -> CandidateResults:
    """Return what the method gets of ``ratings`` (n, k).

    ``losses`` (k, bins) count all raters' images; the last three are returned by `fedmerit.guard.guard.Guard.judge`.
    """
    mean = ratings.nanmean(dim=0)
    if not candidates.coalitions:
        owner = candidate_owners(candidates)
        known = (owner >= 0) & judged[owner].isfinite()
        return CandidateResults(judged[owner].where(known, mean).clamp(0, 1), losses)
    sizes = (candidates.shares > 0).sum(dim=1).double()
    moved = (ratings + offsets[:, None] * sizes).nan_to_num(0.0)  # an offset adds to every Shapley value
    return CandidateResults(mean, losses, judged=voice @ moved)
