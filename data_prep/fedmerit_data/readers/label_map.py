"""Label maps: the mask values of each label.

``{"disc": (1, 2), "cup": (2,)}``; a label without values is every value above 0. The values of ``ignore`` are
background, as 0 always is; any other value in a mask is an error. Regions of DICOM have numbers and names; a value
may be either, and regions that no label has are left out.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import require_few_labels
from fedmerit_data.spatial.dicom import Regions

LabelMap = Mapping[str, tuple[int | str, ...]]

ANY: LabelMap = {"mask": ()}
IGNORE = "ignore"  # key of the values that are background
LABEL = re.compile(r"[^\W\d_][\w-]*")
VALUE = r"(\d{1,9}|[^\W\d][^+,=]*)"  # a number, or the name of a region of DICOM
VALUES = re.compile(rf"{VALUE}(\+\s*{VALUE})*")
FEW = 10  # named in a message


def parse_labels(text: str) -> LabelMap:
    """Parse a label map such as ``disc=1+2,cup=2``; ``NAME=any`` is every value above 0.

    Raises:
        BadInput: the text has another form, or `require_labels` rejects the map.
    """
    labels: dict[str, tuple[int | str, ...]] = {}
    for part in text.split(","):
        name, equals, values = (word.strip() for word in part.partition("="))
        if not equals or not (values == "any" or VALUES.fullmatch(values)):
            raise BadInput(f"labels {text}: {part.strip()!r} is not NAME=VALUE; expected such as disc=1+2,cup=2")
        if name in labels:
            raise BadInput(f"labels {text}: {name} is named twice; give all its values at once, {name}=1+2")
        found = [value.strip() for value in values.split("+")]
        labels[name] = () if values == "any" else tuple(int(value) if value.isdigit() else value for value in found)
    require_labels(labels)
    return labels


def require_labels(labels: LabelMap) -> None:
    """`BadInput` unless ``labels`` is a valid label map: plain names, values above 0, no two labels alike."""
    names = [name for name in labels if name != IGNORE]
    if not names:
        raise BadInput("labels: none; expected at least one, such as mask=any or disc=1+2,cup=2")
    seen: dict[frozenset[int | str], str] = {}
    for name, values in labels.items():
        if not LABEL.fullmatch(name):
            raise BadInput(f"labels: {name!r} is not a valid name; expected a letter, then letters, digits, _ or -")
        if (least := min((value for value in values if isinstance(value, int)), default=1)) < 1:
            raise BadInput(f"labels: {name} has the value {least}; 0 is the background, labels are 1 and above")
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
        if both := [value for value in labels[name] if value in ignored]:
            raise BadInput(f"labels: {both[0]} is a value of {name} and of {IGNORE}; leave it out of one")


def named_values(labels: LabelMap) -> set[int]:
    """All numbers that the map gives a meaning, ignored ones too; empty if each label is any value."""
    return {value for values in labels.values() for value in values if isinstance(value, int)}


def split_masks(path: Path, index: NDArray[Any], labels: LabelMap) -> list[NDArray[np.bool_]]:
    """The mask of each label, of the shape of a file's values ``index``, in the order of the map.

    Raises:
        BadInput: the file has fractions, negative values, or a value that the map does not name.
    """
    if texts := [value for values in labels.values() for value in values if isinstance(value, str)]:
        raise BadInput(f"{path}: has numbers; {texts[0]!r} in --labels is the name of a region, as DICOM masks have")
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
    there = sorted({int(value) for value in np.unique(np.rint(index))}.intersection(labels.get(IGNORE, ())))
    return [f"values {', '.join(map(str, there))} ignored: background"] if there else []


def assign_regions(regions: Regions, labels: LabelMap) -> tuple[list[list[int]], list[str]]:
    """The numbers of the regions of each label, in the order of the map, by number or name, and remarks.

    Raises:
        BadInput: no label has a region, or a label is any region of a structure set, which has all kinds of them.
    """
    known = {number: name.strip().casefold() for number, name in regions.names.items()}
    listed = _list_few(regions.names.items())
    if regions.are_named and len(known) > 1 and not all(labels.values()):
        raise BadInput(
            f"{regions.path}: has the structures {listed}; name those of each label in --labels, such as "
            f"mask={min(regions.names.items())[1]}"
        )
    wanted = {label: {_folded(value) for value in values} for label, values in labels.items()}
    taken = {
        label: [number for number, name in known.items() if not values or values & {number, name}]
        for label, values in wanted.items()
    }
    there = {*known, *known.values()}
    absent = [
        f"{value} ({label})"
        for label, values in labels.items()
        for value in values
        if _folded(value) not in there and label != IGNORE
    ]
    used = {number for numbers in taken.values() for number in numbers}
    taken.pop(IGNORE, None)
    if not any(taken.values()):
        raise BadInput(f"{regions.path}: has the regions {listed}; expected {', '.join(absent)}, as --labels says")
    remarks = [f"has no region {', '.join(absent)}"] if absent else []
    if left := [region for region in regions.names.items() if region[0] not in used]:
        remarks.append(f"regions left out, which no label has: {_list_few(left)}")
    return [*taken.values()], remarks


def _folded(value: int | str) -> int | str:
    return value.strip().casefold() if isinstance(value, str) else value


def _list_few(regions: Iterable[tuple[int, str]]) -> str:
    listed = [f"{number} ({name})" for number, name in regions]
    return ", ".join([*listed[:FEW], *["..."] * (len(listed) > FEW)])
