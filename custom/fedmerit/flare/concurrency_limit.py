"""Turns of a simulation's sites: each has a process of its own, and only some of them are at work at a time.

NVFlare's own way to have fewer at work is to begin a new process for every site and round, which loads everything anew.
"""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

CONCURRENCY_LIMIT = (
    "FEDMERIT_TURNS"  # variable "NUMBER:FOLDER": so many at a time, by locks in that folder; all where not set
)
POLL = 0.02  # seconds
_here = threading.local()  # whether this thread has its turn


@contextmanager
def concurrency_slot() -> Iterator[None]:
    """Only as many processes as there are turns are in here at a time; who asks first waits least.

    Who has its turn already goes on. A process that dies frees its.
    """
    number, _, folder = os.environ.get(CONCURRENCY_LIMIT, "").partition(":")
    if not number or getattr(_here, "has_turn", False):
        yield
        return
    with ExitStack() as stack:
        places = [stack.enter_context((Path(folder) / f"turn{place}").open("a")) for place in range(int(number))]
        with (Path(folder) / "first").open("a") as first:
            fcntl.flock(first, fcntl.LOCK_EX)  # whoever waits sleeps here, but for the one that looks for a place
            while not any(map(_is_acquired, places)):
                time.sleep(POLL)
        _here.has_turn = True
        stack.callback(vars(_here).clear)
        yield


def _is_acquired(place: IO[str]) -> bool:
    """Whether this process has the place now."""
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
