"""The grammar of specs, by kinds of its own."""

from dataclasses import dataclass

import pytest

from fedmerit.configuration.spec_syntax import format_spec, parse, split_spec
from fedmerit.errors import BadInput
from fedmerit.parameters import Checked, parameter


@dataclass(frozen=True)
class Plain:
    """Without parameters."""


@dataclass(frozen=True)
class Full(Checked):
    """With one of each sort."""

    from_: int = parameter(0, "first round", low=0)
    share: float = parameter(1.0, "of the images", above=0, high=1)
    uri: str = parameter("", "address")


KINDS = {"plain": Plain, "full-of-it": Full}


@pytest.mark.parametrize(
    "spec",
    [
        "full-of-it:from=2,share=0.5,uri=http://host:80/?a,b:c",
        "full-of-it:from=2:share=0.5:uri=http://host:80/?a,b:c",
        "full-of-it:uri=http://host:80/?a,b:c,from=2:share=0.5",
    ],
)
def test_commas_and_colons_part_parameters(spec):
    described = parse(spec, KINDS, "--option")
    assert described == Full(2, 0.5, "http://host:80/?a,b:c")
    for separator in ",:":
        assert parse(format_spec(described, KINDS, separator), KINDS, "--option") == described


def test_what_is_not_said_is_as_by_default():
    assert parse("plain", KINDS, "--option") == parse("plain:", KINDS, "--option") == Plain()
    assert format_spec(Plain(), KINDS) == "plain"
    assert parse("full-of-it:share=0.5", KINDS, "--option") == Full(share=0.5)
    assert format_spec(Full(share=0.5, uri="here"), KINDS) == "full-of-it:from=0,share=0.5,uri=here"


def test_a_spec_is_taken_apart_without_being_judged():
    assert split_spec("fedce:combine=plus:0.5,error=relative") == ("fedce", ["combine=plus:0.5", "error=relative"])


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
        ("full-of-it:from=-1", "--option 'full-of-it:from=-1': from=-1: expected 0 or more"),
    ],
)
def test_what_is_wrong_is_named_with_what_was_expected(spec, message):
    with pytest.raises(BadInput) as caught:
        parse(spec, KINDS, "--option")
    assert message in str(caught.value)
