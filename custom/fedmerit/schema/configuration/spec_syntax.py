"""Dataclasses from texts and JSON, and specs: KIND or KIND:NAME=VALUE,NAME=VALUE, each kind a frozen dataclass.

Commas or colons separate parameters: colons if commas separate specs, as in ``zero,noise:from=3:times=2``.
A field ``from_`` is the parameter "from", which is a keyword of Python.
"""

import json
import re
from collections import abc
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from fedmerit.errors import BadInput

T = TypeVar("T")
EXPECTED: Mapping[type, str] = {int: "a whole number", float: "a number"}


def split_spec(spec: str) -> tuple[str, list[str]]:
    """The kind of a spec, and its parameters, one by one."""
    kind, _, rest = spec.partition(":")
    return kind, re.split(r"[,:](?=\w+=)", rest) if rest else []  # a value may hold both, as an address does


def parse_assignments(parts: Sequence[str], option: str) -> dict[str, str]:
    """The values of an option by name; `BadInput` if one is not NAME=VALUE, or a name is given twice."""
    values: dict[str, str] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if not name or not equals:
            raise BadInput(f"{option} {part}: expected NAME=VALUE")
        if name in values:
            raise BadInput(f"{option} {name}: given twice, {values[name]} and {value}; give it once")
        values[name] = value
    return values


def parse(spec: str, kinds: Mapping[str, type[T]], what: str) -> T:
    """The dataclass that a spec describes, complete with its defaults.

    Args:
        kinds: the dataclasses by kind; every field has a default, a value is converted to its type.
        what: is described, for error messages: an option, or a noun.

    Raises:
        BadInput: the kind or a parameter is unknown, or a value is invalid for it.
    """
    kind, parts = split_spec(spec)
    if kind not in kinds:
        raise BadInput(f"{what} {kind!r}: unknown; expected one of {', '.join(kinds)}")
    known = {one.name.removesuffix("_"): one for one in fields(kinds[kind])}  # type: ignore[arg-type]
    values = {}
    for part in parts:
        name, equals, text = part.partition("=")
        if not equals or name not in known or known[name].name in values:
            raise BadInput(
                f"{what} {spec!r}: {part!r}: expected NAME=VALUE, each once, of {', '.join(known) or 'no parameters'}"
            )
        default: Any = known[name].default
        try:
            values[known[name].name] = type(default)(text)
        except ValueError:
            raise BadInput(f"{what} {spec!r}: {name}={text!r}: expected {EXPECTED[type(default)]}") from None
    try:
        return kinds[kind](**values)
    except ValueError as error:
        raise BadInput(f"{what} {spec!r}: {error}") from None


def format_spec(one: Any, kinds: Mapping[str, type[Any]], separator: str = ",") -> str:
    """The spec of such a dataclass; `parse` gives it back."""
    return written(next(name for name, known in kinds.items() if known is type(one)), one, separator)


def written(kind: str, one: Any, separator: str = ",") -> str:
    """As `format_spec`, for a known kind."""
    values = (f"{name.removesuffix('_')}={value}" for name, value in vars(one).items())
    return ":".join(filter(None, [kind, separator.join(values)]))


def build(kind: type[Any], values: Mapping[str, Any], what: str) -> Any:
    """A dataclass from JSON or text values, each converted to its field's type."""
    if not isinstance(values, abc.Mapping):
        raise BadInput(f"{what}: {values!r:.80} is no mapping of names to values")
    unknown = set(values) - {part.name for part in fields(kind)}
    if unknown:
        raise BadInput(f"{what}: unknown parameter {', '.join(sorted(unknown))}")
    try:
        return _adapter(kind).validate_python(typed(kind, values, what))  # type: ignore[arg-type]  # a class can be hashed
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "value_error":  # raised by the dataclass itself, which names parameter and choices
            raise BadInput(f"{what}: {first['ctx']['error']}") from None
        name = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{what}: {name}: {first['msg']} (got {first['input']!r})") from None


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    """Cached: making one takes longer than all its checks."""
    return TypeAdapter(kind)


def typed(kind: type[Any], values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """``values`` with texts of lists and JSON objects parsed."""
    kinds = get_type_hints(kind)
    return {name: _parsed(value, get_origin(kinds[name]), f"{what}: {name}") for name, value in values.items()}


def _parsed(value: Any, kind: Any, what: str) -> Any:
    """The list, as 0.5,0.25, or JSON object in a text; any other value unchanged."""
    if not isinstance(value, str) or kind not in (tuple, abc.Mapping):
        return value
    if kind is tuple:
        return [part for part in value.split(",") if part]
    try:
        return json.loads(value)
    except ValueError as error:
        raise BadInput(f"{what}: {value!r} is no JSON object ({error}); expected {{...}}") from None
