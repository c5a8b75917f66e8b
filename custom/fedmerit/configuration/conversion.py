"""Dataclasses from JSON or text values."""

import json
from collections import abc
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from fedmerit.errors import BadInput


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
