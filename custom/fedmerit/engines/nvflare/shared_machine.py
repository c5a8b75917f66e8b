"""How the sites of a simulation share its machine: only some work at a time, the others sleep until they are woken.

Every site has a process of its own, and only some of them work at a time: NVFlare's own limit starts a new process for
every site and round, which loads everything again. NVFlare's sites also ask the server for tasks again and again, which
slows down those at work; here they sleep on events, which forked processes share with their parent. In a deployment
nobody sets a limit or creates events, and neither does anything.
"""

import fcntl
import os
import select
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

# variable "NUMBER:FOLDER": so many sites at a time, by locks in that folder; if it is not set, all
CONCURRENCY_LIMIT = "FEDMERIT_TURNS"
POLL = 0.02  # seconds
_here = threading.local()  # whether this thread has a slot


@contextmanager
def concurrency_slot() -> Iterator[None]:
    """Wait for one of the slots that the limit allows, and keep it within; the first to ask waits least.

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
    """Return whether this process has the place."""
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_events: dict[str, int] = {}  # by site the file descriptor of an event, which lasts until it is read


def create_wake_ups(sites: Iterable[str]) -> None:
    """Create an event for every site, before its process is forked."""
    _events.update({site: os.eventfd(0) for site in sites})


def wake_up(sites: Iterable[str] | None = None) -> None:
    """Wake these sites, or all: the server has something for them."""
    for site in _events if sites is None else _events.keys() & set(sites):
        os.eventfd_write(_events[site], 1)


def wait_for_wake_up(site: str, seconds: float) -> None:
    """Sleep until ``site`` is woken, at most so long; return at once if it was woken since it last slept."""
    waiting = select.poll()
    waiting.register(_events[site], select.POLLIN)
    if waiting.poll(1000 * seconds):
        os.eventfd_read(_events[site])
