"""What a machine's preflight reports: one line for each check."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How a line of the preflight is: fine, a warning, or a failure."""

    ok = "ok"
    warn = "warn"
    fail = "fail"


@dataclass(frozen=True)
class CheckResult:
    """The result of one check."""

    what: str
    state: State
    message: str


Finding = tuple[State, str]


def ok(message: str) -> Finding:
    """Fine."""
    return State.ok, message


def warn(message: str) -> Finding:
    """A warning."""
    return State.warn, message


def fail(message: str) -> Finding:
    """A failure."""
    return State.fail, message
