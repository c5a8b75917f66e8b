"""Label maps: what of a mask each label is.

``{"disc": (1, 2), "cup": (2,)}`` by values, ``{"kidney": ("kidney_left", "kidney_right")}`` by the names of organs; a
label without values is every value above 0. The values of ``ignore`` are background, as 0 always is; any other value
in a mask is an error. Regions of DICOM have numbers and names; those that no label has are left out.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmerit.errors import BadInput
from fedmerit.files import read_object
from fedmerit_data.raw_cases import require_whole
from fedmerit_data.spatial.dicom import Regions

LabelMap = Mapping[str, tuple[int | str, ...]]

ANY: LabelMap = {"mask": ()}
IGNORE = "ignore"  # key of the values that are background
LABEL = re.compile(r"[^\W\d_][\w-]*")
VALUE = re.compile(r"\d{1,9}")
NAME = re.compile(r"[^\W\d_]|#[0-9A-Fa-f]{6}$|(?=.*[^\W\d_])[~_(\[\d]")  # begins the name of an organ or region
NAMED = re.compile(r"=\s*['\"]?\D")  # a label whose values are names
QUOTED = re.compile(r"'[^']+'|\"[^\"]+\"")
OUTSIDE_QUOTES = r"(?=(?:[^'\"]|'[^']*'|\"[^\"]*\")*$)"  # what follows has no quote of which the other came before
COLOUR = re.compile(r"#[0-9A-Fa-f]{6}")
OTHERS = "others"  # of IGNORE: all values that no label has
MAX_NAMED = 10  # values or names in one error


@dataclass(frozen=True)
class Layer:
    """The values of a mask in which no two labels overlap; a mask whose labels do has several layers.

    ``names`` are the values of the segments or organs that have names; ``is_numbered`` says whether values have a
    meaning of their own.
    """

    index: NDArray[Any]
    names: Mapping[str, int] = field(default_factory=dict)
    is_numbered: bool = True


def parse_labels(text: str) -> LabelMap:
    """Parse a label map such as ``disc=1+2,cup=2`` or ``gland=Prostate,lesion=Lesion 1+Lesion 2``.

    ``NAME=any`` is every value above 0.

    Raises:
        BadInput: the text has another form, or `require_labels` rejects the map.
    """
    if text.lower().endswith(".json"):
        return _read_map(Path(text))
    labels: dict[str, tuple[int | str, ...]] = {}
    for part in _split(text, ","):
        name, equals, values = (word.strip() for word in part.partition("="))
        parts = [value.strip() for value in _split(values, "+")]
        if not equals or not all(QUOTED.fullmatch(one) or VALUE.fullmatch(one) or NAME.match(one) for one in parts):
            raise BadInput(
                f"labels {text}: {part.strip()!r} is not NAME=VALUE; expected such as disc=1+2,cup=2, with names "
                "of structures that hold , + or = in quotes: ctv='CTV+5mm'"
            )
        if name in labels:
            raise BadInput(f"labels {text}: {name} is named twice; give all its values at once, {name}=1+2")
        labels[name] = () if values == "any" else tuple(map(_value, parts))
    require_labels(labels)
    return labels


def _split(text: str, separator: str) -> list[str]:
    """Return the parts of a text between separators that are not in quotes; a comma within a name is part of it."""
    parts = re.split(rf"{re.escape(separator)}{OUTSIDE_QUOTES}", text)
    if separator == "+" or not all(part.strip() for part in parts):
        return parts
    joined = parts[:1]
    for part in parts[1:]:
        if "=" in part or not NAMED.search(joined[-1]):
            joined.append(part)
        else:
            joined[-1] += f",{part}"
    return joined


def _value(text: str) -> int | str:
    if QUOTED.fullmatch(text):
        return text[1:-1]
    if COLOUR.fullmatch(text):
        return text.lower()
    return int(text) if VALUE.fullmatch(text) else text


def _read_map(file: Path) -> LabelMap:
    """Return the label map of a JSON file: for each label a value, a name, a list of them, or "any"."""
    content = read_object(file)
    labels: dict[str, tuple[int | str, ...]] = {}
    for name, stated in content.items():
        values = stated if isinstance(stated, list) else [stated]
        if not values or not all(isinstance(one, int | str) and not isinstance(one, bool) for one in values):
            raise BadInput(
                f'{file}: {name} has {stated}; expected a value, a name, or a list: {{"ctv": ["CTV+5mm", 3]}}'
            )
        labels[name] = () if values == ["any"] else tuple(values)
    require_labels(labels)
    return labels


def is_colour(value: int | str) -> bool:
    """Return whether a value of a label is a colour of a picture, such as #fa3253."""
    return isinstance(value, str) and COLOUR.fullmatch(value) is not None


def require_labels(labels: LabelMap) -> None:
    """Raise `BadInput` unless ``labels`` is a valid label map: plain names, values above 0, no two labels alike."""
    names = [name for name in labels if name != IGNORE]
    if not names:
        raise BadInput("labels: none; expected at least one, such as mask=any or disc=1+2,cup=2")
    seen: dict[frozenset[int | str], str] = {}
    for name, values in labels.items():
        numbers = [value for value in values if isinstance(value, int)]
        if not LABEL.fullmatch(name):
            raise BadInput(f"labels: {name!r} is not a valid name; expected a letter, then letters, digits, _ or -")
        if min(numbers, default=1) < 1:
            raise BadInput(f"labels: {name} has the value {min(numbers)}; 0 is the background, labels are 1 and above")
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
    if OTHERS in ignored and len(ignored) > 1:
        raise BadInput(f"labels: {IGNORE}={OTHERS} is all values that no label has; leave the others out")
    for name in names:
        if both := sorted(map(str, set(labels[name]) & set(ignored))):
            raise BadInput(f"labels: {both[0]} is a value of {name} and of {IGNORE}; leave it out of one")


def named_values(labels: LabelMap) -> set[int]:
    """Return all values that the map gives a meaning, ignored ones too; empty if each label is any value."""
    return {value for values in labels.values() for value in values if isinstance(value, int)}


def named_organs(labels: LabelMap) -> set[str]:
    """Return all names of organs in the map, ignored ones too."""
    return {
        value
        for label, values in labels.items()
        for value in values
        if isinstance(value, str) and not is_colour(value) and (label, value) != (IGNORE, OTHERS)
    }


def named_colours(labels: LabelMap) -> set[str]:
    """Return all colours in the map, ignored ones too."""
    return {str(value) for values in labels.values() for value in values if is_colour(value)}


def split_masks(path: Path, layers: Sequence[Layer], labels: LabelMap) -> list[NDArray[np.bool_]]:
    """Return the mask of each label, of the shape of a layer, in the order of the map.

    Raises:
        BadInput: the file has fractions, negative values, a value that the map does not name, or lacks an organ of it.
    """
    there = {name for layer in layers for name in layer.names}
    if missing := sorted(named_organs(labels) - there):
        known = f"has {_list(sorted(there))}" if there else "has values without names"
        raise BadInput(f"{path}: has no {missing[0]}, which --labels names; it {known}: correct --labels or the mask")
    masks = [np.zeros(layers[0].index.shape, np.bool_) for name in labels if name != IGNORE]
    for layer in layers:
        # A parcellation has more labels than an image given by mistake may have values.
        whole = require_whole(path, layer.index, few=not all(labels.values()))
        meant = {name: _values(layer, values) for name, values in labels.items()}
        if all(labels.values()) and layer.is_numbered and OTHERS not in labels.get(IGNORE, ()):
            _require_known(path, whole, layer, {value for values in meant.values() for value in values})
        for mask, name in zip(masks, (name for name in labels if name != IGNORE), strict=True):
            mask |= np.isin(whole, meant[name]) if labels[name] else whole > 0
    return masks


def _values(layer: Layer, values: Sequence[int | str]) -> list[int]:
    """Return those values of a label that a layer has."""
    numbers = [value for value in values if isinstance(value, int)] if layer.is_numbered else []
    return numbers + [layer.names[value] for value in values if isinstance(value, str) and value in layer.names]


def _require_known(path: Path, whole: NDArray[Any], layer: Layer, known: set[int]) -> None:
    others = sorted({int(value) for value in np.unique(whole)} - known - {0})
    if not others:
        return
    called = {value: name for name, value in layer.names.items()}
    words = [called.get(value, str(value)) for value in others]
    many = f"; {IGNORE}={OTHERS} ignores all of them. Or are they soft edges? Save the mask without smoothing"
    edges = many if len(others) > MAX_NAMED else ""
    few = "+".join(words[:MAX_NAMED])
    raise BadInput(
        f"{path}: has the values {_list(words)}, which no label has; add them to --labels (NAME={few}), or ignore them "
        f"({IGNORE}={few}){edges}"
    )


def _list(words: Sequence[str]) -> str:
    return ", ".join([*words[:MAX_NAMED], *["..."] * (len(words) > MAX_NAMED)])


def ignored_remarks(layers: Sequence[Layer], labels: LabelMap) -> list[str]:
    """Return a remark if a mask has values that the map ignores."""
    ignored = labels.get(IGNORE, ())
    if OTHERS in ignored:
        meant = {value for values in labels.values() for layer in layers for value in _values(layer, values)} | {0}
        others = {int(value) for layer in layers for value in np.unique(np.rint(layer.index))} - meant
        return [f"{len(others)} other values ignored: background"] if others else []
    found = {value for layer in layers for value in _values(layer, ignored) if (np.rint(layer.index) == value).any()}
    return [f"values {', '.join(map(str, sorted(found)))} ignored: background"] if found else []


def assign_regions(regions: Regions, labels: LabelMap) -> tuple[list[list[int]], list[str]]:
    """Return the numbers of the regions of each label, in the order of the map, by number or name, and remarks.

    Raises:
        BadInput: no label has a region, or a label is any region of a structure set, which has all kinds of them.
    """
    known = {number: name.strip().casefold() for number, name in regions.names.items()}
    listed = _list(_numbered(regions.names.items()))
    if regions.are_named and len(known) > 1 and not all(labels.values()):
        raise BadInput(
            f"{regions.path}: has the structures {listed}; name those of each label in --labels, such as "
            f"mask={min(regions.names.items())[1]}"
        )
    labels = {label: _joined(values, set(known.values())) for label, values in labels.items()}
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
        remarks.append(f"regions left out, which no label has: {_list(_numbered(left))}")
    return [*taken.values()], remarks


def _joined(values: tuple[int | str, ...], known: Collection[str]) -> tuple[int | str, ...]:
    """Return the values, those that were typed without quotes and are one name with + in it as one."""
    for first in range(len(values)):
        for end in range(len(values), first + 1, -1):
            name = "+".join(str(value).strip() for value in values[first:end])
            if name.casefold() in known:
                return (*values[:first], name, *_joined(values[end:], known))
    return values


def _folded(value: int | str) -> int | str:
    return value.strip().casefold() if isinstance(value, str) else value


def _numbered(regions: Iterable[tuple[int, str]]) -> list[str]:
    return [f"{number} ({name})" for number, name in regions]
