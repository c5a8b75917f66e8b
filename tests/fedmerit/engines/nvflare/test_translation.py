"""Tasks and answers as NVFlare's messages: what arrives is what was sent, and what is none is a failure."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from good_replies import SITES, good_reply, tiny_plan
from pretending import NETWORK, SIZE, generator, over_the_wire, same
from stepping import Stepped as Federation

from fedmerit.contract import flat
from fedmerit.engines.nvflare.translation import (
    answer_to_model,
    model_to_evaluated,
    model_to_evaluation,
    model_to_reply,
    model_to_task,
    task_to_model,
)
from fedmerit.schema.messages import (
    ClosingReceipt,
    ClosingTask,
    Enrolment,
    EnrolmentTask,
    Evaluated,
    Evaluation,
    Failure,
    Importance,
    ImportanceTask,
    Reply,
    SparseUpdate,
    Task,
    payload_bytes,
)
from fedmerit.schema.scores import SERVER_SPLIT, Overlap, Surface


@pytest.fixture
def federation(tmp_path):
    federation = Federation(tiny_plan(), SITES, tmp_path / "run")
    federation.take({site: good_reply(federation, site) for site in SITES})
    return federation


@pytest.mark.parametrize(("models", "kinds", "count", "bins"), [(1, 1, 1, 0), (3, 4, 8, 0), (12, 2, 6, 10)])
def test_models_and_mixtures_arrive_as_they_were_sent(models, kinds, count, bins):
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
    assert torch.equal(arrived.models.view(torch.int32), task.models.view(torch.int32))
    for name in ("mixtures", "shares"):
        assert getattr(arrived, name).dtype == torch.float64
        assert torch.equal(getattr(arrived, name), getattr(task, name))
    assert len(arrived.buffers) == kinds
    assert all(same(one, other) for one, other in zip(arrived.buffers, task.buffers, strict=True))
    assert (arrived.round, arrived.split, arrived.bins) == (2, SERVER_SPLIT, bins)
    assert payload_bytes(arrived) == payload_bytes(task)


SURFACE = Surface("px", 1.5, 0.5)
OVERLAPS = tuple((Overlap(case, "disc", 5, 2, 1), Overlap(case, "cup", 5, 2, 1, SURFACE)) for case in "01")
ANSWER = Evaluated(4, OVERLAPS, torch.ones(2, 3), 0.5)


@pytest.mark.parametrize("bins", [0, 3])
def test_an_evaluation_arrives_as_it_was_sent(bins):
    """With surfaces and without."""
    answer = Evaluated(4, OVERLAPS, torch.rand(2, bins, generator=generator(0), dtype=torch.float64), 0.5)
    arrived = model_to_evaluated(over_the_wire(answer_to_model(answer, NETWORK)), NETWORK)
    assert isinstance(arrived, Evaluated)
    assert (arrived.losses.dtype, arrived.losses.shape) == (torch.float64, (2, bins))
    assert torch.equal(arrived.losses, answer.losses)
    assert (arrived.round, arrived.overlaps, arrived.seconds) == (4, OVERLAPS, 0.5)


SPOILED_MODELS: Mapping[str, Callable[[Any], object]] = {
    "no meta": lambda model: setattr(model, "meta", None),
    "no round": lambda model: setattr(model, "current_round", None),
    "a round that is text": lambda model: setattr(model, "current_round", "first"),
    "an infinite round": lambda model: setattr(model, "current_round", float("inf")),
    "overlaps of one model": lambda model: model.meta.update(overlaps=model.meta["overlaps"][0]),
    "overlaps without counts": lambda model: model.meta.update(overlaps=[[{"case": "000"}]]),
    "overlaps with more": lambda model: model.meta["overlaps"][1][0].update(name="Doe"),
    "a surface with more": lambda model: model.meta["overlaps"][1][1].update(
        surface={"unit": "mm", "hd95": 1.0, "patient": "Doe"}
    ),
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
    model = over_the_wire(answer_to_model(ANSWER, NETWORK))
    SPOILED_MODELS[spoiled](model)
    assert isinstance(model_to_evaluated(model, NETWORK), Failure)


def test_answer_of_the_other_kind_is_a_failure():
    reply = Reply(4, torch.zeros(SIZE), flat.get_buffers(NETWORK), 5, ())
    assert isinstance(model_to_evaluated(over_the_wire(answer_to_model(reply, NETWORK)), NETWORK), Failure)
    assert isinstance(model_to_reply(over_the_wire(answer_to_model(ANSWER, NETWORK)), NETWORK), Failure)


def test_reply_arrives_as_it_was_sent(federation):
    reply = good_reply(federation, "Birch")
    arrived = model_to_reply(over_the_wire(answer_to_model(reply, federation.network)), federation.network)
    assert isinstance(arrived, Reply)
    assert torch.equal(arrived.update, reply.update)
    assert same(arrived.buffers, reply.buffers)
    rest = ("round", "num_samples", "overlaps", "values", "train_loss", "seconds")
    assert [getattr(arrived, name) for name in rest] == [getattr(reply, name) for name in rest]


def test_what_changed_of_a_model_arrives_bit_for_bit():
    """With neurons as bits, 11 of them, which is no whole number of bytes; and beside it a vector, by name."""
    sparse = SparseUpdate(torch.tensor([0, SIZE - 1], dtype=torch.int32), torch.tensor([-0.0, 1e-45]))
    neurons, vector = torch.arange(11) % 3 == 0, torch.arange(SIZE, dtype=torch.float32)
    task = Task(3, sparse, {"count": torch.tensor(7)}, neurons=neurons, vectors={"control": vector}, ledger="head")
    arrived = model_to_task(over_the_wire(task_to_model(task, NETWORK, 9)), NETWORK)
    assert isinstance(arrived.parameters, SparseUpdate)
    for name in ("indices", "values"):
        was, is_now = getattr(sparse, name), getattr(arrived.parameters, name)
        assert was.numpy().tobytes() == is_now.numpy().tobytes()
        assert was.dtype == is_now.dtype
    assert torch.equal(arrived.neurons, neurons)
    assert arrived.vectors.keys() == {"control"}
    assert torch.equal(arrived.vectors["control"], vector)
    assert same(arrived.buffers, task.buffers)
    assert (arrived.round, arrived.ledger, arrived.weight, arrived.ciphertexts) == (3, "head", None, None)


def test_an_enrolment_arrives_as_it_was_sent():
    task = EnrolmentTask(0, "head")
    assert model_to_evaluation(over_the_wire(task_to_model(task, NETWORK, 9)), NETWORK) == task
    answer = Enrolment(0, {"training": 3}, {"training": 45}, ("a1", "b2"), "PEM", "seal", 0.5, "plan")
    model = over_the_wire(answer_to_model(answer, NETWORK))
    assert model_to_evaluated(model, NETWORK) == answer
    del model.meta["enrolment"]["cases"]
    assert model_to_evaluated(model, NETWORK) == Failure("evaluation cannot be read (KeyError)")


def test_what_neurons_are_worth_arrives_as_it_was_sent():
    task = ImportanceTask(2, "training", torch.arange(SIZE) / 7, {"count": torch.tensor(3)}, "taylor", 5, "head")
    arrived = model_to_evaluation(over_the_wire(task_to_model(task, NETWORK, 9)), NETWORK)
    assert isinstance(arrived, ImportanceTask)
    assert torch.equal(arrived.model, task.model)
    assert same(arrived.buffers, task.buffers)
    rest = ("round", "split", "order", "images", "ledger")
    assert [getattr(arrived, name) for name in rest] == [getattr(task, name) for name in rest]
    answer = Importance(2, torch.tensor([0.1, -0.2], dtype=torch.float64), 5, 0.5)
    told = model_to_evaluated(over_the_wire(answer_to_model(answer, NETWORK)), NETWORK)
    assert isinstance(told, Importance)
    assert told.increases.tolist() == [0.1, -0.2]
    assert (told.round, told.images, told.seconds) == (2, 5, 0.5)


def test_the_reason_of_a_failure_arrives_in_the_place_of_any_answer():
    model = over_the_wire(answer_to_model(Failure("asleep"), NETWORK))
    assert model_to_reply(model, NETWORK) == model_to_evaluated(model, NETWORK) == Failure("asleep")


def test_how_a_run_was_closed_and_that_it_was_noted_arrive_as_they_were_sent():
    task = ClosingTask(3, "digest signature", "head")
    assert model_to_evaluation(over_the_wire(task_to_model(task, NETWORK, 3)), NETWORK) == task
    answer = ClosingReceipt(3)
    assert model_to_evaluated(over_the_wire(answer_to_model(answer, NETWORK)), NETWORK) == answer
