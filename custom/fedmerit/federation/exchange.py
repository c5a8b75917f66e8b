"""Time of the server's own work.

One message to every site that is asked, and the answers: each is checked once, when it comes.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from fedmerit.errors import RunFailed, printable
from fedmerit.wire.messages import EVALUATE, TRAIN, Answer, Task, Work


class Clock:
    """Seconds of the server's own work on a round; waiting for sites does not count."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since it was made, without pauses."""
        return time.perf_counter() - self._began

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What happens in this block does not count."""
        began = time.perf_counter()
        yield
        self._began += time.perf_counter() - began


NO_REPLY = "no reply"
NOT_ASKED = "not a site that was asked"
LONGEST_REASON = 200  # characters; a site may have written them
LONGEST_NAME = 100
MessageCheck = Callable[[str, object], str | None]  # of a site and its answer: why it cannot be used, or None


class Exchange:
    """What an engine carries: it sends ``tasks``, and hands over what comes back by `take` and `refuse`.

    Args:
        tasks: by site, in site order.
        fault_of: why an answer of a site to its task cannot be used, or None.
        what: is asked for, in a word.
        when: for messages, such as "round 3".
        least: usable answers without which the exchange cannot end; those of all asked, where fewer are.
        earlier: by name, why messages of the same round's exchanges before it did not count; None: there is no other.
    """

    def __init__(
        self,
        tasks: Mapping[str, Work],
        check_message: MessageCheck,
        what: str,
        when: str,
        least: int,
        earlier: Mapping[str, str] | None = None,
    ):
        self.tasks, self.what = tasks, what
        self.least = min(least, len(tasks))
        self._fault_of, self._when, self._earlier = check_message, when, earlier
        self._usable: dict[str, Answer] = {}
        self._refused: dict[str, str] = {}

    @property
    def work(self) -> str:
        """What the sites have to do: `TRAIN` or `EVALUATE`."""
        return TRAIN if all(isinstance(task, Task) for task in self.tasks.values()) else EVALUATE

    def take(self, site: str, answer: Answer) -> None:
        """Keep an answer, if it can be used; if not, why: an unusable message takes no usable one's place."""
        fault = self._fault_of(site, answer) if site in self.tasks else NOT_ASKED
        if site in self._usable:
            fault = fault or "a second answer"
        if fault:
            self.refuse(site, fault)
        else:
            self._usable[site] = answer

    def refuse(self, name: str, reason: str) -> None:
        """Note that a message under a name cannot be used; of several, the first reason."""
        self._refused.setdefault(printable(name[:LONGEST_NAME]), printable(reason[:LONGEST_REASON]))

    def heard(self, site: str) -> bool:
        """Whether ``site`` sent anything, usable or not."""
        return site in self._usable or site in self._refused

    def enough(self) -> bool:
        """Whether the exchange may end with the answers that are in."""
        return len(self._usable) >= self.least

    def faults(self) -> dict[str, str]:
        """By name, why a message, or a site without one, does not count; those of the round so far come first."""
        faults = self._refused | {site: NO_REPLY for site in self.tasks if not self.heard(site)}
        if self._earlier is None:
            return faults
        return {**self._earlier, **{name: f"{self.what}: {why}" for name, why in faults.items()}}

    def usable(self) -> dict[str, Answer]:
        """The answers that can be used, in site order.

        Raises:
            RunFailed: they are too few.
        """
        if not self.enough():
            who = "no site" if self.least == 1 else f"{len(self._usable)} of {self.least} sites needed"
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.faults().items())
            raise RunFailed(f"{self._when}: {who} sent a usable {self.what} ({reasons})")
        return {site: self._usable[site] for site in self.tasks if site in self._usable}


@dataclass(frozen=True)
class Moment:
    """Where a run is, which its exchanges have in common."""

    round: int
    when: str  # for messages, such as "round 3"
    told: str  # the server's word on all rounds before, for the sites' logs
    least: int  # usable answers without which no exchange ends

    def exchange(
        self,
        tasks: Mapping[str, Work],
        check_message: MessageCheck,
        what: str,
        earlier: Mapping[str, str] | None = None,
    ) -> Exchange:
        """An `Exchange` of now."""
        return Exchange(tasks, check_message, what, self.when, self.least, earlier)
