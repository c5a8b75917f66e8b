"""What the server keeps of a round's updates, and what it accepts of the models that sites trained."""

from dataclasses import replace

import pytest
import torch

from fedmerit.federation.round_updates import measure_updates
from fedmerit.methods.fedavg import FedAvg
from fedmerit.trainers.monai_trainer.overlaps import Overlap
from fedmerit.vectors import BLOCK, gram
from fedmerit.wire.inspection import check_reply
from fedmerit.wire.messages import Reply


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
    alone = torch.tensor([True, False])
    _, found = measure_updates(updates, gram(updates), torch.tensor([1.0, 0.0]), alone, None)
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


RECEIVED = (Overlap("000", "disc", 5, 2, 1), Overlap("000", "cup", 3, 0, 3))
GOOD = (Overlap("000", "disc", 4, 0, 2), Overlap("000", "cup", 6, 1, 0))


@pytest.mark.parametrize(
    ("trained", "words"),
    [
        (GOOD, None),
        ((), None),
        (GOOD[:1], "some of its labels"),
        ((replace(GOOD[0], true_positives=5), GOOD[1]), "another reference"),
        ((replace(GOOD[0], case="001"), replace(GOOD[1], case="001")), "other cases"),
        ((replace(GOOD[0], false_positives=-1), GOOD[1]), "no counts"),
        ((replace(GOOD[0], label="rim"), GOOD[1]), "another label"),
    ],
)
def test_overlaps_of_a_trained_model_are_of_the_same_references(trained, words):
    reply = Reply(0, torch.zeros(3), {}, 5, RECEIVED, trained_overlaps=trained)
    fault = check_reply(reply, 0, torch.zeros(3), {}, ("disc", "cup"), FedAvg())
    assert (fault is None) if words is None else (fault is not None and words in fault)
