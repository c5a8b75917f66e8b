"""The faults of a soak run: drawn from a seed, one at a time, each mended by the machine and never by an admin."""

import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

KINDS = (
    "kill -9 of a site's job process",
    "kill -9 of everything at a site, its machine starts again",
    "kill -9 of the server's job process",
    "kill -9 of everything at the server, its machine starts again",
    "SIGSTOP of a site's job process",
    "network of a site cut",
    "disk of a site full",
    "clock of a site an hour ahead, its machine starts again",
    "disk of the server full",
    "memory of a site full, once",
    "list of revoked certificates of the server damaged",
    "certificate in a site's kit damaged, its machine starts again",
)


class Machines(Protocol):
    """The machines of a federation, as far as faults need them; "server" is one of the names."""

    def processes(self, name: str, job_only: bool = False) -> list[psutil.Process]:
        """Those at work there."""

    def stop(self, name: str) -> None:
        """kill -9 of everything there."""

    def boot(self, name: str, ahead: bool = False) -> None:
        """What the machine does as it starts; its clock may be an hour ``ahead``."""

    def cut(self, name: str, cut: bool) -> None:
        """Cut the line of a site, or mend it."""

    def fill(self, name: str, full: bool) -> None:
        """Let nothing more be flushed to a disk, or make room."""

    def exhaust(self, name: str) -> None:
        """Let the next file that is flushed there end in a MemoryError."""

    def damage(self, name: str, damaged: bool) -> None:
        """Cut the certificate in the kit of a site short, or the server's list of revoked ones; or mend it."""


@dataclass(frozen=True)
class Fault:
    """``kind`` is one of `KINDS`; after ``round`` complete rounds and ``delay`` seconds; lasts ``seconds``."""

    round: int
    kind: str
    where: str
    delay: float
    seconds: float

    def strike(self, machines: Machines) -> None:
        """Do it, and what the machine does of itself afterwards."""
        time.sleep(self.delay)
        job_only = "job process" in self.kind
        if "memory" in self.kind:
            machines.exhaust(self.where)
        elif "certificate in" in self.kind:
            machines.stop(self.where)
            machines.damage(self.where, True)
            machines.boot(self.where)
            time.sleep(self.seconds)
            machines.stop(self.where)
            machines.damage(self.where, False)
            machines.boot(self.where)
        elif any(word in self.kind for word in ("network", "disk", "list")):
            changes = {"network": machines.cut, "disk": machines.fill, "list": machines.damage}
            change = next(change for word, change in changes.items() if word in self.kind)
            change(self.where, True)
            time.sleep(self.seconds)
            change(self.where, False)
        elif "SIGSTOP" in self.kind:
            family = machines.processes(self.where, job_only=True)
            _send(family, signal.SIGSTOP)
            time.sleep(self.seconds)
            _send(family, signal.SIGCONT)
        elif job_only:
            _send(machines.processes(self.where, job_only=True), signal.SIGKILL)
        else:
            machines.stop(self.where)
            time.sleep(self.seconds)
            machines.boot(self.where, ahead="clock" in self.kind)


def _send(family: Sequence[psutil.Process], what: signal.Signals) -> None:
    for process in family:
        try:
            process.send_signal(what)
        except psutil.NoSuchProcess:
            continue


def draw_faults(
    seed: int, count: int, rounds: int, sites: Sequence[str], longest: float, words: Sequence[str] = ()
) -> list[Fault]:
    """``count`` faults after different rounds of ``rounds``; of the first of them each kind comes once.

    ``words``: only kinds that have one of them.
    """
    wanted = [kind for kind in KINDS if not words or any(word in kind for word in words)]
    draws = random.Random(seed)
    when = sorted(draws.sample(range(1, rounds - 1), min(count, rounds - 2)))
    kinds = [kind for _ in range(-(-len(when) // len(wanted))) for kind in draws.sample(wanted, len(wanted))]
    return [
        Fault(
            round,
            kind,
            "server" if "server" in kind else draws.choice(list(sites)),
            draws.uniform(0, 3),
            draws.uniform(5, longest),
        )
        for round, kind in zip(when, kinds, strict=False)
    ]


@dataclass(frozen=True)
class Cost:
    """What a fault cost: seconds from it to the next complete round, and how many a round took before."""

    fault: Fault
    seconds: float
    usual: float


def strike_all(
    faults: Sequence[Fault], machines: Machines, complete: Callable[[], int], over: Callable[[], bool]
) -> list[Cost]:
    """Each fault after its round; until the run is over. ``complete``: rounds that are."""
    costs, took, last = [], [1.0], time.monotonic()
    for fault in faults:
        done = complete()
        while done < fault.round and not over():
            time.sleep(0.2)
            if (now := complete()) > done:
                took.append((time.monotonic() - last) / (now - done))
                done, last = now, time.monotonic()
        began = time.monotonic()
        fault.strike(machines)
        at = complete()
        while complete() <= at and not over():
            time.sleep(0.2)
        last = time.monotonic()
        costs.append(Cost(fault, last - began, sorted(took)[len(took) // 2]))
        print(f"after round {fault.round}: {fault.kind} ({fault.where}): {costs[-1].seconds:.0f} s", flush=True)
    return costs


def write_table(costs: Sequence[Cost], path: Path) -> None:
    """As Markdown."""
    lines = ["| complete rounds | fault | where | lasted, s | to the next complete round, s | usual round, s |"]
    lines += ["|---|---|---|---|---|---|"]
    lines += [
        f"| {one.fault.round} | {one.fault.kind} | {one.fault.where} | {one.fault.seconds:.0f} | {one.seconds:.0f} "
        f"| {one.usual:.1f} |"
        for one in costs
    ]
    path.write_text("\n".join(lines) + "\n")
