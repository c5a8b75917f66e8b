"""The gate of a site: what may leave are the fields of answers, each in the form that its declaration has.

The gate shares with the server's inspection only the declarations. It walks the carried form by itself, knows neither
round nor method, and quotes nothing. `list_fields` is the list of what leaves; people have approved the copy in
egress_approved.txt, and a test compares both, so that no new field leaves unseen.
"""

import re
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from fedmerit.contract.method import DECIMALS
from fedmerit.methods.registry import asked_quantities
from fedmerit.schema.codec import KIND, KINDS, params_field
from fedmerit.schema.messages import ANSWERS, Instead, PeerModel, Quantity, payload_fields
from fedmerit.schema.rules import TENSOR_NAME, Choice, Count, Number, Part, Text, parts_of
from fedmerit.schema.survey import LEAST, Surveyed
from fedmerit.schema.tensors import Axes, Carried, WholeCounts

LARGEST_MB = 512  # of arrays and ciphertexts in a message; the default network's update has 6
MOST_ENTRIES = 100_000  # in any list or table
Parts = dict[str, Any]
LEAVING = (*ANSWERS, PeerModel)


class Withheld(ValueError):
    """A message that must not leave. The text says which field is not as declared, and nothing of what is in it."""


def clear_message(
    params: object, fields: object, decimals: int = DECIMALS, encrypted: bool = False, least: int = LEAST
) -> tuple[Parts, Parts]:
    """Return what of an encoded message may leave, built again: its parameters, and its other fields.

    Args:
        params: parameters by name.
        fields: the other fields; entries of no field are left out.
        decimals: of numbers that are not integers.
        encrypted: whether models and statistics have to be encrypted.
        least: patients behind every number of a survey.

    Raises:
        Withheld: the message is of no kind that leaves, or a field has another form than declared.
    """
    name = fields.get(KIND) if isinstance(fields, Mapping) else None
    kind: Any = KINDS.get(name) if isinstance(name, str) else None
    if kind not in LEAVING or kind is None or not isinstance(fields, Mapping):
        raise Withheld("a message of no kind that may leave")
    carried = params_field(kind)
    content = {**fields, **({carried: params} if carried else {})}
    cleared: Parts = {}
    for part in parts_of(kind):
        where = f"{name}.{part.name}"
        if part.name not in content:
            _withhold(where, "the field")
        cleared[part.name] = _clear(part, content[part.name], decimals, where)
        if encrypted and part.name in payload_fields(kind) and not part.optional and cleared[part.name]:
            raise Withheld(f"{where}: in the clear, and this site sends it only encrypted")
    if _size(cleared) > LARGEST_MB * 2**20:
        raise Withheld(f"{name}: arrays of {_size(cleared) >> 20} MB: at most {LARGEST_MB} leave")
    if kind is Surveyed:
        _require_floor(cleared, least)
    passed = cleared.pop(carried) if carried else {}
    return passed, {KIND: name, **cleared}


def _require_floor(fields: Parts, least: int) -> None:
    try:
        below = Surveyed.read(fields).below(least)
    except ValueError:
        raise Withheld("Surveyed.tallies: something else than counts of a survey") from None
    if below:
        raise Withheld(f"Surveyed: a number of fewer than {least} patients; ask for a survey with a higher floor")


def _clear(part: Part, value: Any, decimals: int, where: str) -> Any:
    """Return a value of a field, built again."""
    if value is None and part.optional:
        return None
    if rule := part.mark(Carried):
        return _table(value, part, where) if isinstance(rule, Axes) else _arrays(value, where)
    if part.parts:
        entries = _mapping(value, where)
        if set(entries) != {inner.name for inner in part.parts}:
            _withhold(where, "its parts")
        return {
            inner.name: _clear(inner, entries[inner.name], decimals, f"{where}.{inner.name}") for inner in part.parts
        }
    if part.key and part.item:
        return {
            _clear(part.key, key, decimals, f"{where}, a name"): _clear(part.item, entry, decimals, where)
            for key, entry in _mapping(value, where).items()
        }
    if part.item:
        if not isinstance(value, list | tuple) or len(value) > MOST_ENTRIES:
            _withhold(where, f"a list of at most {MOST_ENTRIES}")
        return [_clear(part.item, entry, decimals, where) for entry in value]
    return _scalar(part, value, decimals, where)


def _scalar(part: Part, value: Any, decimals: int, where: str) -> Any:
    if part.mark(Number) and isinstance(value, int | float) and not isinstance(value, bool):
        return round(float(value), decimals)
    if (rule := part.mark(Count)) and type(value) is int and 0 <= value <= rule.high:
        return value
    if part.base is bytes and isinstance(value, bytes):
        return value
    if isinstance(value, str) and _allows(part, value):
        return value
    return instead.text if (instead := part.mark(Instead)) else _withhold(where, part.words() or "ciphertexts")


def _allows(part: Part, text: str) -> bool:
    if part.mark(Quantity):
        return text in asked_quantities()
    if choice := part.mark(Choice):
        return text in choice.options
    rule = part.mark(Text)
    return bool(rule and rule.pattern and len(text) <= rule.longest and re.fullmatch(rule.pattern, text))


def _table(value: Any, part: Part, where: str) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype != np.float64 or value.size > MOST_ENTRIES:
        _withhold(where, f"a table of at most {MOST_ENTRIES} numbers")
    if part.mark(WholeCounts) and not ((value == value.round()) & (value >= 0)).all():
        _withhold(where, "counts")
    return value


def _arrays(value: Any, where: str) -> Parts:
    for name, array in _mapping(value, where).items():
        fits = isinstance(array, np.ndarray) and array.dtype in (np.float32, np.int64)
        if not (fits and isinstance(name, str) and re.fullmatch(TENSOR_NAME, name)):
            _withhold(where, "arrays of float32 or int64 by name")
    return dict(value)


def _mapping(value: Any, where: str) -> Mapping[Any, Any]:
    fits = isinstance(value, Mapping) and len(value) <= MOST_ENTRIES
    if not fits:
        _withhold(where, f"at most {MOST_ENTRIES} entries by name")
    mapping: Mapping[Any, Any] = value
    return mapping


def _withhold(where: str, expected: str) -> NoReturn:
    raise Withheld(f"{where}: something else than {expected}")


def _size(value: Any) -> int:
    if isinstance(value, Mapping | list):
        return sum(map(_size, value.values() if isinstance(value, Mapping) else value))
    return value.nbytes if isinstance(value, np.ndarray) else len(value) if isinstance(value, bytes) else 0


def list_fields() -> list[str]:
    """Return the list of what may leave a site: a line a field with the form in which it does."""
    return [line for kind in LEAVING for line in _lines(kind.__name__, parts_of(kind))]


def _lines(of: str, parts: tuple[Part, ...]) -> list[str]:
    lines: list[str] = []
    for part in parts:
        words, leaf = [part.words()], part
        while leaf.item:
            words += [leaf.key.words()] if leaf.key else []
            words.append(leaf.item.words())
            leaf = leaf.item
        form = "; ".join(filter(None, words)) or leaf.base.__name__
        lines += [f"{of}.{part.name}: {form}", *_lines(f"{of}.{part.name}", leaf.parts)]
    return lines
