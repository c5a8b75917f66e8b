"""Tasks and answers as NVFlare's messages: what arrives is what was sent, and what is none is a failure."""

from collections.abc import Mapping

import pytest
import torch
from good_replies import SITES, good_reply, tiny_plan
from pretending import NETWORK, SIZE, over_the_wire
from stepping import Stepped as Federation

from fedmerit.flare.translation import (
    answer_to_model,
    model_to_evaluated,
    model_to_evaluation,
    model_to_reply,
    model_to_task,
    task_to_model,
)
from fedmerit.trainers.monai_trainer.overlaps import Overlap, Surface
from fedmerit.wire.messages import (
    ClosingReceipt,
    ClosingTask,
    Enrolment,
    EnrolmentTask,
    Evaluated,
    Failure,
    Importance,
    ImportanceTask,
    Reply,
    SparseUpdate,
    Task,
)


@pytest.fixture
def federation(tmp_path):
    federation = Federation(tiny_plan(), SITES, tmp_path / "run")
    federation.take({site: good_reply(federation, site) for site in SITES})
    return federation


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def test_an_evaluation_arrives_as_it_was_sent(federation):
    """With surfaces and without."""
    overlaps = tuple(Overlap("000", "prostate", 5, 2, 1, one) for one in (Surface("px", 1.5, 0.5), None))
    answer = Evaluated(4, (overlaps,), torch.zeros(1, 0))
    model = over_the_wire(answer_to_model(answer, federation.network))
    arrived = model_to_evaluated(model, federation.network)
    assert isinstance(arrived, Evaluated)
    assert arrived.overlaps == answer.overlaps
    model.meta["overlaps"][0][0]["surface"] = {"unit": "mm", "hd95": 1.0, "patient": "Doe"}
    assert isinstance(model_to_evaluated(model, federation.network), Failure)


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
    answer = Enrolment(0, {"training": 3}, {"training": 45}, ("a1", "b2"), "PEM", 0.5)
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
