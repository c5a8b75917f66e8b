"""Declared fields and the reader of them: what is wrong with a value is worded here, wherever the value comes from.

A field of a frozen dataclass or a pydantic model is declared once::

    rounds: Annotated[int, Count(1), About("Rounds to train.", "rounds")] = 100

The command line, TOML, Python, plans, run.json and the tables of the manual derive from it.

A spec is KIND or KIND:NAME=VALUE,NAME=VALUE; each kind is such a dataclass. Commas or colons separate parameters:
colons if commas separate specs, as in ``zero,noise:from=3:times=2``. A field ``from_`` is the parameter "from", which
Python reserves.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from fedmerit.errors import BadInput, require_known, suggest
from fedmerit.schema.rules import About, Rule, split_annotation

T = TypeVar("T")
WORDS: Mapping[Any, str] = {  # by type of a field without a rule
    **{int: "a whole number", float: "a number", bool: "true or false", Path: "a path", str: "a text"},
    **dict.fromkeys((tuple, list), "a list of texts"),
    **dict.fromkeys((dict, Mapping), "a table of names and values"),
}
UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")  # pydantic's errors of names, of models and dataclasses


@dataclass(frozen=True)
class Shown:
    """A mark of an option: how the command line shows it, and whether run.json records it unchanged."""

    metavar: str = ""
    default: str = ""  # in words, if the default is none
    flag: str = ""  # if the option has another name than the field: one item of the field each time
    panel: str = "Options"
    is_recorded: bool = False


@dataclass(frozen=True)
class Parameter:
    """A declared field."""

    field: str
    annotation: Any
    default: Any  # `MISSING`: the field is required

    @property
    def name(self) -> str:
        """The name that people write."""
        return self.field.removesuffix("_")

    @property
    def flag(self) -> str:
        """The option of the command line."""
        return f"--{self.mark(Shown, Shown()).flag or self.name.replace('_', '-')}"

    @property
    def base(self) -> Any:
        """The type without marks and None."""
        return split_annotation(self.annotation)[0]

    @property
    def marks(self) -> tuple[Any, ...]:
        """The marks about the type, inner ones first."""
        return split_annotation(self.annotation)[1]

    @property
    def text(self) -> str:
        """The sentence about the field, with the unit."""
        about = self.mark(About, About(""))
        return f"{about.text} [{about.unit}]" if about.unit else about.text

    def mark(self, kind: type[T], default: T) -> T:
        """Return the field's mark of this ``kind``, or ``default``."""
        return next((mark for mark in reversed(self.marks) if isinstance(mark, kind)), default)

    @property
    def reads_texts(self) -> bool:
        """Whether the field has a reader of texts of its own."""
        return any(isinstance(mark, BeforeValidator) for mark in self.marks)

    @property
    def words(self) -> str:
        """The words for what a value may be."""
        origin, rule = get_origin(self.base) or self.base, self.mark(Rule, Rule())
        text = rule.words() or WORDS.get(dict if is_dataclass(origin) else origin, "")
        return f"{'each ' * (origin is tuple and bool(rule.words()))}{text}"


def parameters(kind: Any) -> Mapping[str, Parameter]:
    """Return the fields of a dataclass or pydantic model by name, in order, fields by keyword last."""
    return _parameters(kind)


@cache
def _parameters(kind: Any) -> Mapping[str, Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    if is_dataclass(kind):
        ordered = sorted(fields(kind), key=lambda field: field.kw_only is True)
        defaults = {
            field.name: field.default if field.default_factory is MISSING else field.default_factory()
            for field in ordered
        }
    else:
        defaults = {
            name: MISSING if field.is_required() else field.get_default(call_default_factory=True)
            for name, field in kind.model_fields.items()
        }
    return {name: Parameter(name, hints[name], default) for name, default in defaults.items()}


@dataclass(frozen=True)
class Checked:
    """A frozen dataclass whose fields are checked when an instance is made.

    Raises:
        ValueError: a field does not follow its rule; the message names the field, its value and what was expected.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # an unknown name is an error

    def __post_init__(self) -> None:
        check(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON holds them."""
        content: dict[str, Any] = json.loads(json.dumps(asdict(cast(Any, self))))
        return content


def check(declared: Any) -> None:
    """Raise `ValueError` if a field of a dataclass does not follow its rule."""
    kind: Any = type(declared)
    for parameter, adapter in _rules(kind):
        value = getattr(declared, parameter.field)
        try:
            adapter.validate_python(value)
        except ValidationError:
            raise ValueError(f"{assignment(parameter.name, value)}: expected {parameter.words}") from None


@cache
def _rules(kind: Any) -> list[tuple[Parameter, TypeAdapter[Any]]]:
    return [
        (parameter, _adapter(parameter.annotation))
        for parameter in parameters(kind).values()
        if parameter.mark(Rule, Rule()).words()
    ]


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the validator of a type; making one takes longer than all its checks."""
    return TypeAdapter(kind)


def assignment(name: str, value: Any) -> str:
    """Return a field and its value, as messages show them."""
    return f"{name}={value!r:.80}"


Label = Callable[[str, Any], str]


def read(kind: type[T], values: Any, where: Path | str, texts: bool = False, label: Label = assignment) -> T:
    """Build a declared dataclass or model from JSON, TOML or texts.

    Args:
        kind: the dataclass or model.
        values: by the fields' names.
        where: names the file, the site or the parameter of a run, for messages; empty: the value's name is enough.
        texts: whether a text stands for the value that it spells: a number, true, a list 0.5,0.25 or a JSON object.
        label: writes a field and its value, for messages.

    Raises:
        BadInput: a name is unknown or missing, or a value does not follow the field's rule.
    """
    try:
        if not isinstance(values, Mapping):
            raise BadInput("is no table of names and values")
        try:
            return cast(T, _adapter(cast(Any, kind)).validate_python(_parse_texts(kind, values) if texts else values))
        except ValidationError as error:
            raise BadInput(explain(kind, error, label)) from None
    except BadInput as error:
        raise BadInput(f"{where}: {error}" if where else str(error)) from None


def explain(kind: Any, error: ValidationError, label: Label = assignment) -> str:
    """Return what is wrong with the first value that pydantic refused: its name, the value, what was expected."""
    first = error.errors(include_url=False)[0]
    place = [str(step) for step in first["loc"]]
    known = parameters(kind)
    if first["type"] in UNKNOWN:
        return f"unknown name {'.'.join(place)}{suggest(place[-1], known) if len(place) == 1 else ''}"
    if first["type"] == "missing" and not place[-1].isdigit():  # a number is the place in a tuple that is too short
        return f"lacks {'.'.join(place)}"
    name, *rest = place or [""]
    parameter = known.get(name)
    if first["type"] == "value_error":
        text = str(first["ctx"]["error"])
        if not place or (parameter and is_dataclass(parameter.base)):
            return text  # raised by a dataclass or model itself, which names its field
        return f"{label('.'.join(place), first['input'])}: {text}"
    if first["type"] == "missing":
        rest = []
    if first["type"] in ("fault", "expected") or parameter is None or rest:
        text = first["msg"] if first["type"] in ("fault", "expected") else _as_expected(first["msg"])
    else:
        text = f"expected {parameter.words}" if parameter.words else _as_expected(first["msg"])
    if text in ("unknown", "out of range") and parameter:
        text = f"expected {parameter.words}"
    return f"{label('.'.join([parameter.name if parameter else name, *rest]), first['input'])}: {text}"


def _as_expected(message: str) -> str:
    """Return a message of pydantic as the end of a sentence, with the words of this module."""
    for theirs, kind in {"string": str, "integer": int, "number": float, "dictionary": dict}.items():
        if f"a valid {theirs}" in message:
            return f"expected {WORDS[kind]}"
    return message.replace("Input should be", "expected", 1)


def _parse_texts(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: parameter for name, parameter in parameters(kind).items() if not parameter.reads_texts}
    return {name: parse_text(value, known[name].base) if name in known else value for name, value in values.items()}


def parse_text(value: Any, kind: Any) -> Any:
    """Return what a text spells as a value of a type; anything else, and a text that spells none, unchanged."""
    if not isinstance(value, str) or kind is str:
        return value
    origin = get_origin(kind) or kind
    if origin is tuple:
        items = (*get_args(kind), Ellipsis)
        return [parse_text(item, split_annotation(items[0])[0]) for item in value.split(",") if item]
    try:
        if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
            return json.loads(value)
        return _adapter(origin).validate_python(value) if origin in (int, float, bool) else value
    except ValueError:
        return value


def split_spec(spec: str) -> tuple[str, list[str]]:
    """Return the kind of a spec, and each of its parameters."""
    kind, _, rest = spec.partition(":")
    return kind, re.split(r"[,:](?=\w+=)", rest) if rest else []  # a value may hold both, as an address does


def parse_assignments(assignments: Sequence[str], option: str) -> dict[str, str]:
    """Return the values of an option by name; `BadInput` if one is not NAME=VALUE, or a name occurs twice."""
    values: dict[str, str] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise BadInput(f"{option} {text}: expected NAME=VALUE")
        if name in values:
            raise BadInput(f"{option} {name}: given twice, {values[name]} and {value}; give it once")
        values[name] = value
    return values


def parse_spec(spec: str, kinds: Mapping[str, type[T]], what: str) -> T:
    """Build the dataclass that a spec describes, complete with its defaults.

    Args:
        spec: the text.
        kinds: the dataclasses by kind.
        what: is described, for error messages: an option, or a noun.

    Raises:
        BadInput: the kind or a parameter is unknown, or a value is invalid for it.
    """
    kind, assignments = split_spec(spec)
    require_known(what, [kind], kinds)
    by_name = {parameter.name: parameter for parameter in parameters(kinds[kind]).values()}
    values: dict[str, str] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals or name not in by_name or by_name[name].field in values:
            known = ", ".join(by_name) or "no parameters"
            raise BadInput(f"{what} {spec!r}: {text!r}: expected NAME=VALUE, each once, of {known}")
        values[by_name[name].field] = value
    return read(kinds[kind], values, f"{what} {spec!r}", texts=True)


def format_spec(declared: Any, kinds: Mapping[str, type[Any]], separator: str = ",") -> str:
    """Return the spec of a dataclass that `parse_spec` built from ``kinds``."""
    return join_spec(next(name for name, kind in kinds.items() if kind is type(declared)), declared, separator)


def join_spec(kind: str, declared: Any, separator: str = ",") -> str:
    """Return the spec of a dataclass of a known ``kind``."""
    values = (f"{name.removesuffix('_')}={value}" for name, value in vars(declared).items())
    return ":".join(filter(None, [kind, separator.join(values)]))
