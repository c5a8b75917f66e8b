"""Sites of a simulation sleep until the server has something for them, in the place of asking it again and again.

NVFlare's sites ask for tasks, and what idle ones ask takes from those at work. Forked processes share the bells of the
process that hung them; where nobody did, as in a deployment, nothing rings.
"""

import os
import select
from collections.abc import Iterable

_events: dict[str, int] = {}  # file descriptor by site, of an event that lasts until it is read


def create_wake_ups(sites: Iterable[str]) -> None:
    """A bell for every site, before it is forked."""
    _events.update({site: os.eventfd(0) for site in sites})


def wake_up(sites: Iterable[str] | None = None) -> None:
    """There is something for these sites, or for all."""
    for site in _events if sites is None else _events.keys() & set(sites):
        os.eventfd_write(_events[site], 1)


def wait_for_wake_up(site: str, seconds: float) -> None:
    """Until the bell of ``site`` rings, or has rung since it last slept; at most so long."""
    waiting = select.poll()
    waiting.register(_events[site], select.POLLIN)
    if waiting.poll(1000 * seconds):
        os.eventfd_read(_events[site])
