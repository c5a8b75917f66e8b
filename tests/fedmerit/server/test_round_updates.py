"""A round's replies as tensors, and what its updates show: norms and cosines."""

import pytest
import torch

from fedmerit.contract.capabilities import capabilities
from fedmerit.contract.vectors import BLOCK, gram
from fedmerit.methods.registry import build_method
from fedmerit.schema.messages import Reply
from fedmerit.server.round_updates import measure_updates, stack_replies

SITES = ["Alder", "Birch", "Cedar"]


def reply(number, **more):
    return Reply(0, torch.full((4,), float(number)), {}, 10 * number, (), **more)


def test_a_row_is_a_site_and_who_is_away_is_zero_or_not_known():
    method = build_method("fedce", {})
    replies = [reply(1, values={"cosine": 0.5}), None, reply(3, values={"minus_error": 0.25})]
    updates, reports = stack_replies(replies, SITES, 4, method.asks, capabilities(method))
    assert updates.tolist() == [[1.0] * 4, [0.0] * 4, [3.0] * 4]
    assert reports.num_samples.tolist() == [10, 0, 30]
    assert reports.present.tolist() == [True, False, True]
    assert reports.values["cosine"].nan_to_num(-1).tolist() == [0.5, -1, -1]
    assert reports.values["minus_error"].nan_to_num(-1).tolist() == [-1, -1, 0.25]
    assert reports.products.tolist() == [[4, 0, 12], [0, 0, 0], [12, 0, 36]]


def test_what_a_site_says_of_another_is_in_its_row_and_the_others_column():
    method = build_method("cycle", {})
    quantity = next(iter(method.peer_quantities))
    said = {quantity: {"Cedar": 0.5}}
    pairs = stack_replies([reply(1, pairs=said), reply(2), reply(3)], SITES, 4, method.asks, capabilities(method))[
        1
    ].pairs[quantity]
    assert pairs.nan_to_num(-1).tolist() == [[-1, -1, 0.5], [-1, -1, -1], [-1, -1, -1]]


def test_vectors_beside_the_update_are_stacked_likewise():
    method = build_method("scaffold", {})
    name = method.vectors[0]
    replies = [None, reply(2, vectors={name: torch.arange(4.0)}), None]
    _, reports = stack_replies(replies, SITES, 4, method.asks, capabilities(method))
    assert reports.vectors[name].tolist() == [[0.0] * 4, [0.0, 1.0, 2.0, 3.0], [0.0] * 4]


def cosine(one, other):
    return float(torch.cosine_similarity(one.double(), other.double(), dim=0))


@pytest.mark.parametrize("size", [7, BLOCK + 3])
def test_norms_and_cosines_are_those_of_the_vectors(size):
    random = torch.Generator().manual_seed(size)
    updates, last = torch.randn(4, size, generator=random), torch.randn(size, generator=random)
    updates[2] = 0  # absent
    present = torch.tensor([True, True, False, True])
    weights = torch.tensor([0.5, 0.2, 0.0, 0.3], dtype=torch.float64)
    mean, found = measure_updates(updates, gram(updates), weights, present, last)
    expected = weights @ updates.double()
    assert torch.allclose(mean.double(), expected, rtol=1e-6)
    assert mean.dtype == updates.dtype
    for i in (0, 1, 3):
        assert float(found["norm"][i]) == pytest.approx(float(updates[i].double().norm()))
        assert float(found["cosine_to_mean"][i]) == pytest.approx(cosine(updates[i], expected))
        assert float(found["cosine_to_previous"][i]) == pytest.approx(cosine(updates[i], last))
        pairs = [cosine(updates[i], updates[j]) for j in (0, 1, 3) if j != i]
        assert float(found["largest_pair_cosine"][i]) == pytest.approx(max(pairs))
    assert all(values[2].isnan() and values.dtype == torch.float64 for values in found.values())


def test_what_there_is_nothing_to_compare_with_is_unknown_or_zero():
    updates = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    single = torch.tensor([True, False])
    _, found = measure_updates(updates, gram(updates), torch.tensor([1.0, 0.0]), single, None)
    assert found["norm"].nan_to_num(-1).tolist() == [5, -1]
    assert found["cosine_to_mean"][0] == pytest.approx(1)
    assert found["cosine_to_previous"].isnan().all()
    assert found["largest_pair_cosine"].isnan().all()
    _, both = measure_updates(
        updates, gram(updates), torch.tensor([0.5, 0.5]), torch.tensor([True, True]), torch.zeros(2)
    )
    assert both["cosine_to_mean"].tolist() == pytest.approx([1, 0])
    assert both["cosine_to_previous"].tolist() == [0, 0]
    assert both["largest_pair_cosine"].tolist() == [0, 0]
