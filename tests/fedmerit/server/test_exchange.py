"""One message to every site that is asked, and which answers count; the checkpoint of the server."""

import os
import stat

import numpy as np
import pytest
import torch

from fedmerit.errors import BadInput, RunFailed
from fedmerit.schema.messages import EnrolmentTask, Failure, Task
from fedmerit.schema.records import EVALUATE, TRAIN
from fedmerit.server import exchange as exchange_module
from fedmerit.server.checkpoint import CHECKPOINT, complete_rounds, is_finished, read_checkpoint, write_checkpoint
from fedmerit.server.exchange import LONGEST_NAME, LONGEST_REASON, NO_REPLY, NOT_ASKED, Exchange, Moment

TASKS = {name: Task(3, torch.zeros(2), {}) for name in ("A", "B", "C")}


def check_message(site, answer):
    return answer.reason if isinstance(answer, Failure) else None


def exchange(least=1, earlier=None, tasks=TASKS):
    return Moment(3, "round 3", "head", least).exchange(tasks, check_message, "reply", earlier)


def test_answers_are_handed_over_in_the_order_of_the_sites():
    one = exchange()
    one.take("C", "c")
    one.take("A", "a")
    assert one.usable() == {"A": "a", "C": "c"}
    assert list(one.usable()) == ["A", "C"]
    assert one.faults() == {"B": NO_REPLY}
    assert [one.has_reply(name) for name in "ABC"] == [True, False, True]


def test_an_unusable_answer_takes_no_usable_ones_place():
    one = exchange()
    one.take("A", "first")
    one.take("A", Failure("broken"))
    one.take("A", "second")
    one.take("B", Failure("broken"))
    one.take("B", "late, and usable")
    one.take("Z", "anything")
    assert one.usable() == {"A": "first", "B": "late, and usable"}
    assert one.faults() == {"A": "broken", "B": "broken", "Z": NOT_ASKED, "C": NO_REPLY}
    twice = exchange()
    twice.take("A", "first")
    twice.take("A", "second")
    assert twice.faults()["A"] == "a second answer"


def test_it_may_end_with_the_least_that_were_asked_for():
    one = exchange(least=2)
    one.take("A", "a")
    assert not one.is_complete()
    with pytest.raises(RunFailed, match=r"round 3: 1 of 2 sites needed sent a usable reply \(B: no reply; C: no"):
        one.usable()
    one.take("B", "b")
    assert one.is_complete()
    single = exchange(least=5, tasks={"A": TASKS["A"]})  # of fewer that are asked, all
    single.take("A", "a")
    assert single.is_complete()
    with pytest.raises(RunFailed, match="no site sent a usable reply"):
        exchange(least=1).usable()


def test_why_messages_of_the_rounds_exchanges_before_did_not_count_comes_first():
    one = exchange(earlier={"C": "asleep"})
    one.take("A", "a")
    assert one.faults() == {"C": "reply: no reply", "B": "reply: no reply"}
    assert next(iter(one.faults())) == "C"


def test_what_a_site_writes_is_cut_and_cannot_steer_a_terminal():
    one = exchange()
    one.refuse("N" * 500, "\x1b[2J" + "r" * 500)
    ((name, reason),) = one._refused.items()
    assert len(name) <= LONGEST_NAME
    assert len(reason) <= LONGEST_REASON + 10  # an escape is written out
    assert "\x1b" not in reason


def test_what_there_is_to_do():
    assert exchange().work == TRAIN
    assert exchange(tasks={**TASKS, "D": EnrolmentTask(0)}).work == EVALUATE
    assert isinstance(exchange(), Exchange)


def test_waiting_for_sites_does_not_count(monkeypatch):
    times = iter([100.0, 103.0, 110.0, 112.5, 120.0, 121.0])
    monkeypatch.setattr(exchange_module.time, "perf_counter", lambda: next(times))
    work = exchange_module.Clock()  # at 100
    with work.paused():  # from 103 to 110
        pass
    assert work.seconds == pytest.approx(5.5)  # at 112.5
    with work.paused():  # from 120 to 121
        pass
    times = iter([123.0])
    assert work.seconds == pytest.approx(15.0)


def test_what_is_written_is_read_back(tmp_path):
    assert read_checkpoint(tmp_path) is complete_rounds(tmp_path) is None
    write_checkpoint(tmp_path, {"round": 2, "complete_rounds": 2, "models": torch.arange(3.0), "sites": ["A", "B"]})
    content = read_checkpoint(tmp_path)
    assert torch.equal(content.pop("models"), torch.arange(3.0))
    assert content == {"round": 2, "complete_rounds": 2, "sites": ["A", "B"]}
    assert complete_rounds(tmp_path) == 2
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]  # nothing of a temporary name is left


@pytest.mark.parametrize(("round", "finished"), [(2, False), (3, False), (4, True)])
def test_a_run_is_finished_once_its_final_models_are_tested(tmp_path, round, finished):
    """After the three rounds 0 to 2 the checkpoint says 3, after the last test 4."""
    assert not is_finished(tmp_path, 3)
    write_checkpoint(tmp_path, {"round": round, "complete_rounds": min(round, 3)})
    assert is_finished(tmp_path, 3) == finished
    assert complete_rounds(tmp_path) == min(round, 3)


@pytest.mark.parametrize(
    "state", [{1, 2}, np.float64(1), torch.ones(2, requires_grad=True), torch.ones(1).expand(9000)]
)
def test_what_could_not_be_read_again_is_refused_in_the_first_round(tmp_path, state):
    with pytest.raises(RunFailed, match=rf"/{CHECKPOINT}: .*keep only numbers and plain tensors in a method's state"):
        write_checkpoint(tmp_path, {"round": 1, "complete_rounds": 1, "state": {"memory": state}})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 cut short"])
def test_a_spoiled_file_is_named(tmp_path, content):
    (tmp_path / CHECKPOINT).write_bytes(content)
    with pytest.raises(
        BadInput, match=rf"{CHECKPOINT}: not a file of tensors .*; not readable as a checkpoint, start another run"
    ):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "content",
    [[1, 2], torch.zeros(2), {}, {"round": "3"}, {"round": 3}, {"round": 3, "complete_rounds": torch.arange(2)}],
)
def test_a_file_of_something_else_is_named(tmp_path, content):
    torch.save(content, tmp_path / CHECKPOINT)
    for read in (read_checkpoint, complete_rounds, lambda run: is_finished(run, 3)):
        with pytest.raises(BadInput, match=rf"{CHECKPOINT}: not a checkpoint of FedMerit; start another run"):
            read(tmp_path)


def test_its_name_is_on_disk_before_the_next_round_is_reported(tmp_path, monkeypatch):
    kinds = []
    monkeypatch.setattr(os, "fsync", lambda file: kinds.append(stat.S_ISDIR(os.fstat(file).st_mode)))
    write_checkpoint(tmp_path, {"round": 1})
    assert kinds == [False, True]
