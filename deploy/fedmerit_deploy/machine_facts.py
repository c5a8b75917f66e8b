"""What may leave a site when an admin asks how the federation is: this list, and nothing else.

Versions, room, the clock, the kind of the last error, and counts in bins: nothing of paths, file names or a patient.
Both ends hold every answer against the list.
"""

import re
from bisect import bisect
from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from typing import Any

from fedmerit.schema.survey import LEAST
from fedmerit.version import PACKAGES

LARGEST = 1e12  # of a number
VERSIONS = (*PACKAGES, "python")
EDGES = (LEAST, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 100_000)  # fixed: moved ones would show a patient
BINS = (*(f"{low} to {high - 1}" for low, high in pairwise(EDGES)), f"{EDGES[-1]} or more")
LISTED = (
    *VERSIONS,
    "gpu",
    "disk",
    "memory",
    "clock",
    "certificate",
    "task",
    "patients",
    "slices",
    "batch",
    "last_error",
)
_TEXTS: Mapping[str, str] = {
    **dict.fromkeys(VERSIONS, r"[\w.+\-]{1,60}|not installed"),
    "gpu": r"[\w .()/+,\-]{0,200}",
    "certificate": r"\d{4}-\d\d-\d\d",
    "task": r"[\w.\-]{1,60}",
    **dict.fromkeys(("patients", "slices"), "|".join(BINS)),
    "batch": r"\d{1,9} of \d{1,9}",
    "last_error": r"([A-Za-z_]\w{0,60} \d{4}-\d\d-\d\d \d\d:\d\d UTC)?",
}


def count_bin(count: int) -> str:
    """The bin that a count of patients or slices is in; "", which does not leave, below the first."""
    return BINS[place - 1] if (place := bisect(EDGES, count)) else ""


def clear_facts(facts: Mapping[str, Any], hidden: Collection[str] = ()) -> dict[str, Any]:
    """Of ``facts`` by name, those that are as listed and not ``hidden``; numbers with one decimal.

    None at all if something unknown is to be hidden: a misspelt name must not let a fact out.
    """
    if not set(hidden) <= set(LISTED):
        return {}
    return {
        name: round(facts[name], 1) if isinstance(facts[name], float) else facts[name]
        for name in LISTED
        if name in facts and name not in hidden and _CHECKS[name](facts[name])
    }


def _is_text(name: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and bool(re.fullmatch(_TEXTS[name], value, re.ASCII))


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LARGEST


_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    **{name: _is_text(name) for name in _TEXTS},
    **dict.fromkeys(("disk", "memory", "clock"), _is_amount),
}
assert set(_CHECKS) == set(LISTED)
