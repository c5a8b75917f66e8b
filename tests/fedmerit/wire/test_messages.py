"""Messages that a site does not follow: out of order, or not fitting its memory."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from fedmerit.errors import MemoryLost, Refused
from fedmerit.wire.evaluation_budget import require_round_order
from fedmerit.wire.messages import OUT_OF_ORDER, Evaluation, ImportanceTask, Purpose, SparseUpdate, Task


@pytest.mark.parametrize("index", [-1, -5, 5, 2**31 - 1])
def test_index_outside_of_the_model(index):
    update = SparseUpdate(torch.tensor([0, index], dtype=torch.int32), torch.tensor([9.0, 9.0]))
    with pytest.raises(MemoryLost):
        update.apply(torch.zeros(5))


def test_indices_within_are_applied():
    update = SparseUpdate(torch.tensor([0, 4], dtype=torch.int32), torch.tensor([9.0, 8.0]))
    assert update.apply(torch.zeros(5)).tolist() == [9, 0, 0, 0, 8]


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
