"""Methods by name: their tables, their parameters."""

import re
from pathlib import Path

import pytest

from fedmerit.contract.method import Method, MethodSummary
from fedmerit.methods.registry import METHODS, build_method
from fedmerit.schema.declarations import parameters, read

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_and_every_parameter_says_what_it_is(name):
    kind = METHODS[name]
    assert isinstance(kind(), Method)
    assert isinstance(kind.about, MethodSummary)
    assert all(vars(kind.about).values())
    assert all(parameter.text for parameter in parameters(kind).values())


def test_every_option_of_a_method_that_its_page_names_is_one():
    """As in `cgsv`: `gamma=0.5`, or `cffl`: `reputation=released`."""
    text = (ROOT / "docs" / "methods.md").read_text()
    named = re.findall(r"`(\w+)`: `(\w+)=(\w+(?:\.\d+)?)`", text)
    assert len(named) >= 3
    for method, name, value in named:
        read(METHODS[method], {name: value}, "", texts=True)


def test_the_run_is_asked_for_what_a_method_needs():
    assert build_method("standalone", {}).needs.sites == 1
    assert build_method("fedavg", {}).needs.sites == 2
    assert build_method("fedsac", {"standalone_rounds": 2}).needs.rounds == 3
    assert build_method("fedsac", {"contributions": (0.5, 1.0)}).needs.rounds == 1
    assert {name for name in METHODS if build_method(name, {}).needs.sums_only} == {"fedavg", "fedce"}
    assert not build_method("fedce_nvflare", {}).needs.sums_only
