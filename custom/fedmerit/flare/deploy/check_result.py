"""What a machine's preflight says: one line for each thing that it looked at."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How a line of the preflight is: fine, worth a look, or in the way."""

    ok = "ok"
    warn = "warn"
    fail = "fail"


@dataclass(frozen=True)
class CheckResult:
    """One thing that was looked at."""

    what: str
    state: State
    told: str


Finding = tuple[State, str]


def ok(told: str) -> Finding:
    """Fine."""
    return State.ok, told


def warn(told: str) -> Finding:
    """Worth a look."""
    return State.warn, told


def fail(told: str) -> Finding:
    """In the way."""
    return State.fail, told
