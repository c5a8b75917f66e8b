"""Downsampling: copies of prepared sites at a lower resolution, ``fedmerit data shrink``."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmerit.errors import BadInput
from fedmerit.files import read_json, sha256, write_atomically, write_json
from fedmerit.schema.site_folder import SiteFolder, open_sites
from fedmerit_data.folders import new_folder
from fedmerit_data.preparing.sources import copy_sources


def shrink(sites: Path, out: Path, by: int) -> list[Path]:
    """Write a copy of every site folder below ``sites`` to ``out``, each side ``by`` times smaller; all or none.

    A pixel of an image is the mean of its block of ``by`` x ``by`` pixels; a pixel of a mask is set if at least half of
    its block is.

    Raises:
        BadInput: ``out`` is not empty, an image side is not a multiple of ``by``, sites follow a data plan, or an
            array is not as stated.
    """
    folders = open_sites(sites)
    if folders[0].data_plan:
        raise BadInput(f"{sites}: prepared by a data plan, whose patches would not fit; prepare by a coarser plan")
    height, width = folders[0].image_size
    if by < 1 or height % by or width % by:
        raise BadInput(f"{sites}: images of {height}x{width} cannot be downsampled by {by}; expected a divisor of both")
    with new_folder(out, "shrunk") as folder:
        for one in folders:
            one.require_arrays()
            _write(one, folder / one.name, by)
    return [out / one.name for one in folders]


def _write(site: SiteFolder, out: Path, by: int) -> None:
    stored: dict[str, list[dict[str, Any]]] = read_json(site.path / "datalist.json")
    lists = {split: stored[split] for split in site.splits if split in stored}  # what else is listed is no site's
    checksums = {}
    for split, entries in lists.items():
        for entry, case in zip(entries, site.splits[split], strict=True):
            for key, array in (("image", case.image), ("label", case.label)):
                means = block_means(array, by)
                smaller = means.astype(np.float32) if key == "image" else (means >= 0.5).astype(np.uint8)
                file = out / (case.image_file if key == "image" else case.label_file).relative_to(site.path)
                write_atomically(file, partial(np.save, arr=smaller))
                checksums[entry[key]] = sha256(file)
            if isinstance(spacing := entry.get("spacing"), list) and len(spacing) == 3:
                entry["spacing"] = [spacing[0], *(step * by for step in spacing[1:])]
    changed: dict[str, Any] = {
        "image_size": [side // by for side in site.image_size],
        "checksums": checksums,
        "shrunk_by": by,
    }
    if spacing := site.info.get("spacing"):  # None if pixels follow the images' own
        changed["spacing"] = [step * by for step in spacing]
    of_size = ("kept", "lost")  # what resizing left, which is less now
    readings = site.info.get("readings") or ()
    changed["readings"] = [{name: reading[name] for name in reading if name not in of_size} for reading in readings]
    write_json(out / "datalist.json", lists)
    copy_sources(out, [(case.name, site, case.name) for split in lists for case in site.splits[split]])
    write_json(out / "site.json", {**site.info, **changed})


def block_means(array: NDArray[Any], by: int) -> NDArray[np.float64]:
    """Return (..., h / by, w / by) means over blocks of ``by`` x ``by`` pixels of (..., h, w)."""
    *rest, height, width = array.shape
    blocks = np.asarray(array, dtype=np.float64).reshape(*rest, height // by, by, width // by, by)
    return np.asarray(blocks.mean(axis=(-3, -1)))
