"""Where in the network updates are long: training moves some layers more than others, at every site alike.

It does so whatever the images, since all train one network by one optimiser, and whichever way the update points:
reversed signs have the profile of honest ones. What was not trained has none, unless somebody shaped it. Late in
training Adam moves all entries alike, where gradients are noise: an honest hospital had a flat profile then.
"""

import torch
from torch import Tensor

from fedmerit.guard.rule import Rule, median_of_others

BLOCK = 256  # entries, one after the other, whose length is one number of a profile
PART = 0.25  # of the others' median likeness
EASED = 2.0  # times that, while a verdict stands
SHOWN = 0.4  # median likeness of the others that is enough to compare with, and
CHANCE = 4.0  # times what chance gives

RULE = Rule(
    "sign: profile",
    f"The update is not long where the others' are: the correlation of the lengths of its blocks of {BLOCK} entries "
    f"with the others', median over them and mean over rounds, is under {PART:g} times the median of the others; "
    f"{EASED * PART:g} times, while a verdict stands. Where that median is under {SHOWN:g}, as late in training, or "
    f"under {CHANCE:g} times what chance gives, the sign stays as it was.",
    "noise, zero updates",
    "a sign alone does nothing; an honest outlier trains the same network by the same optimiser",
)


def likeness(updates: Tensor, present: Tensor) -> Tensor:
    """(n,) correlation of the profiles of ``updates`` (n, d) with those of the others, median over them.

    NaN: of who is not ``present`` (n,) bool, or where fewer than two others are. 0: of a profile that is flat.
    """
    n, d = updates.shape
    whole = d // BLOCK * BLOCK
    lengths = torch.linalg.vector_norm(updates[:, :whole].view(n, -1, BLOCK), dim=2).double()
    centred = lengths - lengths.mean(dim=1, keepdim=True)
    scale = centred.norm(dim=1, keepdim=True)
    units = torch.where(scale > 1e-9 * lengths.norm(dim=1, keepdim=True), centred / scale, 0.0)
    return median_of_others(units @ units.T, present).where(present, torch.nan)


def compared(likeness: Tensor, present: Tensor, size: int) -> Tensor:
    """(n,) bool: whether the others' ``likeness`` (n,) is enough to compare with, of updates of ``size`` entries."""
    shown: float = max(SHOWN, CHANCE / max(size // BLOCK, 1) ** 0.5)
    return present & (median_of_others(likeness, present & likeness.isfinite()) > shown)


def unlike(likeness: Tensor, present: Tensor, size: int, against: Tensor) -> Tensor:
    """(n,) bool: whose profile is not the others'; less is enough of those that a verdict stands ``against`` (n,)."""
    usual = median_of_others(likeness, present & likeness.isfinite())
    return compared(likeness, present, size) & (likeness < PART * usual * torch.where(against, EASED, 1.0))
