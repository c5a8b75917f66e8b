"""How each site of a federation is: what an admin's session learns of it, and what of that needs a look."""

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nvflare.fuel.flare_api.flare_api import Session

from fedmerit.version import PACKAGES

SILENCE = 60.0  # seconds without a word of a connected site; NVFlare calls it connected for ten minutes
SKEW = 30.0  # seconds between a site's clock and the admin's
DISK = 1.0  # GiB free, below which a site's rounds fail soon
VERSIONS = (*PACKAGES, "python")


@dataclass(frozen=True)
class SiteState:
    """One site: ``silent``, seconds since its last word, None if it is not connected; ``flags``, what is wrong."""

    silent: float | None
    facts: Mapping[str, Any] = field(default_factory=dict)
    clock_offset: float | None = None  # seconds, its clock minus the admin's; as exact as the question was fast
    flags: Sequence[str] = ()

    @property
    def connection(self) -> str:
        """In words."""
        if self.silent is None:
            return "not connected"
        return "connected" if self.silent < SILENCE else f"silent for {self.silent:.0f} s"


def ask_sites(opened: Session, now: float) -> tuple[dict[str, float], dict[str, Mapping[str, Any]]]:
    """By connected site, seconds since its last word, and its facts, as of `SiteFacts`; ``now``: since 1970."""
    clients = opened.get_system_info().client_info
    silent = {str(one.name): max(0.0, now - float(one.last_connect_time or now)) for one in clients}
    reports = opened.report_resources("client") if silent else {}
    return silent, {str(site): parse_facts(text) for site, text in reports.items()}


def parse_facts(text: object) -> Mapping[str, Any]:
    """Facts, as NVFlare prints them in its table; none if it printed something else."""
    try:
        facts = ast.literal_eval(str(text))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def judge_sites(
    expected: Sequence[str],
    silent: Mapping[str, float],
    facts: Mapping[str, Mapping[str, Any]],
    absent: Mapping[str, str],
    now: float,
) -> dict[str, SiteState]:
    """By name, the state of connected and ``expected`` sites; ``absent``: those that lack in rounds, and why."""
    usual = {name: _most_common([one[name] for one in facts.values() if name in one]) for name in VERSIONS}
    states = {}
    for site in sorted({*expected, *silent}):
        own = facts.get(site, {})
        offset = own["clock"] - now if isinstance(own.get("clock"), int | float) else None
        state = SiteState(silent.get(site), own, offset)
        flags = [state.connection] if state.connection != "connected" else []
        flags += [
            f"{name} {own[name]}, others have {usual[name]}"
            for name in VERSIONS
            if name in own and own[name] != usual[name]
        ]
        if offset is not None and abs(offset) > SKEW:
            flags.append(f"its clock is {offset:+.0f} s from this one")
        if isinstance(own.get("disk"), int | float) and own["disk"] < DISK:
            flags.append(f"{own['disk']} GiB free on its disk")
        flags += [absent[site]] if site in absent else []
        states[site] = SiteState(state.silent, own, offset, flags)
    return states


def _most_common(values: Sequence[Any]) -> Any:
    """The most frequent value, of equally frequent ones the largest; None of none."""
    counts = Counter(map(str, values))
    return max(counts, key=lambda value: (counts[value], value)) if counts else None
