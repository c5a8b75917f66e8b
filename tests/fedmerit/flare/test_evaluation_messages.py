"""Sparse updates, mixtures and evaluations as messages: sizes, faults of an answer, and the way there."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from pretending import NETWORK, SIZE, generator, over_the_wire, same

from fedmerit import flat
from fedmerit.errors import MemoryLost
from fedmerit.flare.translation import (
    answer_to_model,
    model_to_evaluated,
    model_to_evaluation,
    model_to_reply,
    task_to_model,
)
from fedmerit.methods.fedavg import FedAvg
from fedmerit.trainers.monai_trainer.data import SERVER_SPLIT
from fedmerit.trainers.monai_trainer.overlaps import Overlap
from fedmerit.wire.inspection import check_evaluated, check_reply
from fedmerit.wire.messages import (
    Evaluated,
    Evaluation,
    Failure,
    Reply,
    SparseUpdate,
    Task,
    payload_bytes,
)


def bits(vector: torch.Tensor) -> torch.Tensor:
    return vector.view(torch.int32)


@pytest.mark.parametrize("size", [1, 2, 1000, 1001])
@pytest.mark.parametrize("part", [0.0, 0.01, 0.3, 0.5, 0.7, 1.0])
def test_sparse_update_gives_the_model_bit_for_bit_or_is_no_smaller(size, part):
    random = generator(size)
    previous = torch.randn(size, generator=random)
    model = previous.clone()
    chosen = torch.randperm(size, generator=random)[: round(part * size)]
    model[chosen] += torch.randn(len(chosen), generator=random) * torch.logspace(-6, 6, len(chosen))
    changed, kept = model != previous, previous.clone()
    sparse = SparseUpdate.between(changed, model)
    if sparse is None:
        assert int(changed.sum()) * 2 >= size
        return
    assert (sparse.indices.dtype, sparse.values.dtype) == (torch.int32, torch.float32)
    assert len(sparse.indices) == len(sparse.values) == int(changed.sum())
    assert torch.equal(bits(sparse.apply(previous)), bits(model))
    assert torch.equal(previous, kept)


@pytest.mark.parametrize("size", [1, 2, 7, 10, 11])
def test_sparse_update_is_sent_exactly_where_it_is_smaller(size):
    model = torch.arange(float(size))
    whole = payload_bytes(Task(0, model, {}))
    for count in range(size + 1):
        changed = torch.arange(size) < count
        smaller = 4 * count + 4 * count < whole  # int32 and float32
        sparse = SparseUpdate.between(changed, model)
        assert (sparse is not None) == smaller
        if sparse is not None:
            assert payload_bytes(Task(0, sparse, {})) == 8 * count


def test_sparse_update_for_another_model_is_a_lost_memory():
    sparse = SparseUpdate(torch.tensor([2, 5], dtype=torch.int32), torch.tensor([1.0, 2.0]))
    assert sparse.apply(torch.zeros(6)).tolist() == [0, 0, 1, 0, 0, 2]
    with pytest.raises(MemoryLost, match="the model of the round before"):
        sparse.apply(torch.zeros(5))


def test_payload_counts_models_and_statistics():
    buffers = {"mean": torch.zeros(3), "steps": torch.tensor(4)}  # 12 + 8 bytes
    sparse = SparseUpdate(torch.zeros(2, dtype=torch.int32), torch.zeros(2))
    each = torch.eye(2, dtype=torch.float64)
    assert payload_bytes(Task(0, torch.zeros(100), buffers)) == 420
    assert payload_bytes(Task(0, sparse, buffers)) == 36
    assert payload_bytes(Task(0, sparse, {})) == 16
    assert payload_bytes(Reply(0, torch.zeros(100), buffers, 5, ())) == 420
    assert payload_bytes(Evaluation(0, "testing", torch.zeros(2, 100), each, (buffers, buffers), each, bins=10)) == 840


def test_mixture_of_one_model_is_that_model_bit_for_bit():
    models = torch.randn(3, 50, generator=generator(0))
    models[1, :2] = torch.tensor([-0.0, 1e-45])
    mixed = flat.mix(models, torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))
    assert torch.equal(bits(mixed), bits(models[1]))


@pytest.mark.parametrize("mixture", [[0.25, 0.75, 0.0], [1 / 3] * 3, [0.0, 0.5, 0.0], [1.0, 1.0, -1.0], [1.0, 0, 1e-9]])
def test_mixture_is_the_weighted_sum_in_float64(mixture):
    models = torch.randn(3, 50, generator=generator(0))
    kept, weights = models.clone(), torch.tensor(mixture, dtype=torch.float64)
    mixed = flat.mix(models, weights)
    assert mixed.dtype == torch.float32
    assert torch.equal(mixed, (weights[:, None] * models.double()).sum(dim=0).float())
    assert torch.equal(models, kept)


def test_model_without_part_in_a_mixture_may_hold_anything():
    models = torch.tensor([[1.0, 2.0], [float("nan"), float("inf")], [3.0, 6.0]])
    assert flat.mix(models, torch.tensor([0.5, 0.0, 0.5], dtype=torch.float64)).tolist() == [2.0, 4.0]


LABELS = ("disc", "cup")


def asked(models: int = 2, bins: int = 3) -> Evaluation:
    each = torch.eye(models, dtype=torch.float64)
    return Evaluation(4, SERVER_SPLIT, torch.zeros(models, 5), each, ({},) * models, each, bins)


def read_overlaps(*cases: str) -> tuple[Overlap, ...]:
    return tuple(Overlap(case, label, 5, 2, 1) for case in cases for label in LABELS)


def said(models: int = 2, bins: int = 3, **parts: Any) -> Evaluated:
    return replace(Evaluated(4, (read_overlaps("000", "001"),) * models, torch.ones(models, bins), 0.5), **parts)


def with_overlap(**parts: Any) -> Evaluated:
    """A bad overlap, in the answer of the second model alone."""
    first, *others = read_overlaps("000", "001")
    return said(overlaps=((first, *others), (replace(first, **parts), *others)))


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        (asked(), said()),
        (asked(models=1, bins=0), said(models=1, bins=0)),
        (asked(bins=1), said(bins=1, losses=torch.zeros(2, 1))),
        (asked(), said(overlaps=((), ()))),
        (asked(), with_overlap(true_positives=0, false_positives=0, false_negatives=6)),
        (asked(), said(losses=torch.full((2, 3), 1e6, dtype=torch.float64))),
    ],
)
def test_evaluation_that_can_be_used(task, answer):
    assert check_evaluated(answer, task, LABELS) is None


SPOILED_EVALUATIONS: Mapping[str, tuple[object, str]] = {
    "a failure": (Failure("out of memory"), "out of memory"),
    "nothing": (None, "no answer"),
    "a reply": (Reply(4, torch.zeros(5), {}, 5, ()), "no answer to what was asked (Reply)"),
    "an earlier round": (said(round=3), "evaluation of round 3 in round 4"),
    "a later round": (said(round=5), "evaluation of round 5 in round 4"),
    "no models": (said(models=0), "0 models, expected 2"),
    "a model too few": (said(models=1), "1 models, expected 2"),
    "a model too many": (said(models=3), "3 models, expected 2"),
    "other cases for one model": (
        said(overlaps=(read_overlaps("000", "001"), read_overlaps("000", "002"))),
        "other cases",
    ),
    "fewer cases for one model": (said(overlaps=(read_overlaps("000", "001"), read_overlaps("000"))), "other cases"),
    "no cases for one model": (said(overlaps=(read_overlaps("000", "001"), ())), "other cases"),
    "cases in another order": (
        said(overlaps=(read_overlaps("000", "001"), read_overlaps("001", "000"))),
        "other cases",
    ),
    "an unknown label": (with_overlap(label="bladder"), "another label"),
    "a name for a case": (with_overlap(case="Doe, Jane"), "no position"),
    "a number for a case": (with_overlap(case=0), "no position"),
    "a case twice": (said(overlaps=(read_overlaps("000", "000"),) * 2), "a case twice"),
    "a label left out": (said(overlaps=(read_overlaps("000", "001")[:-1],) * 2), "some of its labels"),
    "another reference": (with_overlap(false_negatives=2), "another reference"),
    "more voxels than can be": (with_overlap(false_positives=2**60), "no counts"),
    "a negative count": (with_overlap(false_positives=-1), "no counts"),
    "a broken count": (with_overlap(true_positives=1.5), "no counts"),
    "NaN for a count": (with_overlap(false_negatives=float("nan")), "no counts"),
    "text for a count": (with_overlap(true_positives="many"), "no counts"),
    "True for a count": (with_overlap(true_positives=True), "no counts"),
    "a bin too few": (said(bins=2), "losses of shape (2, 2), expected (2, 3)"),
    "losses of a model too many": (said(losses=torch.ones(3, 3)), "losses of shape (3, 3)"),
    "losses in a row": (said(losses=torch.ones(6)), "losses of shape (6,)"),
    "no losses": (said(losses=torch.zeros(2, 0)), "losses of shape (2, 0)"),
    "NaN in the losses": (said(losses=torch.tensor([[1.0, 1, 1], [1, float("nan"), 1]])), "losses that are no counts"),
    "infinite losses": (said(losses=torch.tensor([[1.0, 1, 1], [1, float("inf"), 1]])), "losses that are no counts"),
    "losses beyond counting": (said(losses=torch.full((2, 3), 1e30)), "losses that are no counts"),
    "losses of more images": (said(losses=torch.tensor([[1.0, 1, 1], [1, 2, 1]])), "losses of more images"),
    "negative losses": (said(losses=torch.tensor([[1.0, 1, 1], [1, -0.5, 1]])), "losses that are no counts"),
}


@pytest.mark.parametrize("spoiled", SPOILED_EVALUATIONS)
def test_evaluation_that_cannot_be_used(spoiled):
    answer, words = SPOILED_EVALUATIONS[spoiled]
    assert words in str(check_evaluated(answer, asked(), LABELS))


@pytest.mark.parametrize(("models", "kinds", "count", "bins"), [(1, 1, 1, 0), (3, 4, 8, 0), (12, 2, 6, 10)])
def test_evaluation_arrives_as_it_was_sent(models, kinds, count, bins):
    random = generator(models)
    buffers = flat.get_buffers(NETWORK)
    task = Evaluation(
        round=2,
        split=SERVER_SPLIT,
        models=torch.randn(models, SIZE, generator=random),
        mixtures=torch.rand(count, models, generator=random, dtype=torch.float64),
        buffers=tuple({name: value + kind for name, value in buffers.items()} for kind in range(kinds)),
        shares=torch.rand(count, kinds, generator=random, dtype=torch.float64),
        bins=bins,
    )
    arrived = model_to_evaluation(over_the_wire(task_to_model(task, NETWORK, 9)), NETWORK)
    assert torch.equal(bits(arrived.models), bits(task.models))
    for name in ("mixtures", "shares"):
        assert getattr(arrived, name).dtype == torch.float64
        assert torch.equal(getattr(arrived, name), getattr(task, name))
    assert len(arrived.buffers) == kinds
    assert all(same(one, other) for one, other in zip(arrived.buffers, task.buffers, strict=True))
    assert (arrived.round, arrived.split, arrived.bins) == (2, SERVER_SPLIT, bins)
    assert payload_bytes(arrived) == payload_bytes(task)


@pytest.mark.parametrize("bins", [0, 3])
def test_evaluated_arrives_as_it_was_sent(bins):
    losses = torch.rand(2, bins, generator=generator(0), dtype=torch.float64)
    answer = said(losses=losses, overlaps=(read_overlaps("000", "001"), read_overlaps("002", "003")))
    arrived = model_to_evaluated(over_the_wire(answer_to_model(answer, NETWORK)), NETWORK)
    assert isinstance(arrived, Evaluated)
    assert (arrived.losses.dtype, arrived.losses.shape) == (torch.float64, (2, bins))
    assert torch.equal(arrived.losses, losses)
    assert (arrived.round, arrived.overlaps, arrived.seconds) == (4, answer.overlaps, 0.5)


SPOILED_MODELS: Mapping[str, Callable[[Any], object]] = {
    "no meta": lambda model: setattr(model, "meta", None),
    "no round": lambda model: setattr(model, "current_round", None),
    "a round that is text": lambda model: setattr(model, "current_round", "first"),
    "an infinite round": lambda model: setattr(model, "current_round", float("inf")),
    "overlaps of one model": lambda model: model.meta.update(overlaps=model.meta["overlaps"][0]),
    "overlaps without counts": lambda model: model.meta.update(overlaps=[[{"case": "000"}]]),
    "overlaps with more": lambda model: model.meta["overlaps"][1][0].update(patient="Doe"),
    "overlaps that are a number": lambda model: model.meta.update(overlaps=3),
    "overlaps of a number": lambda model: model.meta.update(overlaps=[3]),
    "losses of text": lambda model: model.meta.update(losses="low"),
    "losses of names": lambda model: model.meta.update(losses={"low": 3}),
    "losses of rows unalike": lambda model: model.meta.update(losses=[[1.0], [1.0, 2.0]]),
    "seconds that are a list": lambda model: model.meta.update(seconds=[1.0]),
    **{f"no {name}": lambda model, name=name: model.meta.pop(name) for name in ("overlaps", "losses", "seconds")},
}


@pytest.mark.parametrize("spoiled", SPOILED_MODELS)
def test_message_that_is_no_evaluation_is_a_failure(spoiled):
    model = over_the_wire(answer_to_model(said(), NETWORK))
    SPOILED_MODELS[spoiled](model)
    assert isinstance(model_to_evaluated(model, NETWORK), Failure)


def test_answer_of_the_other_kind_is_a_failure():
    reply = Reply(4, torch.zeros(SIZE), flat.get_buffers(NETWORK), 5, ())
    assert isinstance(model_to_evaluated(over_the_wire(answer_to_model(reply, NETWORK)), NETWORK), Failure)
    assert isinstance(model_to_reply(over_the_wire(answer_to_model(said(), NETWORK)), NETWORK), Failure)


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
