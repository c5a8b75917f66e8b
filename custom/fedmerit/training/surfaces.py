"""HD95 and normalised surface Dice of one case, by MONAI."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import numpy as np
import torch
from monai.metrics.hausdorff_distance import compute_hausdorff_distance
from monai.metrics.surface_dice import compute_surface_dice
from numpy.typing import NDArray
from torch import Tensor

from fedmerit.core import DECIMALS
from fedmerit.training.overlaps import TOLERANCE, Surface

PERCENTILE = 95
FILTERING = Lock()  # filters of warnings are the whole process's, and sites may work in threads
Masks = NDArray[np.bool_] | NDArray[np.uint8]  # (slices, labels, height, width)


def measure_surfaces(
    predicted: Masks, reference: Masks, spacing: tuple[float, float, float] | None
) -> list[Surface | None]:
    """One `Surface` per label; a volume is measured in three dimensions, a case of one slice in its plane.

    HD95 is the larger of the two directed 95th percentiles, NSD the share of both surfaces' voxels that lie within
    `TOLERANCE` of the other surface.

    Args:
        predicted: masks.
        reference: likewise, of the same shape.
        spacing: mm between slices, rows and columns. Where it is not known, one slice is measured in pixels, and of a
            volume nothing is known: its slices do not lie as far apart as its pixels.
    """
    slices, labels = predicted.shape[:2]
    if spacing is None and slices > 1:
        return [None] * labels
    unit, steps = ("px", (1.0, 1.0, 1.0)) if spacing is None else ("mm", spacing)
    with _without_monais_warning():
        return [_surface(predicted[:, label] > 0, reference[:, label] > 0, unit, steps) for label in range(labels)]


@contextmanager
def _without_monais_warning() -> Iterator[None]:
    """MONAI 1.6 warns of a call of its own."""
    with FILTERING, warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*always_return_as_numpy", FutureWarning)
        yield


def _surface(
    predicted: NDArray[np.bool_], reference: NDArray[np.bool_], unit: str, steps: tuple[float, ...]
) -> Surface:
    """Of masks (slices, height, width)."""
    found, there = predicted.any(), reference.any()
    if not (found and there):
        return Surface(unit, None, 0.0 if found or there else None)
    if len(predicted) == 1:
        predicted, reference, steps = predicted[0], reference[0], steps[1:]
    one, other = (torch.from_numpy(mask)[None, None] for mask in (predicted, reference))
    hd95 = compute_hausdorff_distance(one, other, include_background=True, percentile=PERCENTILE, spacing=steps)
    nsd = compute_surface_dice(one, other, [TOLERANCE], include_background=True, spacing=steps)
    return Surface(unit, _number(hd95), _number(nsd))


def _number(value: Tensor) -> float:
    return round(float(value), DECIMALS)
