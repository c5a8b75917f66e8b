"""Specs: KIND or KIND:NAME=VALUE,NAME=VALUE, each kind a frozen dataclass of numbers and words.

Commas or colons separate parameters: colons if commas separate specs, as in ``zero,noise:from=3:times=2``.
A field ``from_`` is the parameter "from", which is a keyword of Python.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

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
        spec: the spec.
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
