"""DICOM series in the readers: the selection of a patient's series, and the files outside of it."""

import re
from collections.abc import Collection, Iterable
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import list_visible
from fedmerit_data.spatial.dicom import read_series_uid


def select_series(folders: Collection[Path], name: re.Pattern[str], uid: str | None = None) -> Path:
    """The folder of the series ``uid``; without a uid the only one of a patient's series, or the one that has ``name``.

    Raises:
        BadInput: several series match, or none.
    """
    several = sorted(folders)
    if uid is not None:
        several = [folder for folder in several if read_series_uid(folder) == uid]
    elif len(several) > 1:
        several = [folder for folder in several if name.search(folder.name)] or several
    if len(several) != 1:
        raise BadInput(
            f"{min(folders).parent}: {len(several)} of its {len(folders)} series could be the T2 series of its mask; "
            "keep only that one"
        )
    return several[0]


def list_outside(series: Iterable[Path], left_out: Iterable[tuple[Path, str]], source: Path) -> list[tuple[str, str]]:
    """Files and folders left out, by path in ``source``, except those within a series, which belong to its case."""
    folders = set(series)
    found = []
    for path, reason in left_out:
        if any(folder != path and folder.is_relative_to(path) for folder in folders):  # only its own files
            found += [(entry, reason) for entry in list_visible(path) if entry.is_symlink() or not entry.is_dir()]
        elif folders.isdisjoint((path, *path.parents)):
            found.append((path, reason))
    return [(path.relative_to(source).as_posix(), reason) for path, reason in found]
