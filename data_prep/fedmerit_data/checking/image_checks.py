"""Images that are readable and yet not plausible: flat, flipped, of unusual intensities."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fedmerit_data.checking.findings import Finding
from fedmerit_data.checking.measured import COMPARABLE, Measured, outliers

# By how much a volume has to agree better with its site's others when flipped. Of 35 real volumes none did by chance;
# flipped ones were found upside down in 35 and with their slices reversed in 34 cases. Left and right of a pelvis, and
# upside down in photographs, which are alike, are not told apart; nor do masks alone tell: they are too symmetric.
FLIPPED = 0.05
FLIPS = {"slices in reverse order": 0, "upside down": 1}
# How many robust deviations from the median are too many, and the least deviation; intensities have deviation 1 in
# each case.
OUTLIER, SPREAD = 8.0, 0.1


def flat(site: Sequence[Measured]) -> Iterator[Finding]:
    """Images without content."""
    for case in site:
        if case.flat:
            yield case.where.finding("flat image", "holds a single value; export the image again")


def flips(site: Sequence[Measured]) -> Iterator[Finding]:
    """Volumes that agree better with the mean of the site's others when they are flipped."""
    volumes = [(case.where, case.thumbnail) for case in site if case.thumbnail is not None]
    if len(volumes) < COMPARABLE:
        return
    total = np.sum([thumbnail for _, thumbnail in volumes], axis=0)
    for where, thumbnail in volumes:
        others = total - thumbnail
        upright = _correlation(thumbnail, others)
        for how, axis in FLIPS.items():
            flipped = _correlation(np.flip(thumbnail, axis), others)
            if flipped - upright > FLIPPED:
                detail = f"{how}: agreement with the site's others {upright:.2f}, flipped {flipped:.2f}"
                yield where.finding("flipped", f"seems to be stored {detail}; look at it", detail=detail)


def _correlation(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    first, second = first - first.mean(), second - second.mean()
    norm = np.sqrt((first**2).sum() * (second**2).sum())
    return float((first * second).sum() / norm) if norm > 0 else 0.0


def intensities(site: Sequence[Measured]) -> Iterator[Finding]:
    """Images whose percentiles are far from those of the site's others."""
    levels = np.stack([case.levels for case in site])
    usual = np.median(levels, axis=0)
    for case, outlying in zip(site, outliers(levels, OUTLIER, SPREAD), strict=True):
        if outlying and not case.flat:
            detail = f"5, 25, 50, 75, 95% of intensities below {_list(case.levels)}; the site's median {_list(usual)}"
            yield case.where.finding("unusual intensities", detail, detail=detail)


def _list(values: NDArray[np.float64]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)
