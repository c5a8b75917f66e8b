"""What `check` measures of every case whose arrays are sound, before it compares cases and sites."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmerit_data.checking.conventions import Regions, regions
from fedmerit_data.checking.duplicates import Fingerprint, fingerprint
from fedmerit_data.checking.findings import Located

WITHIN = {"cup": "disc"}
MOST_OUTSIDE = 0.05  # share of the inner label that may lie outside the outer one
COMPARABLE = 5  # cases, below which none can be called unlike the others
GRID = (8, 16, 16)  # slices, height, width of thumbnails


@dataclass(frozen=True)
class Measured:
    """What the checks need to know of one case; sizes are per label."""

    where: Located
    fingerprint: Fingerprint | None  # None: a flat image
    sizes: NDArray[np.float64]  # largest cross-section, as a share of the frame
    volumes: NDArray[np.float64] | None  # ml; None where the case does not say how far apart its voxels lie
    regions: Regions | None  # None: a label is nowhere or everywhere
    at_border: NDArray[np.bool_]
    at_end: NDArray[np.bool_]
    thumbnail: NDArray[np.float64] | None  # of shape GRID; None for photographs
    levels: NDArray[np.float64]  # percentiles of all intensities
    outside: Mapping[tuple[str, str], float]  # share of the inner label that lies outside the outer one

    @property
    def disordered(self) -> bool:
        """Whether a label lies outside the one that it should be part of."""
        return any(share > MOST_OUTSIDE for share in self.outside.values())

    @property
    def flat(self) -> bool:
        """Whether there is next to nothing to see."""
        return bool(self.levels[0] == self.levels[-1])


def measure(where: Located) -> Measured:
    """That of one case."""
    image, label = np.asarray(where.case.image), np.asarray(where.case.label).astype(bool)
    names, spacing = where.site.labels, where.case.spacing
    middle = image[len(image) // 2].mean(axis=0)
    volume = len(image) > 1
    top_or_bottom = np.asarray(label[..., [0, -1], :].any(axis=(0, 2, 3)))
    left_or_right = np.asarray(label[..., [0, -1]].any(axis=(0, 2, 3)))
    first_or_last = np.asarray(label[[0, -1]].any(axis=(0, 2, 3)))
    return Measured(
        where=where,
        fingerprint=fingerprint(middle),
        sizes=label.mean(axis=(2, 3)).max(axis=0),
        volumes=None if spacing is None else label.sum(axis=(0, 2, 3)) * np.prod(spacing) / 1000,
        regions=regions(image, label),
        at_border=np.logical_or(top_or_bottom, left_or_right),
        at_end=np.logical_and(first_or_last, volume),
        thumbnail=_thumbnail(image) if volume else None,
        levels=np.percentile(image, (5, 25, 50, 75, 95)),
        outside={
            (inner, outer): _share_outside(label[:, names.index(inner)], label[:, names.index(outer)])
            for inner, outer in WITHIN.items()
            if inner in names and outer in names
        },
    )


def _thumbnail(image: NDArray[np.float32]) -> NDArray[np.float64]:
    """Slices at even distances from the first to the last, each averaged down to a few pixels."""
    places = np.linspace(0, len(image) - 1, GRID[0]).round().astype(int)
    taken: NDArray[np.float64] = image[places].mean(axis=1, dtype=np.float64)
    for axis in (1, 2):
        parts = np.array_split(taken, GRID[axis], axis=axis)
        taken = np.stack([part.mean(axis=axis) for part in parts], axis=axis)
    return taken


def _share_outside(inner: NDArray[np.bool_], outer: NDArray[np.bool_]) -> float:
    return float((inner & ~outer).sum() / max(inner.sum(), 1))


def outliers(values: NDArray[np.float64], most: float, least_spread: float) -> NDArray[np.bool_]:
    """Which rows of (cases, values) lie far from the others in any column, by median and median deviation."""
    away = np.abs(values - np.median(values, axis=0))
    spread = np.maximum(1.4826 * np.median(away, axis=0), least_spread)
    return np.asarray((away > most * spread).any(axis=1))
