"""Label maps: the mask values of each label.

``{"disc": (1, 2), "cup": (2,)}``; a label without values is every value above 0. The values of ``ignore`` are
background, as 0 always is; any other value in a mask is an error.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import require_few_labels

LabelMap = Mapping[str, tuple[int, ...]]

ANY: LabelMap = {"mask": ()}
IGNORE = "ignore"  # key of the values that are background
LABEL = re.compile(r"[^\W\d_][\w-]*")
VALUES = re.compile(r"\d{1,9}(\+\d{1,9})*")


def parse_labels(text: str) -> LabelMap:
    """Parse a label map such as ``disc=1+2,cup=2``; ``NAME=any`` is every value above 0.

    Raises:
        BadInput: the text has another form, or `require_labels` rejects the map.
    """
    labels: dict[str, tuple[int, ...]] = {}
    for part in text.split(","):
        name, equals, values = (word.strip() for word in part.partition("="))
        if not equals or not (values == "any" or VALUES.fullmatch(values)):
            raise BadInput(f"labels {text}: {part.strip()!r} is not NAME=VALUE; expected such as disc=1+2,cup=2")
        if name in labels:
            raise BadInput(f"labels {text}: {name} is named twice; give all its values at once, {name}=1+2")
        labels[name] = () if values == "any" else tuple(int(value) for value in values.split("+"))
    require_labels(labels)
    return labels


def require_labels(labels: LabelMap) -> None:
    """`BadInput` unless ``labels`` is a valid label map: plain names, values above 0, no two labels alike."""
    names = [name for name in labels if name != IGNORE]
    if not names:
        raise BadInput("labels: none; expected at least one, such as mask=any or disc=1+2,cup=2")
    seen: dict[frozenset[int], str] = {}
    for name, values in labels.items():
        if not LABEL.fullmatch(name):
            raise BadInput(f"labels: {name!r} is not a valid name; expected a letter, then letters, digits, _ or -")
        if min(values, default=1) < 1:
            raise BadInput(f"labels: {name} has the value {min(values)}; 0 is the background, labels are 1 and above")
        if len(set(values)) < len(values):
            raise BadInput(f"labels: {name} has a value twice; keep one of the two")
        if name == IGNORE:
            continue
        if frozenset(values) in seen:
            raise BadInput(f"labels: {name} and {seen[frozenset(values)]} have the same values; leave one of them out")
        seen[frozenset(values)] = name
    ignored = labels.get(IGNORE)
    if ignored is None:
        return
    if not ignored or not all(labels[name] for name in names):
        raise BadInput(f"labels: {IGNORE} needs values, and cannot go with a label that is any value; leave one out")
    for name in names:
        if both := sorted(set(labels[name]) & set(ignored)):
            raise BadInput(f"labels: {both[0]} is a value of {name} and of {IGNORE}; leave it out of one")


def named_values(labels: LabelMap) -> set[int]:
    """All values that the map gives a meaning, ignored ones too; empty if each label is any value."""
    return {value for values in labels.values() for value in values}


def split_masks(path: Path, index: NDArray[Any], labels: LabelMap) -> list[NDArray[np.bool_]]:
    """The mask of each label, of the shape of a file's values ``index``, in the order of the map.

    Raises:
        BadInput: the file has fractions, negative values, or a value that the map does not name.
    """
    require_few_labels(path, index)
    whole = np.rint(index)
    if not (np.isfinite(index).all() and np.abs(index - whole).max(initial=0) < 1e-3 and whole.min(initial=0) >= 0):
        raise BadInput(f"{path}: has values other than 0, 1, 2, ...; expected a mask")
    known = named_values(labels)
    if all(labels.values()) and (others := sorted({int(value) for value in np.unique(whole)} - known - {0})):
        few = [str(value) for value in others[:10]]
        edges = "; or are they soft edges? Save the mask without smoothing" if len(others) > len(few) else ""
        raise BadInput(
            f"{path}: has the values {', '.join(few)}{', ...' if len(others) > len(few) else ''}, which no label "
            f"has; add them to --labels (NAME={'+'.join(few)}), or ignore them ({IGNORE}={'+'.join(few)}){edges}"
        )
    return [np.isin(whole, values) if values else whole > 0 for name, values in labels.items() if name != IGNORE]


def ignored_remarks(index: NDArray[Any], labels: LabelMap) -> list[str]:
    """A remark if a mask has values that the map ignores."""
    there = sorted({int(value) for value in np.unique(np.rint(index))} & set(labels.get(IGNORE, ())))
    return [f"values {', '.join(map(str, there))} ignored: background"] if there else []
