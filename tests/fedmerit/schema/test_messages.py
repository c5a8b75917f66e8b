"""Sparse updates and what messages weigh; messages that a site does not follow, out of order or against its memory."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from pretending import generator

from fedmerit.errors import MemoryLost, Refused
from fedmerit.schema.messages import (
    OUT_OF_ORDER,
    Evaluation,
    ImportanceTask,
    Purpose,
    Reply,
    SparseUpdate,
    Task,
    payload_bytes,
)
from fedmerit.site.evaluation_budget import require_round_order


@pytest.mark.parametrize("index", [-1, -5, 5, 2**31 - 1])
def test_index_outside_of_the_model(index):
    update = SparseUpdate(torch.tensor([0, index], dtype=torch.int32), torch.tensor([9.0, 9.0]))
    with pytest.raises(MemoryLost, match="the model of the round before"):
        update.apply(torch.zeros(5))


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
    assert torch.equal(sparse.apply(previous).view(torch.int32), model.view(torch.int32))
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


def test_payload_counts_models_and_statistics():
    buffers = {"mean": torch.zeros(3), "steps": torch.tensor(4)}  # 12 + 8 bytes
    sparse = SparseUpdate(torch.zeros(2, dtype=torch.int32), torch.zeros(2))
    each = torch.eye(2, dtype=torch.float64)
    assert payload_bytes(Task(0, torch.zeros(100), buffers)) == 420
    assert payload_bytes(Task(0, sparse, buffers)) == 36
    assert payload_bytes(Task(0, sparse, {})) == 16
    assert payload_bytes(Reply(0, torch.zeros(100), buffers, 5, ())) == 420
    assert payload_bytes(Evaluation(0, "testing", torch.zeros(2, 100), each, (buffers, buffers), each, bins=10)) == 840


ROUNDS = 5
ONE = torch.eye(1, dtype=torch.float64)
MODEL = torch.zeros(3)


def evaluation(round, split="validation", purpose=Purpose.ROUND):
    return Evaluation(round, split, MODEL[None], ONE, ({},), ONE, purpose=purpose)


def importance(round):
    return ImportanceTask(round, "server_validation", MODEL, {}, "exact", 4)


@pytest.mark.parametrize("make", [lambda round: Task(round, MODEL, {}), importance, evaluation])
@pytest.mark.parametrize(("round", "given"), [(1, False), (2, False), (3, True)])
def test_a_round_is_repeated_and_none_before_it(make, round, given):
    with nullcontext() if given else pytest.raises(Refused, match=f"round {round}, after answers in round 3"):
        require_round_order(make(round), ROUNDS, latest=3, trained={0, 1, 2, 3})


@pytest.mark.parametrize("round", [0, 3, 4])
def test_who_was_away_or_comes_late_trains_in_whatever_round_it_is(round):
    for task in (Task(round, MODEL, {}), importance(round), evaluation(round, "training", Purpose.ESTIMATE)):
        require_round_order(task, ROUNDS, latest=-1, trained=())
        require_round_order(task, ROUNDS, latest=0, trained={0})


def test_models_of_a_round_are_judged_after_its_training():
    with pytest.raises(Refused, match="on the validation split in round 1, before its training") as refused:
        require_round_order(evaluation(1), ROUNDS, latest=0, trained={0})
    assert refused.value.reason == OUT_OF_ORDER
    require_round_order(evaluation(1), ROUNDS, latest=1, trained={0, 1})


@pytest.mark.parametrize("split", ["validation", "testing"])
@pytest.mark.parametrize("purpose", [Purpose.FINAL, Purpose.FINISH])
def test_the_final_test_comes_last(split, purpose):
    final = evaluation(ROUNDS, split, purpose)
    with pytest.raises(Refused, match=f"the final test on the {split} split, before any training"):
        require_round_order(final, ROUNDS, latest=-1, trained=())
    require_round_order(final, ROUNDS, latest=2, trained={2})  # absent from the last rounds
    with pytest.raises(Refused, match="the final test in round 4, expected after round 4"):
        require_round_order(replace(final, round=4), ROUNDS, latest=4, trained={4})


def test_after_the_final_test_nothing_is_trained_any_more():
    with pytest.raises(Refused, match="round 4, after answers in round 5"):
        require_round_order(Task(4, MODEL, {}), ROUNDS, latest=5, trained={3})
