"""Every declared field of a configuration or a record: what breaks its rule is refused, and the reason names it."""

import math
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from fedmerit.contract.observers import OBSERVERS
from fedmerit.errors import BadInput
from fedmerit.methods.registry import METHODS
from fedmerit.schema import records
from fedmerit.schema.configuration.data import DataPlan, Preprocessing
from fedmerit.schema.configuration.options import RunOptions
from fedmerit.schema.configuration.settings import GuardSettings, Network, Privacy, Training
from fedmerit.schema.configuration.specs import Gaussian, Percentile
from fedmerit.schema.declarations import MISSING, Parameter, parameters, read
from fedmerit.schema.rules import Choice, Count, Number, Rule, Switch, Text
from fedmerit_data.preparation import Preparation

Place = tuple[str, ...]

# Configurations: each field bears a rule

CONFIGURATIONS = (
    *(DataPlan, Preprocessing, Preparation, RunOptions, GuardSettings, Network, Privacy, Training),
    *(Gaussian, Percentile, *METHODS.values(), *OBSERVERS.values()),
)
RULED = [
    pytest.param(kind, parameter, id=f"{kind.__name__}.{parameter.name}")
    for kind in CONFIGURATIONS
    for parameter in parameters(kind).values()
    if parameter.mark(Rule, None)
]


def broken(rule: Rule) -> Iterator[Any]:
    """Yield values of other types, beyond the bounds, and larger than anything is."""
    yield from (object(), {"x": 1}, b"1")
    match rule:
        case Number():
            yield from ("1", True, math.inf, -math.inf, *(() if rule.or_nan else (math.nan,)))
            yield from (bound for bound in (rule.above, rule.below) if math.isfinite(bound))
            yield from (bound + step for bound, step in ((rule.low, -1), (rule.high, 1)) if math.isfinite(bound))
        case Count():
            yield from ("1", True, 1.5, math.nan, rule.low - 1, rule.high + 1, 10**400)
        case Switch():
            yield from ("true", 1)
        case Choice():
            yield from (7, "none of them")
        case Text():
            yield from (7, "9" * (rule.longest + 1))


def valid(rule: Rule) -> Any:
    """Return a value that the rule allows."""
    match rule:
        case Number():
            return next(one for one in (0.5, 1.0, rule.low, rule.high) if _fits(rule, one))
        case Count():
            return rule.low
        case Choice():
            return next(iter(rule.options))
    return True if isinstance(rule, Switch) else "text"


def _fits(rule: Number, value: float) -> bool:
    return rule.low <= value <= rule.high and rule.above < value < rule.below


def needed(kind: Any) -> dict[str, Any]:
    """Return values of the fields that have no default."""
    values: dict[str, Any] = {"kind": "synthetic-prostate"} if kind is Preparation else {}
    for parameter in parameters(kind).values():
        if parameter.default is MISSING and (rule := parameter.mark(Rule, None)):
            count = len([one for one in get_args(parameter.base) if one is not Ellipsis])
            values[parameter.field] = (valid(rule),) * count if count else valid(rule)
    return values


@pytest.mark.parametrize(("kind", "parameter"), RULED)
def test_configuration_with_a_value_outside_of_its_rule_is_refused_by_name(kind: Any, parameter: Parameter):
    is_tuple, defaults = get_origin(parameter.base) is tuple, needed(kind)
    for value in broken(parameter.mark(Rule, Rule())):
        with pytest.raises(BadInput, match="expected ") as error:
            read(kind, defaults | {parameter.field: (value,) if is_tuple else value}, "here")
        assert str(error.value).startswith(f"here: {parameter.name}"), value


@pytest.mark.parametrize(
    "kind", [one for one in CONFIGURATIONS if one is not Preparation], ids=lambda kind: kind.__name__
)
def test_configuration_without_a_needed_field_or_with_another_is_refused_by_name(kind: Any):
    for name in needed(kind):
        with pytest.raises(BadInput, match=f"here: lacks {name}"):
            read(kind, {other: value for other, value in needed(kind).items() if other != name}, "here")
    with pytest.raises(BadInput, match="here: unknown name further"):
        read(kind, needed(kind) | {"further": 1}, "here")


# Records: models of strict types, in which each object has the fields that verification reads

RECORDS = [kind for kind in vars(records).values() if isinstance(kind, type) and issubclass(kind, records.Record)]


def sample(annotation: Any) -> Any:
    """Return a JSON value of this type, with every field of every object."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType, Annotated):
        return sample(next(one for one in arguments if one is not NoneType))
    if origin is dict:
        return {"0": sample(arguments[1])}
    if origin is list:
        return [sample(arguments[0])]
    if issubclass(annotation, BaseModel):
        return {name: sample(field.annotation) for name, field in annotation.model_fields.items()}
    return {str: "text", int: 1, float: 0.5}[annotation]


def places(annotation: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield every place below with its type, bounds and all."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if place:
        yield place, annotation
    if origin in (Union, UnionType, Annotated):
        kinds = [one for one in (arguments if origin is not Annotated else arguments[:1]) if one is not NoneType]
        yield from (found for found in places(kinds[0], place) if found[0] != place)
    elif origin in (dict, list):
        yield from places(arguments[-1], (*place, "0"))
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            bounded = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation  # type: ignore[name-defined]
            yield from places(bounded, (*place, name))


def put(content: Any, place: Place, value: Any) -> Any:
    """Return the content with another value at a place; `MISSING`: without it."""
    first, rest = place[0], place[1:]
    if isinstance(content, list):
        return [put(content[0], rest, value) if rest else value]
    if not rest and value is MISSING:
        return {name: entry for name, entry in content.items() if name != first}
    return content | {first: put(content[first], rest, value) if rest else value}


WRONG = (
    object(),
    None,
    True,
    "text",
    b"x",
    7,
    -1,
    2**63,
    10**400,
    1.5,
    -0.5,
    math.nan,
    math.inf,
    [None],
    {"0": None},
    {"0": object()},
)


def may_be(annotation: Any, value: Any) -> bool:
    """Tell whether pydantic takes the value for this type only, read strictly."""
    try:
        TypeAdapter(annotation).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_record_with_a_value_of_another_type_or_size_is_refused_by_name(kind: Any):
    content = sample(kind)
    assert read(kind, content, "line 1").content() == content
    for place, annotation in places(kind):
        refused = [value for value in WRONG if not may_be(annotation, value)]
        assert len(refused) >= 8, place
        for value in refused:
            with pytest.raises(BadInput) as error:
                read(kind, put(content, place, value), "line 1")
            assert ".".join(place) in str(error.value)
