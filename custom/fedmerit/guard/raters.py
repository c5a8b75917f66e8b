"""Cross evaluation: what a site may earn by is measured by the others, each with one voice, never on its own.

Every rater's ratings are first moved to one level: it divides among the others what it cannot take from their sum, the
idea of an impartial division (de Clippel, Moulin and Tideman 2008). Then a robust mean over the raters.
"""

import torch
from torch import Tensor

from fedmerit.guard.rule import Rule, median_of_others

APART = 4.0  # times the others' median distance from what all found
LEAST_APART = 0.05  # of Dice: nearer raters agree whatever the others do

RULE = Rule(
    "raters",
    "Candidates and models without a site are evaluated by the other sites: one voice each, never on its own, all "
    "raters on one level, the median over raters. A rater that stands apart has no voice that round. With "
    "`--server-sites`, the server's own images count alone.",
    "rigged evaluations, invented validation cases, self-reported errors",
    "a site whose images are like nobody else's earns what it is worth to the others, and may have no voice",
)


def voices(scores: Tensor, heard: Tensor) -> tuple[Tensor, Tensor]:
    """(n, n) how much the rater of each column says of the site of each row, rows sum to 1 or 0; and (n,) offsets.

    Args:
        scores: (n, n) float64, what the rater of each row found of the site of each column; NaN: nothing, as of itself.
        heard: (n,) bool: raters with a voice.
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


def judged_by(voice: Tensor, offsets: Tensor, scores: Tensor) -> Tensor:
    """(n,) what the raters found of each site, by what `voices` gave; NaN: nobody rated it."""
    found = (voice.T * (scores + offsets[:, None]).nan_to_num(0.0)).sum(dim=0)
    return found.where(voice.sum(dim=1) > 0, torch.nan)


def distances(scores: Tensor, offsets: Tensor, judged: Tensor, heard: Tensor) -> Tensor:
    """(n,) how far each rater's ratings are from what all found, in Dice, mean over sites; NaN: it is not heard."""
    return (scores + offsets[:, None] - judged).abs().nanmean(dim=1).where(heard, torch.nan)


def standing_apart(away: Tensor) -> Tensor:
    """(n,) bool: the raters who are far from what all found, compared with the others; ``away`` (n,) `distances`."""
    typical = median_of_others(away, away.isfinite())
    return (away > LEAST_APART) & (away > APART * typical)
