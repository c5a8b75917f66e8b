"""Words that name masks in a source whose names are of no known language: those of files that hold masks."""

from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from fedmerit_data.readers.image_files import is_photograph, read_scan
from fedmerit_data.readers.inventory import Item
from fedmerit_data.readers.names import is_result, split_name
from fedmerit_data.spatial.photographs import BLACK_OR_WHITE, load_photograph, share_between

FEW_VALUES = 16  # of a mask; an image has more
LEAST_SHARE = 8  # masks are at least one of so many files


def find_mask_words(items: Sequence[Item]) -> frozenset[str]:
    """Return the words of folders and names, in lower case, that files with the content of masks have, and no others.

    Few files of each word, and of those without it, are read.
    """
    items = [item for item in items if not is_result(item.key)]
    by_word: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        *parents, stem = item.key.split("/")
        words = split_name(stem)
        for word in {name.casefold() for name in (*parents, *words[:1], *words[-1:]) if not name.isdigit()}:
            by_word[word].append(item)
    found, is_mask = set(), cache(_is_mask)  # files may change from call to call
    for word, named in by_word.items():
        if not max(1, len(items) / LEAST_SHARE) < len(named) < len(items):
            continue
        keys = {item.key for item in named}
        others = [item for item in items if item.key not in keys]
        ends = ((item.path for item in (each[0], each[-1])) for each in (named, others) if each)
        if [{*map(is_mask, paths)} for paths in ends] == [{True}, {False}]:
            found.add(word)
    return frozenset(found)


def _is_mask(path: Path) -> bool:
    """Return whether a file holds few different values, or is black and white."""
    try:
        if is_photograph(path):
            levels = load_photograph(path, "L")
            return np.unique(levels).size <= FEW_VALUES or share_between(levels) <= BLACK_OR_WHITE
        voxels = read_scan(path).voxels
    except Exception:  # any error over a damaged file: its reader says why
        return False
    return np.unique(voxels).size <= FEW_VALUES and bool((voxels == np.rint(voxels)).all())
