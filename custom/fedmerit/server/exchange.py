"""One message to every site that is asked, and the answers: each is checked once, when it comes.

`Moment` is where a run stands, `Clock` measures the server's own work.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from fedmerit.errors import RunFailed, printable
from fedmerit.schema.messages import Answer, Failure, Task, Work
from fedmerit.schema.records import EVALUATE, TRAIN


class Clock:
    """A clock of the server's own work on a round, without waiting for sites [s]."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """The time since the start, without pauses [s]."""
        return time.perf_counter() - self._began

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time in this block does not count."""
        began = time.perf_counter()
        yield
        self._began += time.perf_counter() - began


NO_REPLY = "no reply"
NOT_ASKED = "not a site that was asked"
LONGEST_REASON = 200  # characters; a site may have written them
LONGEST_NAME = 100
MessageCheck = Callable[[str, object], str | None]  # from a site and its answer: why it cannot be used, or None


class Exchange:
    """An engine sends ``tasks``, and passes what comes back to `take` and `refuse`.

    Args:
        tasks: by site, in site order.
        check_message: the reason why a site's answer to its task cannot be used, or None.
        what: the kind of answer, in a word.
        when: for messages, such as "round 3".
        least: usable answers that the exchange needs; those of all sites that are asked, if they are fewer.
        earlier: by name, why messages of earlier exchanges in the round did not count; None: there were none.
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
        self._check, self._when, self._earlier = check_message, when, earlier
        self._usable: dict[str, Answer] = {}
        self._refused: dict[str, str] = {}
        self._failed: set[str] = set()  # of the refused: who sent no answer, but why there is none

    @property
    def work(self) -> str:
        """The work of the sites: `TRAIN` or `EVALUATE`."""
        return TRAIN if all(isinstance(task, Task) for task in self.tasks.values()) else EVALUATE

    def take(self, site: str, answer: Answer) -> None:
        """Keep a usable answer, or the reason against it; an unusable message replaces no usable one."""
        fault = self._check(site, answer) if site in self.tasks else NOT_ASKED
        if site in self._usable:
            fault = fault or "a second answer"
        if fault:
            self.refuse(site, fault, failed=isinstance(answer, Failure))
        else:
            self._usable[site] = answer

    def refuse(self, name: str, reason: str, failed: bool = False) -> None:
        """Note that a message under a name cannot be used; of several, the first reason.

        ``failed``: the site sent no answer at all, which shows nothing of what it would have sent.
        """
        shown = printable(name[:LONGEST_NAME])
        self._failed |= {shown} if failed and shown not in self._refused else set()
        self._refused.setdefault(shown, printable(reason[:LONGEST_REASON]))

    @property
    def failed(self) -> set[str]:
        """The sites that sent no answer: something failed there, or on the way."""
        return self._failed | {site for site in self.tasks if not self.has_reply(site)}

    def has_reply(self, site: str) -> bool:
        """Return whether ``site`` sent anything, usable or not."""
        return site in self._usable or site in self._refused

    def is_complete(self) -> bool:
        """Return whether the exchange may end with the answers that are in."""
        return len(self._usable) >= self.least

    def faults(self) -> dict[str, str]:
        """Return, by name, why a message, or a site without one, does not count.

        Earlier ones of the round come first.
        """
        faults = self._refused | {site: NO_REPLY for site in self.tasks if not self.has_reply(site)}
        if self._earlier is None:
            return faults
        return {**self._earlier, **{name: f"{self.what}: {why}" for name, why in faults.items()}}

    def usable(self) -> dict[str, Answer]:
        """Return the answers that can be used, in site order; `RunFailed` if they are too few."""
        if not self.is_complete():
            who = "no site" if self.least == 1 else f"{len(self._usable)} of {self.least} sites needed"
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.faults().items())
            raise RunFailed(f"{self._when}: {who} sent a usable {self.what} ({reasons})")
        return {site: self._usable[site] for site in self.tasks if site in self._usable}


@dataclass(frozen=True)
class Moment:
    """A moment of a run: what its exchanges have in common."""

    round: int
    when: str  # for messages, such as "round 3"
    ledger_head: str  # of all rounds before, which the sites write into their logs
    least: int  # usable answers that an exchange needs
    check_log: MessageCheck = lambda site, answer: None  # what an answer says of the site's own log

    def exchange(
        self,
        tasks: Mapping[str, Work],
        check_message: MessageCheck,
        what: str,
        earlier: Mapping[str, str] | None = None,
    ) -> Exchange:
        """Return an `Exchange` at this moment; arguments as of `Exchange`."""

        def check(site: str, answer: object) -> str | None:
            return check_message(site, answer) or self.check_log(site, answer)

        return Exchange(tasks, check, what, self.when, self.least, earlier)
