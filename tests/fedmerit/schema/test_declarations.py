"""Declared fields: rules, the one reader of values, and specs."""

import math
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from pydantic import BaseModel

from fedmerit.errors import BadInput
from fedmerit.schema.declarations import Checked, Shown, format_spec, parameters, parse_assignments, parse_spec, read
from fedmerit.schema.rules import About, Choice, Count, Number, Switch, Text


@dataclass(frozen=True)
class Declared(Checked):
    share: Annotated[float, Number(high=1, above=0), About("Share of all.")] = 0.5
    memory: Annotated[float, Number(0, below=1), About("Weight of the past.")] = 0.5
    count: Annotated[int, Count(1, 9), About("Number of them.", "rounds")] = 3
    bound: Annotated[float | None, Number(above=0), About("Bound of an entry; None: none.")] = None
    each: Annotated[tuple[float, ...], Number(0, 1), About("A number for each.")] = ()
    pair: Annotated[tuple[int, int], Count(), About("Two numbers.")] = (1, 2)
    kind: Annotated[str, Choice(("plain", "other")), About("How.")] = "plain"
    loss: Annotated[str, Choice(("dice",), others="losses"), About("A loss.")] = "dice"
    fast: Annotated[bool, Switch(), About("Whether.")] = True
    any: Annotated[float, Number(), About("Any number.")] = 0.0
    table: Annotated[Mapping[str, Any], About("A table.")] = field(default_factory=dict)
    from_: Annotated[int, Count(), About("First round.")] = 0


WORDS = {
    "share": "a number above 0, at most 1", "memory": "a number, 0 or more, below 1",
    "count": "a whole number from 1 to 9", "bound": "a number above 0", "each": "each a number from 0 to 1",
    "pair": "each a whole number, 0 or more", "kind": "one of plain, other",
    "loss": "one of dice, or a part of that name", "fast": "true or false", "any": "a finite number",
    "table": "a table of names and values", "from_": "a whole number, 0 or more"
}  # fmt: skip
ALLOWED = {
    "share": (1e-9, 1, 1.0), "memory": (0, 0.999), "count": (1, 9), "bound": (None, 1e9),
    "each": ((), (0.0, 1.0), (0.5,)), "pair": ((0, 7),), "kind": ("other",), "loss": ("package.module:name",),
    "fast": (False,), "any": (-1e300,)
}  # fmt: skip
REFUSED = {
    "share": (0.0, 1.5, math.nan, True, "a"), "memory": (1.0, -0.1), "count": (0, 10**400, 2.0, True, None),
    "bound": (0.0, math.inf), "each": ((0.5, 81.0), (math.nan,), 0.5), "pair": ((1,), (1, 2, 3), (1, -1)),
    "kind": ("none", "", 1, None), "loss": ("focal", "module", 3), "fast": (1, "true", None),
    "any": (math.inf, math.nan)
}  # fmt: skip
EVERYTHING = (
    some.none()
    | some.booleans()
    | some.integers()
    | some.floats()
    | some.text("ab01.,-", max_size=5)
    | some.lists(some.floats(), max_size=3)
)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in ALLOWED for value in ALLOWED[name]])
def test_value_within_its_rule_is_taken_by_constructor_and_reader(name, value):
    assert getattr(Declared(**{name: value}), name) == value
    assert getattr(read(Declared, {name: value}, "here"), name) == value


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in REFUSED for value in REFUSED[name]], ids=str)
def test_value_outside_its_rule_is_refused_with_name_and_expectation(name, value):
    with pytest.raises(ValueError, match=f"^{name}=.*: expected {WORDS[name]}$"):
        Declared(**{name: value})
    with pytest.raises(BadInput, match=f"^here: {name}.*: expected ") as error:
        read(Declared, {name: value}, "here", texts=False)
    assert WORDS[name].removeprefix("each ") in str(error.value) or name == "pair"


@given(name=some.sampled_from(sorted(WORDS)), value=EVERYTHING)
def test_constructor_and_reader_agree_on_any_value(name, value):
    try:
        read(Declared, {name: value}, "here", texts=False)
    except BadInput as error:
        reported = str(error)
        assert reported.startswith(f"here: {name.removesuffix('_')}")
        assert "expected" in reported
        if name != "table":
            with pytest.raises(ValueError, match="expected"):
                Declared(**{name: value})
    else:
        Declared(**{name: value})


@given(
    share=some.floats(0.01, 1), count=some.integers(1, 9), each=some.lists(some.floats(0, 1), min_size=1),
    fast=some.booleans(),
)  # fmt: skip
def test_texts_spell_the_values_that_python_writes(share, count, each, fast):
    texts = {
        "share": str(share), "count": str(count), "each": ",".join(map(str, each)), "fast": str(fast).lower(),
        "table": '{"a": [1, "b"]}',
    }  # fmt: skip
    expected = Declared(share=share, count=count, each=tuple(each), fast=fast, table={"a": [1, "b"]})
    assert read(Declared, texts, "here", texts=True) == expected


@pytest.mark.parametrize(
    ("values", "reported"),
    [
        ({"shape": 1}, "here: unknown name shape; did you mean share?"),
        ({"share": "much"}, "here: share='much': expected a number above 0, at most 1"),
        ({"each": "0.5,x"}, "here: each.1='x': expected a number from 0 to 1"),
        ({"table": "{"}, "here: table='{': expected a table of names and values"),
        ({"from_": -1}, "here: from=-1: expected a whole number, 0 or more"),
        ([1], "here: is no table of names and values"),
        (None, "here: is no table of names and values"),
    ],
)
def test_reader_names_place_value_and_expectation(values, reported):
    with pytest.raises(BadInput) as error:
        read(Declared, values, "here", texts=True)
    assert str(error.value) == reported


class Recorded(BaseModel):
    declared: Declared
    file: Path | None = None


@pytest.mark.parametrize(
    ("values", "reported"),
    [
        ({}, "run.json: lacks declared"),
        ({"declared": {"count": 0}}, "run.json: declared.count=0: expected a whole number from 1 to 9"),
        ({"declared": {}, "file": 3}, "run.json: file=3: expected a path"),
        ({"declared": {"far": 3}}, "run.json: unknown name declared.far"),
        ({"declared": 3}, "run.json: declared=3: expected a table of names and values"),
    ],
)
def test_reader_of_a_model_with_a_dataclass(values, reported):
    with pytest.raises(BadInput) as error:
        read(Recorded, values, "run.json")
    assert str(error.value) == reported


def test_field_without_default_is_required_and_frozen():
    @dataclass(frozen=True)
    class Needed(Checked):
        number: Annotated[int, Count(1), About("A number."), Shown(flag="digits")]

    assert Needed(1).number == 1
    assert [parameter.flag for parameter in parameters(Needed).values()] == ["--digits"]
    assert parameters(Declared)["count"].text == "Number of them. [rounds]"
    with pytest.raises(TypeError):
        Needed()
    with pytest.raises(BadInput, match=r"^here: lacks number$"):
        read(Needed, {}, "here")
    with pytest.raises(FrozenInstanceError):
        Needed(1).number = 0


@dataclass(frozen=True)
class Plain:
    """A kind without parameters."""


@dataclass(frozen=True)
class Full(Checked):
    """A kind with a parameter of each sort."""

    from_: Annotated[int, Count(), About("First round.")] = 0
    share: Annotated[float, Number(high=1, above=0), About("Share of the images.")] = 1.0
    uri: Annotated[str, Text(), About("Address.")] = ""


KINDS = {"plain": Plain, "full-of-it": Full}


@pytest.mark.parametrize("separator", [",", ":"])
@given(first=some.integers(0, 99), share=some.floats(0.01, 1))
def test_spec_is_read_as_it_is_written(separator, first, share):
    declared = Full(first, share, "http://host:80/?a,b:c")
    assert parse_spec(format_spec(declared, KINDS, separator), KINDS, "--option") == declared


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("other", "--option 'other': unknown; expected one of plain, full-of-it"),
        ("plain:from=1", "--option 'plain:from=1': 'from=1': expected NAME=VALUE, each once, of no parameters"),
        ("full-of-it:from", "'from': expected NAME=VALUE, each once, of from, share, uri"),
        ("full-of-it:from_=1", "'from_=1': expected NAME=VALUE, each once, of from, share, uri"),
        ("full-of-it:share=1,share=1", "'share=1': expected NAME=VALUE, each once"),
        ("full-of-it:from=1.5", "from='1.5': expected a whole number"),
        ("full-of-it:share=half", "share='half': expected a number"),
        ("full-of-it:from=-1", "--option 'full-of-it:from=-1': from=-1: expected a whole number, 0 or more"),
    ],
)
def test_wrong_spec_is_refused_with_what_was_expected(spec, message):
    with pytest.raises(BadInput) as caught:
        parse_spec(spec, KINDS, "--option")
    assert message in str(caught.value)


def test_assignments_are_read_each_once():
    assert parse_assignments(["lr=0.1", "loss=a=b"], "--set") == {"lr": "0.1", "loss": "a=b"}
    with pytest.raises(BadInput, match="--attack zero: expected NAME=VALUE"):
        parse_assignments(["zero"], "--attack")
    with pytest.raises(BadInput, match="--set lr: given twice, 1 and 2; give it once"):
        parse_assignments(["lr=1", "depth=3", "lr=2"], "--set")
