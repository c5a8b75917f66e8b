import threading
import time

from fedmerit.flare.turns import TURNS, turn


def most_at_work(number):
    at_work, most, lock = set(), [], threading.Lock()

    def work(name):
        with turn():
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
    monkeypatch.setenv(TURNS, f"2:{tmp_path}")
    assert most_at_work(6) == 2


def test_all_where_nothing_is_said(monkeypatch):
    monkeypatch.delenv(TURNS, raising=False)
    assert most_at_work(4) == 4
