"""Methods by name: their tables, their parameters, which class reads which, and how long a file may be."""

import math
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


# What parameters may be

REFUSED = {
    "cffl": [
        ("theta", 0.0), ("theta", 1.5), ("clip", 0.0), ("alpha", 0.0), ("alpha", math.nan), ("coef", -0.1),
        ("reward", "none")
    ],
    "cffl_released": [("alpha_growth", -1), ("reputation", "paper"), ("aggregation", "median"), ("reward", "global")],
    "cgsv": [
        ("contribution", "loo"), ("reward", "dense"), ("mask", "random"), ("alpha", 1.1), ("alpha", math.nan),
        ("beta", 0.0), ("beta", math.inf), ("gamma", 0.0), ("gamma", math.nan), ("floor", -1e-3)
    ],
    "fedmgda": [("epsilon", 1.1), ("eta", 0.0)],
    "fedfv": [("alpha", -0.1), ("tau", -1)],
    "afl": [("rate", 0.0), ("rate", math.nan)],
    "term": [("t", math.nan)],
    "cycle": [
        ("kl", "both"), ("T", 0.0), ("lambda0", -1.0), ("warmup", -1), ("alpha", 1.0), ("tau_opt", 0.8),
        ("tau_max", 1.5), ("R", 0), ("score_loss", "dice")
    ],
    "dw": [("ratio", "sum")],
    "eci": [("truncation", math.nan)],
    "fedave": [
        ("tau", 0.0), ("alpha", 1.5), ("beta", 0.0), ("bins", 0), ("bins", 101),
        ("kl_floor", 0.0), ("floor", 0.0), ("form", "mine"), ("mask", "none"), ("distributions", "some")
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
        ("beta", -1.0), ("beta", math.nan), ("standalone_rounds", 0), ("importance_interval", 0),
        ("validation_images", 0), ("contributions", (0.5, 81.0)), ("contributions", (0.5, math.nan)),
        ("importance", "first"), ("aggregation", "mean")
    ],
    "qfedavg": [("q", -1.0), ("L", 0.0), ("rule", "mine")],
    "rffl": [("mask", "random"), ("alpha", -0.1), ("gamma", -1.0), ("coef", 1.0), ("coef", math.nan), ("warmup", -1)],
    "rr": [("turns", "two")],
    "vpdl": [("kl", "both"), ("T", 0.0), ("lambda0", -1.0), ("warmup", -1)],
}  # fmt: skip


@pytest.mark.parametrize("method", REFUSED)
def test_parameters_out_of_range_are_named_with_what_was_expected(method):
    for name, value in REFUSED[method]:
        with pytest.raises(ValueError, match=f"^{name.rstrip('_')}=.*: expected ") as error:
            build_method(method, {name: value})
        if (words := parameters(METHODS[method])[name].words).startswith("one of"):
            assert words in str(error.value)


def test_the_run_is_asked_for_what_a_method_needs():
    assert build_method("standalone", {}).needs.sites == 1
    assert build_method("fedavg", {}).needs.sites == 2
    assert build_method("fedsac", {"standalone_rounds": 2}).needs.rounds == 3
    assert build_method("fedsac", {"contributions": (0.5, 1.0)}).needs.rounds == 1
    assert {name for name in METHODS if build_method(name, {}).needs.sums_only} == {"fedavg", "fedce"}
    assert not build_method("fedce_nvflare", {}).needs.sums_only
