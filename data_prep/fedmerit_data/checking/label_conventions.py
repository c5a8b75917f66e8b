"""Label conventions: finds sites whose label 1 is another site's label 2, or whose masks are inverted.

For every label and its inverse (all that is not the label), a site's median case gives size, position, spread,
brightness and overlaps with the other regions. A site is reported if another reading of its labels, with some
exchanged or inverted, fits the other sites far better.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

# Allowed spread between sites: of the logit of the share of the frame, of the middle and the extent in sides of the
# frame, of the contrast in deviations of the image, and of the shares that regions overlap. Misfit is the sum of
# squares, in these units, per label.
FEATURE_SPREADS = np.array([1.0, 0.15, 0.15, 0.1, 0.75])
OVERLAP_SPREAD = 0.3
# Six real and twelve generated sites had misfits of 1.6 at most, and of 7.5 or more with two labels exchanged or one
# inverted. A site is reported if its misfit exceeds that of another reading by this margin and is twice as high.
MISFIT_MARGIN = 4.0
ALL_READINGS = 4  # labels up to which every reading is tried: 4! * 2**4 of them
MIN_COMPARABLE = 5  # cases; a site with fewer is not compared

Site = TypeVar("Site")  # a key of sites


@dataclass(frozen=True)
class Regions:
    """The labels of one case, then their inverses: (2 labels, 5) ``features`` and (2 labels, 2 labels) ``overlaps``.

    Features are those of `FEATURE_SPREADS`; ``overlaps[i, j]`` is the share of region i within region j.
    """

    features: NDArray[np.float64]
    overlaps: NDArray[np.float64]


# Per label, the region of the site that is read as it: position of the label, and whether inverted.
Reading = tuple[tuple[int, bool], ...]


def measure_regions(image: NDArray[np.float32], label: NDArray[np.bool_]) -> Regions | None:
    """The regions of a case, image (slices, channels, height, width) and label (slices, labels, height, width).

    `None` if a label is nowhere or everywhere.
    """
    grey = image.mean(axis=1, dtype=np.float64)
    planes = [label[:, position] for position in range(label.shape[1])]
    rows, columns = (_with_inverse(label.sum(axis=(0, axis)), grey.size // label.shape[5 - axis]) for axis in (3, 2))
    counts = rows.sum(axis=1)
    if not counts.all():
        return None
    lit = _with_inverse(np.array([grey[plane].sum() for plane in planes]), grey.sum())
    contrast = lit / counts - (grey.sum() - lit) / (grey.size - counts)
    middles, squares = [], 0.0
    for marked in (rows, columns):
        at = (np.arange(marked.shape[1]) + 0.5) / marked.shape[1]
        middles.append(marked @ at / counts)
        squares += marked @ at**2 / counts - middles[-1] ** 2
    features = [
        np.log(counts / (grey.size - counts)),
        *middles,
        np.sqrt(squares),
        contrast / max(float(grey.std()), np.finfo(float).tiny),
    ]
    common = _with_inverse(
        np.array([[(one & other).sum() for other in planes] for one in planes]), counts[: len(planes)]
    )
    common = _with_inverse(common.T, counts).T
    return Regions(np.stack(features, axis=1), common / counts[:, None])


def _with_inverse(ofs: NDArray[Any], whole: Any) -> NDArray[np.float64]:
    """A sum over each label (labels, ...), followed by that over each inverse: what is left of the ``whole``."""
    return np.concatenate([ofs, whole - ofs]).astype(np.float64)


def compare_conventions(sites: Mapping[Site, Sequence[Regions]]) -> Iterator[tuple[Site, Reading, float, float]]:
    """Sites that fit the others far better in another reading: site, reading, misfit unchanged and misfit so read.

    Of two sites that differ both are reported: either may be the wrong one. Sites with fewer than `MIN_COMPARABLE`
    cases are not compared.
    """
    usual = {site: _median(cases) for site, cases in sites.items() if len(cases) >= MIN_COMPARABLE}
    for site, ours in usual.items():
        others = [theirs for other, theirs in usual.items() if other != site]
        if not others:
            continue
        agreed = _median(others)
        unchanged, *readings = _readings(len(agreed.features) // 2)
        misfits = {reading: _misfit(ours, agreed, reading) for reading in readings}
        best = min(misfits, key=misfits.__getitem__)
        misfit = _misfit(ours, agreed, unchanged)
        if misfit > max(MISFIT_MARGIN + misfits[best], 2 * misfits[best]):
            yield site, best, misfit, misfits[best]


def _median(cases: Sequence[Regions]) -> Regions:
    features, overlaps = ([getattr(case, field) for case in cases] for field in ("features", "overlaps"))
    return Regions(np.median(features, axis=0), np.median(overlaps, axis=0))


def _readings(labels: int) -> list[Reading]:
    """Readings of a site's labels, the unchanged one first; with more than `ALL_READINGS` labels at most one change."""
    unchanged = tuple((position, False) for position in range(labels))
    if labels <= ALL_READINGS:
        orders, inversions = permutations(range(labels)), list(product((False, True), repeat=labels))
        return [tuple(zip(order, inverted, strict=True)) for order in orders for inverted in inversions]
    found = [unchanged]
    for one in range(labels):
        found.append((*unchanged[:one], (one, True), *unchanged[one + 1 :]))
    for one, other in combinations(range(labels), 2):
        order = list(unchanged)
        order[one], order[other] = order[other], order[one]
        found.append(tuple(order))
    return found


def _misfit(ours: Regions, agreed: Regions, reading: Reading) -> float:
    """Distance of a site, so read, from the others' median: mean over labels of squares in units of allowed spreads."""
    labels = len(reading)
    taken = [position + labels * inverted for position, inverted in reading]
    features = (ours.features[taken] - agreed.features[:labels]) / FEATURE_SPREADS
    overlaps = (ours.overlaps[np.ix_(taken, taken)] - agreed.overlaps[:labels, :labels]) / OVERLAP_SPREAD
    return float((features**2).sum() + (overlaps**2).sum()) / labels


def describe_reading(reading: Reading, names: Sequence[str]) -> str:
    """A reading in words: "its cup read as disc, its disc read as cup"."""
    changes = [
        f"{'what is not ' if inverted else ''}its {names[position]} read as {name}"
        for name, (position, inverted) in zip(names, reading, strict=True)
        if inverted or names[position] != name
    ]
    return ", ".join(changes)
