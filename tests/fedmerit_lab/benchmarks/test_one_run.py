"""A run in a process of its own, to be measured."""

import time
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from types import SimpleNamespace

import pytest

from fedmerit_lab.benchmarks import one_run


def test_a_line_for_every_round_says_when_it_ended_and_what_memory_it_left(tmp_path, monkeypatch):
    """The second round leaves 30 MB behind."""
    asked, left = [], []

    def execute(run, on_round):
        asked.append(run)
        for number in range(3):
            if number == 1:
                left.append(mmap(-1, 30_000_000, MAP_PRIVATE | MAP_ANONYMOUS))  # no memory that was freed before
                for _ in range(30):
                    left[0].write(b"x" * 1_000_000)
            on_round({"round": number})
            assert len((tmp_path / "ends.txt").read_text().splitlines()) == number + 1  # at once

    monkeypatch.setattr(one_run.runs, "execute", execute)
    began = time.time()
    one_run.main(str(tmp_path / "run"), str(tmp_path / "ends.txt"))
    assert asked == [tmp_path / "run"]
    ends = [[float(word) for word in line.split()] for line in (tmp_path / "ends.txt").read_text().splitlines()]
    times, used, own = zip(*ends, strict=True)
    assert began <= times[0] <= times[1] <= times[2] <= time.time()
    assert used[1] - used[0] == pytest.approx(30e6, rel=0.2)
    assert own[1] - own[0] == pytest.approx(30e6, rel=0.2)
    assert own[2] - own[1] < 5e6


def test_memory_that_is_a_files_is_told_apart(tmp_path, monkeypatch):
    used = SimpleNamespace(pss=70, rss=100, shared=40)
    monkeypatch.setattr(one_run.psutil, "Process", lambda: SimpleNamespace(memory_full_info=lambda: used))
    monkeypatch.setattr(one_run.runs, "execute", lambda run, on_round: on_round({}))
    one_run.main("run", str(tmp_path / "ends.txt"))
    assert (tmp_path / "ends.txt").read_text().split()[1:] == ["70", "60"]
