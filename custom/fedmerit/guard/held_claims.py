"""What a site says of itself: it may lower what it earns, and no more."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedmerit.guard.rule import Rule, median_of_others

RULE = Rule(
    "claims",
    "Of what a site says of itself, FedCE's error is replaced by what others measured, q-FedAvg's loss counts at most "
    "the median of the others, and FedAVE's histogram of losses is not asked for. SCAFFOLD's control variate counts as "
    "far as it follows from the update, at most 3 times the median length.",
    "a claimed error of 1 with the cosine left out, an invented loss or histogram, a control variate that ends the run",
    "FedCE's error is no longer that on the site's own images, so that `error=relative` is as `absolute`; q-FedAvg "
    "lowers those below the median alone; FedAVE pays for Dice alone; SCAFFOLD's variates follow from updates as "
    "privacy filters leave them",
)


def held_claims(values: Mapping[str, Tensor], present: Tensor, measured: Tensor | None) -> dict[str, Tensor]:
    """The claims ``values``, (n,) each, as far as they count.

    Args:
        values: by name, as in `fedmerit.core.RANGES`.
        present: (n,) bool.
        measured: (n,) in the place of "minus_error", NaN where it is not known; None: nobody could measure it.
    """
    held = dict(values)
    if measured is not None and "minus_error" in held:
        held["minus_error"] = measured
        held |= {"error": torch.ones_like(measured)} if "error" in held else {}  # of the others, the same for all
    if "loss" in held:
        bound = median_of_others(held["loss"], present & held["loss"].isfinite())
        held["loss"] = held["loss"].minimum(bound).where(bound.isfinite(), held["loss"])
    return held
