"""Limit of a simulation's sites at work: each has a process of its own, and only some of them work at a time.

NVFlare's own limit starts a new process for every site and round, which loads everything again.
"""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

# variable "NUMBER:FOLDER": so many sites at a time, by locks in that folder; if it is not set, all
CONCURRENCY_LIMIT = "FEDMERIT_TURNS"
POLL = 0.02  # seconds
_here = threading.local()  # whether this thread has a slot


@contextmanager
def concurrency_slot() -> Iterator[None]:
    """Only as many processes as the limit allows are in here at a time; the first to ask waits least.

    A thread that has a slot continues at once. A process that dies frees its slot.
    """
    number, _, folder = os.environ.get(CONCURRENCY_LIMIT, "").partition(":")
    if not number or getattr(_here, "has_slot", False):
        yield
        return
    with ExitStack() as stack:
        places = [stack.enter_context((Path(folder) / f"slot{place}").open("a")) for place in range(int(number))]
        with (Path(folder) / "first").open("a") as first:
            fcntl.flock(first, fcntl.LOCK_EX)  # all that wait sleep here, except the one that looks for a place
            while not any(map(_is_acquired, places)):
                time.sleep(POLL)
        _here.has_slot = True
        stack.callback(vars(_here).clear)
        yield


def _is_acquired(place: IO[str]) -> bool:
    """Whether this process has the place now."""
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
