"""Whether sites mean the same by their labels: one whose label 1 is another's 2, or whose masks are inverted.

Of every label and of its inverse (what is not the label) a site's median case says how large it is, where it lies, how
far it spreads, how bright it is and how much of it each other region holds. A site is told where reading its labels in
another way, some exchanged or inverted, fits the other sites far better than reading them as they are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

# How far each may stray from site to site: the logit of the share of the frame, the middle and the spread in sides of
# the frame, the contrast in deviations of the image, the shares that regions hold of each other. Misfit is the sum of
# squares, in these units, per label.
SPREADS = np.array([1.0, 0.15, 0.15, 0.1, 0.75])
HELD = 0.3
# Six real and twelve generated sites misfit by 1.6 at most as they are, and by 7.5 or more with two labels exchanged or
# one inverted. Told is what misfits by so much more as it is than in another reading, and at least twice as much.
FAR_BETTER = 4.0
ALL_READINGS = 4  # labels up to which every reading is tried: 4! * 2**4 of them
COMPARABLE = 5  # cases that show all labels, below which a site is not compared

Site = TypeVar("Site")  # whatever tells sites apart


@dataclass(frozen=True)
class Regions:
    """The labels of one case and then their inverses: ``own`` is (2 labels, features), ``held`` (2 labels, 2 labels).

    Features are those of `SPREADS`; ``held[i, j]`` is the share of region i that lies in region j.
    """

    own: NDArray[np.float64]
    held: NDArray[np.float64]


# Per label, which region of the site stands for it: position of the label, and whether inverted.
Reading = tuple[tuple[int, bool], ...]


def regions(image: NDArray[np.float32], label: NDArray[np.bool_]) -> Regions | None:
    """Those of one case, image (slices, channels, height, width) and label (slices, labels, height, width).

    `None` where a label is nowhere or everywhere.
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
    own = [
        np.log(counts / (grey.size - counts)),
        *middles,
        np.sqrt(squares),
        contrast / max(float(grey.std()), np.finfo(float).tiny),
    ]
    common = _with_inverse(
        np.array([[(one & other).sum() for other in planes] for one in planes]), counts[: len(planes)]
    )
    common = _with_inverse(common.T, counts).T
    return Regions(np.stack(own, axis=1), common / counts[:, None])


def _with_inverse(ofs: NDArray[Any], whole: Any) -> NDArray[np.float64]:
    """A sum over each label (labels, ...), followed by that over each inverse: what is left of the ``whole``."""
    return np.concatenate([ofs, whole - ofs]).astype(np.float64)


def conventions(sites: Mapping[Site, Sequence[Regions]]) -> Iterator[tuple[Site, Reading, float, float]]:
    """The sites that fit the others far better in another reading: that, and the misfit as they are and so read.

    Of two sites that differ both are named: either may be the one that is wrong. Sites of less than `COMPARABLE`
    cases are not compared.
    """
    usual = {
        site: Regions(np.median([case.own for case in cases], axis=0), np.median([case.held for case in cases], axis=0))
        for site, cases in sites.items()
        if len(cases) >= COMPARABLE
    }
    for site, ours in usual.items():
        others = [theirs for other, theirs in usual.items() if other != site]
        if not others:
            continue
        agreed = Regions(
            np.median([theirs.own for theirs in others], axis=0), np.median([theirs.held for theirs in others], axis=0)
        )
        as_is, *readings = _readings(len(agreed.own) // 2)
        misfits = {reading: _misfit(ours, agreed, reading) for reading in readings}
        best = min(misfits, key=misfits.__getitem__)
        misfit = _misfit(ours, agreed, as_is)
        if misfit > max(FAR_BETTER + misfits[best], 2 * misfits[best]):
            yield site, best, misfit, misfits[best]


def _readings(labels: int) -> list[Reading]:
    """Ways to read a site's labels, as they are first; of more than `ALL_READINGS` labels those with one change."""
    as_is = tuple((position, False) for position in range(labels))
    if labels <= ALL_READINGS:
        orders, inversions = permutations(range(labels)), list(product((False, True), repeat=labels))
        return [tuple(zip(order, inverted, strict=True)) for order in orders for inverted in inversions]
    found = [as_is]
    for one in range(labels):
        found.append((*as_is[:one], (one, True), *as_is[one + 1 :]))
    for one, other in combinations(range(labels), 2):
        order = list(as_is)
        order[one], order[other] = order[other], order[one]
        found.append(tuple(order))
    return found


def _misfit(ours: Regions, agreed: Regions, reading: Reading) -> float:
    """How far a site so read lies from what the others agree on: mean over labels of squares in allowed spreads."""
    labels = len(reading)
    taken = [position + labels * inverted for position, inverted in reading]
    own = (ours.own[taken] - agreed.own[:labels]) / SPREADS
    held = (ours.held[np.ix_(taken, taken)] - agreed.held[:labels, :labels]) / HELD
    return float((own**2).sum() + (held**2).sum()) / labels


def in_words(reading: Reading, names: Sequence[str]) -> str:
    """A reading in words: "its cup read as disc, its disc read as cup"."""
    changes = [
        f"{'what is not ' if inverted else ''}its {names[position]} read as {name}"
        for name, (position, inverted) in zip(names, reading, strict=True)
        if inverted or names[position] != name
    ]
    return ", ".join(changes)
