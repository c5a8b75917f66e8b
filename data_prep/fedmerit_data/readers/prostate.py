"""Readers of prostate MRI whose layout needs more than a table: one section per data set, its layout in the comment."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmerit.errors import BadInput
from fedmerit.files import read_json
from fedmerit_data.raw_cases import (
    Decoded,
    RawCase,
    RawSite,
    add_left_out,
    find_site_folders,
    list_visible,
    note_file,
    pair_files,
    require_file,
)
from fedmerit_data.readers.kind import prostate_kind
from fedmerit_data.spatial.geometry import slice_volume
from fedmerit_data.spatial.photographs import binarise_mask, load
from fedmerit_data.spatial.volumes import read_volume


def decode(case: RawCase, zones: int | None = None, channel: int | None = None) -> Decoded:
    """Return the T2 slices, which may be a ``channel``, and the gland, its zones merged, oriented by `slice_volume`."""
    return slice_volume(case, read_volume(case.image, channel), read_volume(case.label), zones=zones)


# NVFlare's prostate example: ``dataset_2D/<site>/{Image,Mask}/<case>/<slice>.png``; the cases that the data lists
# ``datalist_2D/client_<site>.json`` name are used, and split by patient again. The slices have no pixel size in mm, and
# the layout has only slices that show the prostate.

NVFLARE_LAYOUT = "dataset_2D/<site>/{Image,Mask}/<case>/<slice>.png and datalist_2D/client_<site>.json"
NVFLARE_PARTS = ("Image", "Mask")
NVFLARE_SPLITS = ("training", "validation", "testing")


def find_nvflare(source: Path) -> list[RawSite]:
    """Return every site of ``dataset_2D``, one case per case folder.

    Cases that its data list does not name are left out.
    """
    folders, strays = find_site_folders(source / "dataset_2D", NVFLARE_LAYOUT)
    return add_left_out([_read_nvflare(source, folder) for folder in folders], strays)


def _read_nvflare(source: Path, folder: Path) -> RawSite:
    datalist = source / "datalist_2D" / f"client_{folder.name}.json"
    listed = _listed(datalist, source / "dataset_2D")
    parts = [list_visible(folder / part) for part in NVFLARE_PARTS]
    images, masks = ({path.name: path for path in part if path.is_dir()} for part in parts)
    entries = [*list_visible(folder), *parts[0], *parts[1]]
    cases = []
    left_out = [
        (path.relative_to(folder).as_posix(), "not the folder of a case")
        for path in entries
        if path not in (*images.values(), *masks.values(), *(folder / part for part in NVFLARE_PARTS))
    ]
    for case, image, mask in pair_files(images, masks, folder):
        if {image.relative_to(folder.parent).as_posix(), mask.relative_to(folder.parent).as_posix()} <= listed:
            cases.append(RawCase(case, f"{folder.name}-{case}", image, mask))
        else:
            left_out.append((image.relative_to(folder).as_posix(), f"not in {datalist.name}"))
            left_out.append((mask.relative_to(folder).as_posix(), f"not in {datalist.name}"))
    if not cases:
        raise BadInput(f"{datalist}: names no case of {folder}; make the data list of this folder again")
    return RawSite(folder.name, tuple(cases), tuple(left_out))


def _listed(datalist: Path, folder: Path) -> set[str]:
    """Return the case folders, of images and of masks, that a data list names, relative to ``dataset_2D``."""
    require_file(datalist)
    try:
        lists = read_json(datalist)
        files = [entry[key] for split in NVFLARE_SPLITS for entry in lists.get(split, []) for key in ("image", "label")]
        missing = [file for file in files if not (folder / file).is_file()]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadInput(f"{datalist}: not a readable data list ({error}); expected {NVFLARE_LAYOUT}") from error
    if missing:
        raise BadInput(f"{datalist}: names {missing[0]}, which is not in {folder}; make the data list again")
    return {Path(file).parent.as_posix() for file in files}


def decode_nvflare(case: RawCase) -> Decoded:
    """Return the slices of one case from foot to head, sorted by number; mask values above 127 are the prostate."""
    images, masks = (_numbered(folder) for folder in (case.image, case.label))
    slices = pair_files(images, masks, case.image)
    for name, image, _ in slices:
        if not (name.isascii() and name.isdigit()):
            raise BadInput(f"{image}: not named by the number of its slice; expected {NVFLARE_LAYOUT}")
    slices.sort(key=lambda slice_: int(slice_[0]))
    pixels = _stack([(path, load(path, "L")) for _, path, _ in slices])
    label = _stack([(path, binarise_mask(path, load(path, "L"))) for _, _, path in slices])
    if pixels.shape != label.shape:
        raise BadInput(f"{case.label}: masks of shape {label.shape[1:]}, but images of {pixels.shape[1:]}")
    return Decoded(pixels[:, None].astype(np.float32), label[:, None].astype(np.uint8))


def _numbered(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in list_visible(folder):
        note_file(found, path.stem, path)
    return found


def _stack(slices: list[tuple[Path, NDArray[Any]]]) -> NDArray[Any]:
    name, first = slices[0][0].name, slices[0][1]
    for path, pixels in slices:
        if pixels.shape != first.shape:
            raise BadInput(f"{path}: of shape {pixels.shape}, but {name} has {first.shape}; keep slices of one scan")
    return np.stack([pixels for _, pixels in slices])


NVFLARE_PROSTATE = prostate_kind(
    description="NVFlare's prostate example: dataset_2D/<site>/{Image,Mask}/<case>/*.png + datalist_2D",
    find_sites=find_nvflare,
    decode=decode_nvflare,
    field_of_view=None,
    licence="the terms of the data set that each site's images come from hold",
)
