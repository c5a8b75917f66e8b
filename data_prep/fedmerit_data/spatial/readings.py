"""How a case was read, and what cropping, resizing and the window of intensities left of it.

The preparation writes these into site.json; its table and the checks print what they hold.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from fedmerit_data.raw_cases import Decoded

if TYPE_CHECKING:
    from fedmerit_data.spatial.preprocessing import Box

MUCH_CUT = 0.5  # share of the values of a CT beyond its window; a body within air has more
LITTLE, MUCH = 0.9, 1.1  # of a label's volume that resizing leaves, which is not reported
UNKNOWN = "not stated"


class Reading(BaseModel, frozen=True):
    """A reading of one case; lengths in mm, shares from 0 to 1."""

    case: str
    plane: str | None = None  # of `geometry.PLANES`; None: a photograph, or the file states no place
    stored: str | None = None  # directions of the axes in the file, such as RAS
    spacing: tuple[float, float, float] | None = None  # of slices, rows and columns, before resizing
    spacing_from: str | None = None  # which part of the file states it
    cut: float | None = None  # share of the values that are beyond the window; None: there is no window
    kept: Mapping[str, float] = Field(default_factory=dict)  # stored volume of each label by that in its mask
    lost: Mapping[str, tuple[int, int]] = Field(default_factory=dict)  # pieces of which nothing is stored, and all


def read_case(
    name: str, labels: Sequence[str], decoded: Decoded, stored: NDArray[np.uint8], box: "Box", modality: str
) -> tuple[Reading, list[str]]:
    """Return the reading of a case, and remarks on labels that it lacks and on pieces that resizing leaves nothing of.

    Args:
        decoded: The case before, and its window ``box``.
        stored: Its prepared label, (slices, labels, size, size).
        modality: One of `fedmerit.schema.configuration.data.NORMALISATIONS`.
    """
    from fedmerit_data.spatial.preprocessing import WINDOWS, crop_to, lost_pieces  # it takes seconds to import MONAI

    kept, lost, remarks = {}, {}, []
    size = stored.shape[-1]
    for place, label in enumerate(labels):
        before = int(decoded.label[:, place].sum(dtype=np.int64))
        if not before:
            remarks.append(f"no {label} in its mask")
            continue
        after = int(stored[:, place].sum(dtype=np.int64))
        thicker = len(decoded.label) / len(stored)
        kept[label] = round(after * thicker * box.height * box.width / size**2 / before, 4)
        voxels, pieces = lost_pieces(decoded.label[:, place], size, box)
        lost[label] = len(voxels), pieces
        if not after:
            remarks.append(f"{label} of {before} voxels is lost at {size} pixels")
        elif voxels:
            sizes = " to ".join(map(str, sorted({voxels[0], voxels[-1]})))
            remarks.append(f"{label}: {len(voxels)} of {pieces} pieces, of {sizes} voxels, lost at {size} pixels")
    steps = decoded.spacing and decoded.slice_distance and (decoded.slice_distance, *decoded.spacing)
    cut = None
    if window := WINDOWS.get(modality):
        values = crop_to(decoded.image, box)
        cut = round(float(np.mean((values < window[0]) | (values > window[1]))), 4)
    place_of = {"plane": decoded.plane, "stored": decoded.stored, "spacing_from": decoded.spacing_from}
    return Reading(case=name, **place_of, spacing=steps or None, cut=cut, kept=kept, lost=lost), remarks


def stated_readings(info: Mapping[str, Any]) -> list[Reading]:
    """Return the readings in site.json; none if it has none of this form."""
    try:
        return [Reading.model_validate(one) for one in info.get("readings", ())]
    except (TypeError, ValidationError):
        return []


def summarise(readings: Sequence[Reading], labels: Sequence[str]) -> dict[str, str]:
    """Return one cell by heading for a site.

    Planes, orientation, spacing and its source, values cut, label volume kept.
    """
    cells = {
        "plane": _counted(one.plane for one in readings),
        "axes": _counted(one.stored for one in readings),
        "mm": _spacings([one.spacing for one in readings if one.spacing]),
        "mm from": _counted(one.spacing_from for one in readings),
    }
    if any(one.cut is not None for one in readings):
        cells["cut"] = f"{np.mean([one.cut for one in readings if one.cut is not None]):.1%}"
    for label in labels:
        shares = [one.kept[label] for one in readings if label in one.kept]
        lost, pieces = np.sum([one.lost.get(label, (0, 0)) for one in readings], axis=0) if readings else (0, 0)
        text = f"{np.mean(shares):.0%}, lowest {min(shares):.0%}" if shares else "in no case"
        cells[f"{label} kept"] = text + (f"; {lost} of {pieces} pieces lost" if lost else "")
    return cells


def _counted(values: Iterator[str | None]) -> str:
    found = Counter(value or UNKNOWN for value in values)
    texts = [value if len(found) == 1 else f"{value} {count}" for value, count in found.most_common()]
    return ", ".join(texts) or UNKNOWN


def _spacings(found: Sequence[tuple[float, float, float]]) -> str:
    if not found:
        return UNKNOWN
    ends = [(f"{min(steps):.3g}", f"{max(steps):.3g}") for steps in zip(*found, strict=True)]
    return " x ".join(low if low == high else f"{low}-{high}" for low, high in ends)
