"""One plan for all sites' volumes from their survey, by the published rules of nnU-Net.

Isensee et al., Nature Methods 18 (2021) 203-211, Methods: target spacing, patch size, network topology, batch size.
Theirs are the rules, not the code; the medians here are of bins, since nothing finer leaves a site.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmerit.errors import BadInput
from fedmerit.schema.configuration.data import DataPlan
from fedmerit.schema.configuration.settings import Network
from fedmerit.schema.survey import QUANTITIES, Survey
from fedmerit.trainers.monai.network_checks import MAPS
from fedmerit.trainers.monai.networks import SHORTEST, kernels_and_strides

ANISOTROPIC = 3.0  # slices so many times further apart than pixels get their 10th percentile instead of the median
FEWEST, MOST_SHARE = 2, 0.05  # patches of a batch; share of all voxels that a batch may hold
MULTIPLE = 16  # of a slice's side, which networks of slices can halve four times
DEEPEST = 9  # levels


@dataclass(frozen=True)
class Fingerprint:
    """The facts that a plan follows from: patients of all sites, and quantiles of their volumes as acquired."""

    patients: int
    pixel_spacing: float  # mm, median
    slice_spacing: float  # mm, median
    finest_slices: float  # mm, 10th percentile of the distance of slices
    slices: float  # median
    field_of_view: float  # mm, largest


def merge(survey: Survey) -> Fingerprint:
    """Return the fingerprint of all sites that answered a survey; `BadInput` if no site shows a bin of one quantity."""
    pixels, apart, slices, field = (
        _merged(survey, name) for name in ("pixel_spacing", "slice_spacing", "slices", "field_of_view")
    )
    edges = {name: QUANTITIES[name].edges for name in ("pixel_spacing", "slice_spacing", "slices", "field_of_view")}
    return Fingerprint(
        patients=sum(one.patients for one in survey.sites.values()),
        pixel_spacing=quantile(pixels, edges["pixel_spacing"], 0.5),
        slice_spacing=quantile(apart, edges["slice_spacing"], 0.5),
        finest_slices=quantile(apart, edges["slice_spacing"], 0.1),
        slices=quantile(slices, edges["slices"], 0.5),
        field_of_view=quantile(field, edges["field_of_view"], 1.0),
    )


def _merged(survey: Survey, name: str) -> NDArray[np.int64]:
    """Return patients of all sites by bin; sites hide bins below the floor."""
    found = [one.tallies[name].patients for one in survey.sites.values() if name in one.tallies]
    total: NDArray[np.int64] = np.sum(found or [(0,)], axis=0)
    if not total.any():
        raise BadInput(
            f"survey: no site shows {QUANTITIES[name].title.lower()} of {survey.floor} patients or more; a plan needs "
            "volumes whose files state their spacing, and sites with more patients"
        )
    return total


def quantile(counts: Sequence[int] | NDArray[np.int64], edges: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of ``counts`` lies, interpolated within its bin.

    An open bin counts as its edge.
    """
    below = np.concatenate([[0], np.cumsum(counts)]).astype(float)
    ends = [edges[0], *edges, edges[-1]]
    wanted = share * below[-1]
    place = int(np.searchsorted(below[1:], wanted, side="left"))
    within = (wanted - below[place]) / (below[place + 1] - below[place])
    return float(ends[place] + within * (ends[place + 1] - ends[place]))


def make_plan(found: Fingerprint, memory: float = 4.0, width: int = 8, field_of_view: float | None = None) -> DataPlan:
    """Return the plan for a fingerprint.

    Spacing: the median; of slices more than three times as far apart as pixels the 10th percentile, so that fine scans
    lose little. Patch: the median volume, of which the longest side, in parts of the volume, shrinks until a batch of
    two fits the memory. Network: as many levels as can halve the patch. Batch: what then still fits, up to a twentieth
    of all voxels.

    Args:
        memory: GB that the feature maps of a step may take.
        width: channels of the network's first level.
        field_of_view: mm to crop slices to, about the centre; None: the largest, so that nothing is cut off.

    Raises:
        BadInput: no patch fits the memory.
    """
    field = field_of_view or found.field_of_view
    coarse = found.slice_spacing > ANISOTROPIC * found.pixel_spacing
    distance = found.finest_slices if coarse else found.slice_spacing
    size = max(MULTIPLE, MULTIPLE * round(field / found.pixel_spacing / MULTIPLE))
    spacing = (round(distance, 3), field / size, field / size)
    volume = np.array([max(2.0, found.slices * found.slice_spacing / distance), size, size])
    room = memory * 1e9 / (4 * MAPS * width)  # voxels of a batch
    patch = np.ceil(volume)
    while True:
        whole, steps = _divisible(patch, spacing)
        if FEWEST * math.prod(whole) <= room:
            break
        sides, smaller = np.array(whole), np.array(whole) - steps
        axis = int(np.argmax(np.where(smaller >= SHORTEST, sides / volume, -1)))
        if smaller[axis] < SHORTEST:
            raise BadInput(
                f"memory {memory:g} GB: too little for two patches of width {width}; give more, or less width"
            )
        patch = np.where(np.arange(3) == axis, smaller, sides)
    voxels = MOST_SHARE * found.patients * float(volume.prod())
    batch = max(FEWEST, math.floor(min(room, voxels) / math.prod(whole)))
    depth = len(_strides(whole, spacing)) + 1
    return DataPlan(size, field, spacing[0], whole, depth, width, batch)


def _divisible(
    patch: NDArray[np.float64], spacing: tuple[float, float, float]
) -> tuple[tuple[int, int, int], list[int]]:
    """Return a patch whose sides the network can halve, as near above as can be, and by axis the multiples that it
    takes.
    """
    sides = tuple(int(side) for side in patch)
    while True:
        strides = _strides(sides, spacing)
        steps = [math.prod(level[axis] for level in strides) for axis in range(3)]
        whole = tuple(-(-side // step) * step for side, step in zip(sides, steps, strict=True))
        if whole == sides:
            return (whole[0], whole[1], whole[2]), steps
        sides = whole


def _strides(sides: Sequence[int], spacing: tuple[float, float, float]) -> list[list[int]]:
    """Return the strides of each level that halve a patch, as long as an axis can be halved."""
    network = Network(1, ("organ",), depth=DEEPEST, patch=tuple(sides), spacing=spacing)
    return [level for level in kernels_and_strides(network)[1] if max(level) > 1]
