"""What the readers of DICOM sets share: which of a patient's series is meant, and what lies outside of it."""

import re
from collections.abc import Collection, Iterable
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import list_visible
from fedmerit_data.spatial.dicom import read_series_uid


def select_series(folders: Collection[Path], name: re.Pattern[str], uid: str | None = None) -> Path:
    """Of a patient's series folders that of the series ``uid``; where none is asked for the only one, or named so.

    Raises:
        BadInput: several could be meant, or none.
    """
    several = sorted(folders)
    if uid is not None:
        several = [folder for folder in several if read_series_uid(folder) == uid]
    elif len(several) > 1:
        several = [folder for folder in several if name.search(folder.name)] or several
    if len(several) != 1:
        raise BadInput(
            f"{min(folders).parent}: {len(several)} of its {len(folders)} series could be the T2 series of its mask; "
            "keep that alone"
        )
    return several[0]


def list_outside(series: Iterable[Path], left_out: Iterable[tuple[Path, str]], source: Path) -> list[tuple[str, str]]:
    """What is left out, by its path in ``source``, but for what lies within a series: that belongs to its case."""
    folders = set(series)
    told = []
    for path, reason in left_out:
        if any(folder != path and folder.is_relative_to(path) for folder in folders):  # its own files alone
            told += [(entry, reason) for entry in list_visible(path) if entry.is_symlink() or not entry.is_dir()]
        elif folders.isdisjoint((path, *path.parents)):
            told.append((path, reason))
    return [(path.relative_to(source).as_posix(), reason) for path, reason in told]
