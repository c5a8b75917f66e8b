"""Rules of fields: what a value may be, declared once beside the field, run by pydantic, and worded in one place.

Configuration and messages use the same rules. Rules of tensors are in another file: this one loads neither torch nor
NumPy, since the help of the command line needs it.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, cached_property
from types import NoneType, UnionType
from typing import Annotated, Any, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict
from pydantic_core import PydanticCustomError, core_schema

Mark = TypeVar("Mark")

LONGEST_SITE = 63  # characters of a site's name: a certificate's common name holds no more
SITE_NAME = rf"[A-Za-z0-9_][A-Za-z0-9_-]{{0,{LONGEST_SITE - 1}}}"  # what NVFlare takes for a client
TENSOR_NAME = r"[\w.\-]{1,120}"  # of parameters and statistics: others may not leave a site
FLOAT32_SLACK = 1e-5  # share of its range by which a number that was computed in float32 may leave it
MOST_TENSORS = 5000  # of a model
MOST_COUNT = 2**53  # above it, floats no longer hold every whole number


@dataclass(frozen=True)
class About:
    """A sentence about a field, and the unit of its numbers."""

    text: str
    unit: str = ""


class Declared:
    """A base class of dataclasses whose fields pydantic checks by their rules, when a message or file is read.

    An instance that the program makes is not checked.
    """

    __pydantic_config__ = ConfigDict(revalidate_instances="always", extra="forbid")


class Message(Declared):
    """A base class of what server and sites send each other."""

    def judge(self, expected: Mapping[str, Any]) -> None:
        """Raise a `fault` if fields that fit by themselves contradict each other.

        Args:
            self: the message.
            expected: what the receiver expects, by symbol.
        """


@dataclass(frozen=True)
class Part:
    """A field of a dataclass, or an item of a field, as its annotation describes it."""

    name: str
    marks: tuple[Any, ...]  # rules, and what else is in the field's ``Annotated``
    base: Any  # a type: of a number or text, a tuple, a mapping, a tensor, or a dataclass
    key: "Part | None" = None  # of a mapping
    item: "Part | None" = None  # of a mapping or tuple
    parts: tuple["Part", ...] = ()  # of a dataclass
    optional: bool = False  # whether None is allowed

    def mark(self, kind: type[Mark]) -> Mark | None:
        """Return the mark of a kind, or None."""
        mark: Mark | None = self._by_kind.get(kind)
        return mark

    @cached_property
    def _by_kind(self) -> dict[Any, Any]:
        return {kind: mark for mark in self.marks for kind in type(mark).__mro__}

    def words(self) -> str:
        """Return the form of the value in words."""
        return "; ".join(filter(None, (mark.words() for mark in self.marks if isinstance(mark, Rule))))


def parts_of(kind: Any) -> tuple[Part, ...]:
    """Return the fields of a dataclass, in order."""
    return _parts(kind)


@cache
def _parts(kind: Any) -> tuple[Part, ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple(_part(hints[field.name], field.name) for field in fields(kind))


def _part(annotation: Any, name: str) -> Part:
    base, marks, optional = split_annotation(annotation)
    origin, arguments = get_origin(base), get_args(base)
    if origin is None:
        return Part(name, marks, base, parts=parts_of(base) if is_dataclass(base) else (), optional=optional)
    key = _part(arguments[0], "") if issubclass(origin, Mapping) else None
    return Part(name, marks, origin, key, _part(arguments[1 if key else 0], ""), optional=optional)


def split_annotation(annotation: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """Return the type in an annotation without None, the marks about it, inner ones first, and whether None may be."""
    marks, optional = tuple[Any, ...](), False
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *further = get_args(annotation)
            marks = (*further, *marks)
        elif len(kinds := without_none(annotation)) == 1:
            annotation, optional = kinds[0], True
        else:
            return annotation, marks, optional


def without_none(annotation: Any) -> list[Any]:
    """Return the types of a union except None; none of another annotation."""
    is_union = get_origin(annotation) in (Union, UnionType)
    return [kind for kind in get_args(annotation) if kind is not NoneType] if is_union else []


def fault(text: str) -> NoReturn:
    """Raise an error of validation whose ``text`` continues a sentence that begins with the field's name."""
    raise PydanticCustomError("fault", "{text}", {"text": text})


class Rule:
    """A base class of rules: a mark in a field's ``Annotated``."""

    def words(self) -> str:
        """Return what is allowed, for tables and messages; empty if there is nothing to tell."""
        return ""

    def bounds(self) -> str:
        """Return what of the words remains where the type is known: the range of a number."""
        return ""


class Scalar(Rule):
    """A base class of rules of single numbers and texts, which pydantic's core checks."""

    def core(self) -> Any:
        """Return the schema of pydantic's core that checks a value."""
        raise NotImplementedError

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        """Return the schema of ``source``: of the scalar, of a tuple of such scalars, or of either or None."""
        if kinds := without_none(source):
            return core_schema.nullable_schema(self.__get_pydantic_core_schema__(kinds[0], handler))
        if get_origin(source) is tuple:
            items = [kind for kind in get_args(source) if kind is not Ellipsis]
            is_variable = Ellipsis in get_args(source)
            checked = self._checked()
            return core_schema.tuple_schema([checked] * len(items), variadic_item_index=0 if is_variable else None)
        return self._checked()

    def _checked(self) -> Any:
        return core_schema.custom_error_schema(
            self.core(),
            custom_error_type="expected",
            custom_error_message="expected {words}",
            custom_error_context={"words": self.words()},
        )


@dataclass(frozen=True)
class Switch(Scalar):
    """A rule: true or false."""

    def core(self) -> Any:
        """Return the schema of a boolean."""
        return core_schema.bool_schema(strict=True)

    def words(self) -> str:
        """Return both values."""
        return "true or false"


@dataclass(frozen=True)
class Count(Scalar):
    """A whole number, in Python's int."""

    low: int = 0
    high: int = MOST_COUNT

    def core(self) -> Any:
        """Return the schema of an integer from `low` to `high`."""
        return core_schema.int_schema(strict=True, ge=self.low, le=self.high)

    def words(self) -> str:
        """Return the type and the range."""
        return _with_bounds("a whole number", self.bounds())

    def bounds(self) -> str:
        """Return the range."""
        return _range(
            self.low if self.low > -MOST_COUNT else -math.inf, self.high if self.high < MOST_COUNT else math.inf
        )


@dataclass(frozen=True)
class Number(Scalar):
    """A finite number, or NaN if that is allowed."""

    low: float = -math.inf  # the smallest value
    high: float = math.inf  # the largest value
    above: float = -math.inf  # a bound that is itself not allowed
    below: float = math.inf  # a bound that is itself not allowed
    or_nan: bool = False

    def core(self) -> Any:
        """Return the schema of a float within the bounds; integers pass, arrays of one number do not."""
        bounds = {"ge": self.low, "le": self.high, "gt": self.above, "lt": self.below}
        finite: dict[str, Any] = {name: bound for name, bound in bounds.items() if math.isfinite(bound)}
        if self.or_nan:
            number: Any = core_schema.no_info_after_validator_function(
                self._require, core_schema.float_schema(strict=True)
            )
        else:
            number = core_schema.float_schema(strict=True, allow_inf_nan=False, **finite)
        return core_schema.chain_schema([core_schema.is_instance_schema((int, float)), number])

    def _require(self, value: float) -> float:
        if not (math.isnan(value) or (self.low <= value <= self.high and self.above < value < self.below)):
            fault("out of range")
        return value

    def words(self) -> str:
        """Return the type and the range."""
        text = _with_bounds("a number", bounds) if (bounds := self.bounds()) else "a finite number"
        return f"{text}, or NaN" if self.or_nan else text

    def bounds(self) -> str:
        """Return the range."""
        if self.above == -math.inf and self.below == math.inf:
            return _range(self.low, self.high)
        bounds = (
            f"above {self.above:g}" * (self.above > -math.inf),
            f"{self.low:g} or more" * (self.low > -math.inf),
            f"below {self.below:g}" * (self.below < math.inf),
            f"at most {self.high:g}" * (self.high < math.inf),
        )
        return ", ".join(filter(None, bounds))


def _with_bounds(noun: str, bounds: str) -> str:
    return f"{noun}{' ' if bounds[:1].isalpha() else ', '}{bounds}" if bounds else noun


def _range(low: float, high: float) -> str:
    if low > -math.inf and high < math.inf:
        return f"from {low:.15g} to {high:.15g}"
    return f"{low:.15g} or more" if low > -math.inf else f"at most {high:.15g}" if high < math.inf else ""


@dataclass(frozen=True)
class Text(Scalar):
    """A text of one form; ``noun`` names it."""

    pattern: str = ""  # of the full text; empty: any
    noun: str = "a text"
    longest: int = 100_000  # characters

    def core(self) -> Any:
        """Return the schema of a text that matches the pattern."""
        pattern = f"^(?:{self.pattern})$" if self.pattern else None
        return core_schema.str_schema(strict=True, pattern=pattern, max_length=self.longest)

    def words(self) -> str:
        """Return the noun."""
        return self.noun


@dataclass(frozen=True)
class Choice(Scalar):
    """A rule: one of some words, or the name of a part that another package brings."""

    options: Collection[str]
    others: str = ""  # the group of `fedmerit.plugins` whose names are choices, too

    def core(self) -> Any:
        """Return the schema of a text among the options."""
        if not self.others:
            return core_schema.literal_schema(list(self.options))
        return core_schema.no_info_after_validator_function(self._require, core_schema.str_schema(strict=True))

    def _require(self, value: str) -> str:
        if value not in self.options:
            from fedmerit import plugins  # looks for installed packages, which the help does not need

            if not plugins.is_name(self.others, value):
                fault("unknown")
        return value

    def words(self) -> str:
        """Return the options in words."""
        return f"one of {', '.join(option or 'empty' for option in self.options)}" + (
            ", or a part of that name" if self.others else ""
        )
