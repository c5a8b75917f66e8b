"""HD95 and normalised surface Dice of one case, of the edges and distances of MONAI."""

import numpy as np
import torch
from numpy.typing import NDArray

from fedmerit.contract.method import DECIMALS
from fedmerit.schema.scores import TOLERANCE, Surface

MAPPED = 2**25  # voxels of a map of distances; it takes 20 bytes for each
BLOCK = 2**20  # voxels of a surface that are searched for at once
Masks = NDArray[np.bool_] | NDArray[np.uint8]  # (slices, labels, height, width)


def measure_surfaces(
    predicted: Masks, reference: Masks, spacing: tuple[float, float, float] | None
) -> list[Surface | None]:
    """Return one `Surface` per label; a volume is measured in three dimensions, a case of one slice in its plane.

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
    return [_surface(predicted[:, label] > 0, reference[:, label] > 0, unit, steps) for label in range(labels)]


def _surface(
    predicted: NDArray[np.bool_], reference: NDArray[np.bool_], unit: str, steps: tuple[float, ...]
) -> Surface:
    """Measure the surfaces of masks (slices, height, width)."""
    from monai.metrics.utils import get_mask_edges

    found, there = predicted.any(), reference.any()
    if not (found and there):
        return Surface(unit, None, 0.0 if found or there else None)
    predicted, reference, steps = _crop(predicted, reference, steps)
    # both figures are of the same distances: MONAI's own two functions would each search for them
    one, other = (torch.from_numpy(edges) for edges in get_mask_edges(predicted, reference, crop=False))
    there_and_back = [_distances(a, b, steps) for a, b in ((one, other), (other, one))]
    hd95 = max(np.quantile(distances, 0.95) for distances in there_and_back)
    nsd = np.mean(np.concatenate(there_and_back) <= TOLERANCE)
    return Surface(unit, round(float(hd95), DECIMALS), round(float(nsd), DECIMALS))


def _crop(
    predicted: NDArray[np.bool_], reference: NDArray[np.bool_], steps: tuple[float, ...]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], tuple[float, ...]]:
    """Return masks in the smallest box that holds both, and its steps; of a case of one slice in its plane."""
    if len(predicted) == 1:
        predicted, reference, steps = predicted[0], reference[0], steps[1:]
    box = tuple(slice(where.min(), where.max() + 1) for where in np.nonzero(predicted | reference))
    return predicted[box], reference[box], steps  # what lies outside of an array counts as background


def surface_dice_by_area(
    predicted: NDArray[np.bool_], reference: NDArray[np.bool_], spacing: tuple[float, float, float] | None
) -> float | None:
    """Return NSD of one label by the area of both surfaces, 0 to 1, where `Surface.nsd` counts voxels at the surfaces.

    Voxels at a surface stand for areas of different size, most where they are not cubes: this is the definition of
    Nikolov et al. (2021), in MONAI's implementation.

    Args:
        predicted: (slices, height, width) of one label.
        reference: Likewise.
        spacing: mm between slices, rows and columns; where it is not known, one slice is measured in pixels.

    Returns:
        0 if one of them is empty; `None` if both are, or it is a volume of unknown spacing.
    """
    found, there = bool(predicted.any()), bool(reference.any())
    if not (found or there) or (spacing is None and len(predicted) > 1):
        return None
    if not (found and there):
        return 0.0
    from monai.metrics.utils import get_mask_edges

    *cropped, steps = _crop(predicted, reference, spacing or (1.0, 1.0, 1.0))
    masks = [torch.from_numpy(np.pad(mask, 1)) for mask in cropped]
    one, other, *areas = get_mask_edges(*masks, crop=False, spacing=steps)
    near = [_distances(a, b, steps) <= TOLERANCE for a, b in ((one, other), (other, one))]
    sizes = [area[edges].numpy() for area, edges in zip(areas, (one, other), strict=True)]
    within = sum(float(size[close].sum()) for size, close in zip(sizes, near, strict=True))
    return within / sum(float(size.sum()) for size in sizes)


def _distances(edges: torch.Tensor, others: torch.Tensor, steps: tuple[float, ...]) -> NDArray[np.float64]:
    """Return distances from each voxel of one surface to the nearest of the other, in the unit of ``steps``.

    A map of distances of all voxels is fastest, but a large volume's would not fit in memory.
    """
    from monai.metrics.utils import get_surface_distance
    from scipy.spatial import cKDTree

    if edges.numel() <= MAPPED:
        return np.asarray(get_surface_distance(edges, others, spacing=steps), np.float64)
    tree = cKDTree(np.argwhere(others.numpy()) * steps)
    blocks = np.array_split(np.argwhere(edges.numpy()), int(edges.sum()) // BLOCK + 1)
    return np.concatenate([tree.query(block * steps)[0] for block in blocks])
