"""Turns of a simulation's sites: each has a process of its own, and only some of them are at work at a time.

NVFlare's own way to have fewer at work is to begin a new process for every site and round, which loads everything anew.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TURNS = "FEDMERIT_TURNS"  # variable "NUMBER:FOLDER": so many at a time, by locks in that folder; all where not set
POLL = 0.02  # seconds


@contextmanager
def turn() -> Iterator[None]:
    """Only as many processes as there are turns are in here at a time; waits for one. A process that dies frees its."""
    number, _, folder = os.environ.get(TURNS, "").partition(":")
    if not number:
        yield
        return
    while True:
        for place in range(int(number)):
            with (Path(folder) / f"turn{place}").open("a") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield
                return
        time.sleep(POLL)
