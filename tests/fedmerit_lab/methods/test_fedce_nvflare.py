"""FedCE with estimate="server" against the aggregator that NVFlare installs: same weights, same update, to 1e-6."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_opt.pt.fedce import FedCEConstants, FedCEModelAggregator

from fedmerit.contract.method import Layout, Reports
from fedmerit_lab.methods.fedce_nvflare import FedCENVFlare

NAMES = ("a.weight", "b.bias", "c.weight", "d.bias")  # sorted, as NVFlare flattens


@dataclass(frozen=True)
class Case:
    """Rounds of n sites: updates (rounds, n, d) float32, minus errors (rounds, n)."""

    shapes: tuple[tuple[int, ...], ...]
    updates: torch.Tensor
    minus_errors: torch.Tensor


# Five numbers or more: with one or two, sums may cancel down to the float32 rounding that NVFlare's cosine then sees.
SHAPES = (
    st.lists(st.sampled_from([(1,), (3,), (2, 2), (1, 1, 2), (30,)]), min_size=2, max_size=4)
    .map(tuple)
    .filter(lambda shapes: sum(map(math.prod, shapes)) >= 5)
)


@st.composite
def cases(draw):
    n, rounds, shapes = draw(st.integers(2, 6)), draw(st.integers(1, 5)), draw(SHAPES)
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    d = sum(math.prod(shape) for shape in shapes)
    updates = torch.randn(rounds, n, d, generator=random) * draw(st.sampled_from([1e-3, 0.1, 1.0, 100.0]))
    updates += draw(st.sampled_from([0.0, 1.0])) * updates[:, :1].abs()  # with and without a common direction
    kind = draw(st.sampled_from(["plain", "zero", "all zero", "twins", "identical", "once zero"]))
    site = draw(st.integers(0, n - 1))
    if kind == "zero":
        updates[:, site] = 0
    elif kind == "all zero":
        updates[:] = 0
    elif kind == "twins":
        updates[:, site] = updates[:, site - 1]
    elif kind == "identical":
        updates[:] = updates[:, :1]
    elif kind == "once zero":
        updates[0, site] = 0
    minus_errors = torch.rand(rounds, n, generator=random, dtype=torch.float64)
    minus_errors[0] = 1.0  # nobody has a minus model in round 0
    if draw(st.booleans()):
        minus_errors[1:, site] = draw(st.sampled_from([0.0, 1.0]))
    return Case(shapes, updates, minus_errors)


def nvflare_rounds(case, mode):
    """NVFlare's weights (n,) and aggregated update (d,), round by round."""
    aggregator = FedCEModelAggregator(mode=mode)
    for number, updates in enumerate(case.updates):
        means = case.minus_errors[: number + 1].mean(dim=0)
        for site, update in enumerate(updates):
            pieces = torch.split(update, [math.prod(shape) for shape in case.shapes])
            params = {name: piece.view(shape) for name, piece, shape in zip(NAMES, pieces, case.shapes, strict=False)}
            meta = {"client_name": f"site-{site}", FedCEConstants.MINUS_MODEL_SCORE: float(means[site])}
            aggregator.accept_model(FLModel(ParamsType.DIFF, params=params, meta=meta, current_round=number))
        result = aggregator.aggregate_model()
        aggregator.reset_stats()
        weights = result.meta[FedCEConstants.CONTRIBUTION_WEIGHTS]
        yield (
            torch.tensor([weights[f"site-{site}"] for site in range(len(updates))], dtype=torch.float64),
            torch.cat([torch.as_tensor(result.params[name]).flatten() for name in NAMES[: len(case.shapes)]]).double(),
        )


def our_rounds(case, combine, averaged_by):
    """The same of FedCE."""
    method = FedCENVFlare(combine, averaged_by=averaged_by)
    _, n, d = case.updates.shape
    state = method.start(torch.zeros(d, dtype=torch.float64), n, Layout.of(d))
    everyone, nothing = torch.ones(n, dtype=torch.bool), torch.full((n,), math.nan, dtype=torch.float64)
    for number, updates in enumerate(case.updates):
        errors = case.minus_errors[number] if averaged_by == "server" else case.minus_errors[: number + 1].mean(dim=0)
        values = {"cosine": nothing, "minus_error": errors if number else nothing}
        before = state.model
        state, outcome = method.round(state, updates, Reports(torch.arange(1.0, n + 1), everyone, values))
        yield outcome.weights, outcome.models - before


@pytest.mark.parametrize(("combine", "averaged_by"), [("times", "server"), ("plus", "server"), ("plus", "site")])
@given(case=cases())
@settings(derandomize=True, deadline=None, max_examples=30)
def test_weights_and_update_are_nvflares(combine, averaged_by, case):
    for (weights, update), (expected, expected_update) in zip(
        our_rounds(case, combine, averaged_by), nvflare_rounds(case, combine), strict=True
    ):
        assert torch.allclose(weights, expected, rtol=0, atol=1e-6)
        size = max(1.0, float(case.updates.abs().max()))  # of float32 numbers
        assert torch.allclose(update, expected_update, rtol=0, atol=1e-6 * size)
