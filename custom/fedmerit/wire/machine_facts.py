"""What may leave a site when an admin asks how the federation is: this list, and nothing else.

Versions, room, the clock, and the kind of the last error: nothing of paths, file names or patients. Both ends hold
every answer against the list.
"""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from fedmerit.version import PACKAGES
from fedmerit.wire.survey import LEAST

LARGEST = 1e12  # of a number
VERSIONS = (*PACKAGES, "python")
LISTED: Mapping[str, str] = {
    **dict.fromkeys(VERSIONS, "its version"),
    "gpu": "names of GPUs",
    "disk": "GiB free on the disk of the kit",
    "memory": "GiB of memory available",
    "clock": "seconds since 1970",
    "certificate": "the last day of the kit's certificate",
    "task": "of the prepared images",
    "patients": f"of the prepared images; none below {LEAST}, the floor of surveys",
    "slices": "likewise",
    "last_error": "the kind of the last error in the site's own log, and when it was written",
}
_TEXTS: Mapping[str, str] = {
    **dict.fromkeys(VERSIONS, r"[\w.+\-]{1,60}|not installed"),
    "gpu": r"[\w .()/+,\-]{0,200}",
    "certificate": r"\d{4}-\d\d-\d\d",
    "task": r"[\w.\-]{1,60}",
    "last_error": r"([A-Za-z_]\w{0,60} \d{4}-\d\d-\d\d \d\d:\d\d UTC)?",
}


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


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and _is_amount(value)


def _is_patients(value: Any) -> bool:
    return _is_count(value) and value >= LEAST


_AMOUNTS = {"disk": _is_amount, "memory": _is_amount, "clock": _is_amount}
_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    **{name: _is_text(name) for name in _TEXTS},
    **_AMOUNTS,
    "patients": _is_patients,
    "slices": _is_count,
}
assert set(_CHECKS) == set(LISTED)
