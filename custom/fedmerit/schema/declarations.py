"""Declared parameters: checked, built from texts and JSON, and read from specs.

Dataclasses from texts and JSON, and specs: KIND or KIND:NAME=VALUE,NAME=VALUE, each kind a frozen dataclass.

Commas or colons separate parameters: colons if commas separate specs, as in ``zero,noise:from=3:times=2``.
A field ``from_`` is the parameter "from", which is a keyword of Python.
"""

import json
import math
import re
from collections import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, TypeVar, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from fedmerit import plugins
from fedmerit.errors import BadInput


@dataclass(frozen=True)
class Rule:
    """What a parameter may be. Bounds are of numbers, which are finite, and hold for every number of a tuple."""

    low: float = -math.inf  # at least
    high: float = math.inf  # at most
    above: float = -math.inf  # more than
    below: float = math.inf  # less than
    choices: Sequence[str] = ()
    others: str = ""  # the group of `fedmerit.plugins` whose names are choices too
    text: str = ""  # what it is

    def allows(self, value: Any) -> bool:
        """Whether ``value`` follows the rule; None does, unless there are choices."""
        if self.choices:
            return value in self.choices or bool(self.others and plugins.is_name(self.others, str(value)))
        if isinstance(value, (tuple, list)):
            return all(map(self.allows, value))
        if not isinstance(value, (int, float)):
            return True
        return self.low <= value <= self.high and self.above < value < self.below  # no NaN, and nothing infinite

    def expected(self) -> str:
        """The rule in words: "0 to 1", "above 0", "one of a, b"."""
        if self.choices:
            return f"one of {', '.join(self.choices)}" + (", or a part of that name" if self.others else "")
        if self.low > -math.inf and self.high < math.inf:
            return f"{self.low:g} to {self.high:g}"
        bounds = [
            f"above {self.above:g}" if self.above > -math.inf else "",
            f"{self.low:g} or more" if self.low > -math.inf else "",
            f"below {self.below:g}" if self.below < math.inf else "",
            f"at most {self.high:g}" if self.high < math.inf else "",
        ]
        return ", ".join(filter(None, bounds)) or "a finite number"


def parameter(default: Any, text: str, **rule: Any) -> Any:
    """A dataclass field that says what it is and may be.

    Args:
        default: its default value; `dataclasses.MISSING`: none; ``dict``: an empty one.
        text: what it is.
        **rule: the bounds or choices of its `Rule`.
    """
    metadata = {"rule": Rule(text=text, **rule)}
    return (
        field(default_factory=dict, metadata=metadata) if default is dict else field(default=default, metadata=metadata)
    )


def rules(kind: Any) -> dict[str, Rule]:
    """The rule of every field of a dataclass that has one, by name."""
    return {one.name: one.metadata["rule"] for one in fields(kind) if "rule" in one.metadata}


def check(parameters: Any) -> None:
    """`ValueError` if a field of a dataclass does not follow its rule; it names the field and what was expected."""
    for one in fields(parameters):
        value, rule = getattr(parameters, one.name), one.metadata.get("rule")
        if rule and not rule.allows(value):
            each = "each " if isinstance(value, (tuple, list)) else ""
            raise ValueError(f"{one.name.removesuffix('_')}={value!r}: expected {each}{rule.expected()}")


@dataclass(frozen=True)
class Checked:
    """Base of frozen dataclasses whose parameters are checked when one is made.

    Raises:
        ValueError: a parameter does not follow its rule.
    """

    def __post_init__(self) -> None:
        check(self)


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


def parse_spec(spec: str, kinds: Mapping[str, type[T]], what: str) -> T:
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
    """The spec of such a dataclass; `parse_spec` gives it back."""
    return join_spec(next(name for name, known in kinds.items() if known is type(one)), one, separator)


def join_spec(kind: str, one: Any, separator: str = ",") -> str:
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
