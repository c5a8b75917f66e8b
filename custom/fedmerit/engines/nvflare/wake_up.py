"""Sites of a simulation sleep until the server has something for them, instead of asking it again and again.

NVFlare's sites ask for tasks, and idle ones slow down those at work. Forked processes share the events that their
parent created; if nobody did, as in a deployment, waking up does nothing.
"""

import os
import select
from collections.abc import Iterable

_events: dict[str, int] = {}  # by site the file descriptor of an event, which lasts until it is read


def create_wake_ups(sites: Iterable[str]) -> None:
    """One event for every site, before its process is forked."""
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
