"""`fedmerit methods`: the table, and what `--set` takes with one."""

import re

import pytest

from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.settings import GuardSettings, Network, Training
from fedmerit.schema.declarations import parameters

FIXED = ("in_channels", "labels")  # by the sites


def test_methods_prints_the_table(fedmerit, monkeypatch):
    monkeypatch.setattr("fedmerit_cli.terminal.console.width", 1000)
    result = fedmerit("methods")
    assert result.exit_code == 0
    for name, kind in METHODS.items():
        row = next(line for line in result.output.splitlines() if f" {name} " in line)
        for text in vars(kind.about).values():
            assert text in row
        for parameter, value in vars(kind()).items():
            shown = f"{value:g}" if isinstance(value, float) else value
            assert f"{parameter}={shown}" in result.output


@pytest.mark.parametrize("method", ["standalone", "cffl", "fedsac"])
def test_methods_says_what_each_parameter_of_one_is_and_may_be(fedmerit, monkeypatch, method):
    monkeypatch.setattr("fedmerit_cli.terminal.console.width", 1000)
    result = fedmerit("methods", method)
    assert result.exit_code == 0
    for name, declared in parameters(METHODS[method]).items():
        row = next(line for line in result.output.splitlines() if f" {name} " in line)
        assert declared.text in row
    for kind in (Training, Network, GuardSettings):  # --set takes these too
        for name, declared in parameters(kind).items():
            assert (f" {name} " in result.output and declared.text in result.output) == (name not in FIXED)
    assert "(1 - t/T)^0.9" in result.output
    assert re.search(r" guard +│ on ", result.output)  # as of new runs
    assert re.search(r" lr +│ 0.001 +│ above 0 ", result.output)
    shown = {"cffl": ("above 0, at most 1", "one of sparse, global", "true or false", "0.166667")}
    assert all(text in result.output for text in shown.get(method, ()))


def test_an_unknown_method_has_a_suggestion(fedmerit):
    result = fedmerit("methods", "fedec")
    assert result.exit_code == 2
    assert "'fedec': unknown; did you mean fed" in result.stderr
