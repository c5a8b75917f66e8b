"""Methods by name: their tables, their parameters, which class reads which, and how long a file may be."""

import ast
import io
import math
import re
import tokenize
from dataclasses import fields
from pathlib import Path

import pytest

from fedmerit.contract.method import About, Method
from fedmerit.methods.registry import METHODS, build_method
from fedmerit.schema.declarations import rules

ROOT = Path(__file__).resolve().parents[3]
HOMES = ("custom/fedmerit", "evaluation/fedmerit_lab")
FILES = sorted(file for home in HOMES for file in (ROOT / home / "methods").glob("*.py"))
MOST_LINES = {"fedce.py": 90, "cgsv.py": 85}
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def lines_of_code(text):
    """How many lines hold something other than an import, a docstring or a comment."""
    without = set()
    for node in ast.walk(ast.parse(text)):
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, (ast.Import, ast.ImportFrom)) or docstring:
            without |= set(range(node.lineno, node.end_lineno + 1))
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in SILENT]
    return len({line for token in tokens for line in range(token.start[0], token.end[0] + 1)} - without)


SOME = '''
"""Doc."""
import os
from a import (
    b,
)
def f(  # why
    x,
):
    """Doc.
    """
    # a comment
    return (os, "a"
            "b")
'''


def test_what_counts_as_a_line_of_code():
    assert lines_of_code(SOME) == 5


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_method_is_short(file):
    assert lines_of_code(file.read_text()) <= MOST_LINES.get(file.name, 110)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_and_every_parameter_says_what_it_is(name):
    kind = METHODS[name]
    assert isinstance(kind(), Method)
    assert isinstance(kind.about, About)
    assert all(vars(kind.about).values())
    assert list(rules(kind)) == [one.name for one in fields(kind)]
    assert all(rule.text for rule in rules(kind).values())


def test_every_option_of_a_method_that_its_page_names_is_one():
    """As in `cgsv`: `gamma=0.5`, or `cffl`: `reputation=released`."""
    text = (ROOT / "docs" / "methods.md").read_text()
    named = re.findall(r"`(\w+)`: `(\w+)=(\w+(?:\.\d+)?)`", text)
    assert len(named) >= 3
    for method, name, value in named:
        assert rules(METHODS[method])[name].allows(value)


# What parameters may be

REFUSED = {
    "cffl": [
        ("theta", 0.0),
        ("theta", 1.5),
        ("clip", 0.0),
        ("alpha", 0.0),
        ("alpha", math.nan),
        ("coef", -0.1),
        ("reward", "none"),
    ],
    "cffl_released": [("alpha_growth", -1), ("reputation", "paper"), ("aggregation", "median"), ("reward", "global")],
    "cgsv": [
        ("contribution", "loo"),
        ("reward", "dense"),
        ("mask", "random"),
        ("alpha", 1.1),
        ("alpha", math.nan),
        ("beta", 0.0),
        ("beta", math.inf),
        ("gamma", 0.0),
        ("gamma", math.nan),
        ("floor", -1e-3),
        ("permutations", 1),
    ],
    "cycle": [
        ("kl", "both"),
        ("T", 0.0),
        ("lambda0", -1.0),
        ("warmup", -1),
        ("alpha", 1.0),
        ("tau_opt", 0.8),
        ("tau_max", 1.5),
        ("R", 0),
        ("score_batches", 0),
        ("score_loss", "dice"),
    ],
    "dw": [("ratio", "sum")],
    "eci": [("truncation", math.nan)],
    "fedave": [
        ("tau", 0.0),
        ("alpha", 1.5),
        ("beta", 0.0),
        ("bins", 0),
        ("bins", 101),
        ("smoothing", 0.0),
        ("kl_floor", 0.0),
        ("floor", 0.0),
        ("form", "mine"),
        ("mask", "none"),
        ("distributions", "some"),
    ],
    "ditto": [("lambda_", -1.0)],
    "fedadam": [("beta1", 1.0), ("beta2", -0.1), ("eta", 0.0), ("tau", 0.0)],
    "fedavgm": [("beta", 1.0), ("eta", 0.0)],
    "fedprox": [("mu", -1.0)],
    "krum": [("f", -1), ("m", 0)],
    "scaffold": [("eta_g", 0.0)],
    "shapfed": [("mu", 1.5), ("contribution", "loo"), ("reward", "sparse")],
    "trimmed": [("beta", 0.5)],
    "fedce": [("combine", "product"), ("combine", "")],
    "fedce_nvflare": [("error", "others")],
    "fedci": [("truncation", -0.1)],
    "fedvalue": [("alpha", 1.0), ("kind", "banzhaf")],
    "fedsac": [
        ("beta", -1.0),
        ("beta", math.nan),
        ("standalone_rounds", 0),
        ("importance_interval", 0),
        ("validation_images", 0),
        ("contributions", (0.5, 81.0)),
        ("contributions", (0.5, math.nan)),
        ("importance", "first"),
        ("aggregation", "mean"),
    ],
    "qfedavg": [("q", -1.0), ("L", 0.0), ("rule", "mine")],
    "rffl": [("mask", "random"), ("alpha", -0.1), ("gamma", -1.0), ("coef", 1.0), ("coef", math.nan), ("warmup", -1)],
    "rr": [("turns", "two")],
    "vpdl": [("kl", "both"), ("T", 0.0), ("lambda0", -1.0), ("warmup", -1)],
}


@pytest.mark.parametrize("method", REFUSED)
def test_parameters_out_of_range_are_named_with_what_was_expected(method):
    for name, value in REFUSED[method]:
        with pytest.raises(ValueError, match=f"^{name.rstrip('_')}=.*: expected ") as error:
            build_method(method, {name: value})
        choices = rules(METHODS[method])[name].choices
        assert all(choice in str(error.value) for choice in choices)


def test_the_run_is_asked_for_what_a_method_needs():
    assert build_method("standalone", {}).needs.sites == 1
    assert build_method("fedavg", {}).needs.sites == 2
    assert build_method("fedsac", {"standalone_rounds": 2}).needs.rounds == 3
    assert build_method("fedsac", {"contributions": (0.5, 1.0)}).needs.rounds == 1
    assert {name for name in METHODS if build_method(name, {}).needs.sums_only} == {"fedavg", "fedce"}
    assert not build_method("fedce_nvflare", {}).needs.sums_only
