"""Turns: so many at work at a time, and everybody has one, also where one ends without giving it back."""

import multiprocessing
import os
import threading
import time

from fedmerit.flare.concurrency_limit import CONCURRENCY_LIMIT, concurrency_slot


def most_at_work(number):
    at_work, most, lock = set(), [], threading.Lock()

    def work(name):
        with concurrency_slot(), concurrency_slot():  # who has one has no need of another
            with lock:
                at_work.add(name)
                most.append(len(at_work))
            time.sleep(0.05)
            with lock:
                at_work.discard(name)

    workers = [threading.Thread(target=work, args=(name,)) for name in range(number)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(most) == number  # everybody had a turn
    return max(most)


def test_as_many_as_there_are_turns(monkeypatch, tmp_path):
    monkeypatch.setenv(CONCURRENCY_LIMIT, f"2:{tmp_path}")
    assert most_at_work(6) == 2


def test_who_dies_gives_back_the_turn(monkeypatch, tmp_path):
    def die():
        with concurrency_slot():
            os._exit(1)

    monkeypatch.setenv(CONCURRENCY_LIMIT, f"1:{tmp_path}")
    for _ in range(2):
        process = multiprocessing.get_context("fork").Process(target=die)
        process.start()
        process.join(30)
        assert process.exitcode == 1


def test_all_where_nothing_is_said(monkeypatch):
    monkeypatch.delenv(CONCURRENCY_LIMIT, raising=False)
    assert most_at_work(4) == 4
