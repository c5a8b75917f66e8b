"""The state of a federation: what an admin's session learns of each site and job, and what of that needs a look."""

import ast
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from nvflare.fuel.flare_api.api_spec import InternalError, NoConnection
from nvflare.fuel.flare_api.flare_api import Session

from fedmerit.errors import BadInput
from fedmerit.files import read_object, write_json
from fedmerit_deploy import session
from fedmerit_deploy.facts import VERSIONS, clear_facts

SOON = timedelta(days=30)  # before a certificate ends
SILENCE = session.FRESH  # seconds without a word of a connected site; NVFlare calls it connected for ten minutes
SKEW = 30.0  # seconds between a site's clock and the admin's
LONGEST = 10_000  # characters of a site's report
LEAST = {"disk": 1.0, "memory": 0.5}  # GiB, below which a site's rounds fail soon
HEARD = "last_heard.json"  # in the admin's kit: by site, seconds since 1970
FORGOTTEN = 30 * 86400.0  # seconds after which a site that is not heard of is no more listed


@dataclass(frozen=True)
class SiteState:
    """A state of one site."""

    silent: float | None  # seconds since its last word; None: it is not connected
    facts: Mapping[str, Any] = field(default_factory=dict)  # by the list of `fedmerit_deploy.facts`
    clock_offset: float | None = None  # seconds, its clock minus the admin's; as exact as the question was fast
    flags: Sequence[str] = ()  # what needs a look
    work: str = ""  # its place in the round at hand
    heard: float | None = None  # seconds since 1970, when it was last connected, if that is known

    @property
    def is_connected(self) -> bool:
        """Whether the site is connected and not silent."""
        return self.silent is not None and self.silent < SILENCE

    @property
    def connection(self) -> str:
        """Whether the site is connected, in words."""
        if self.silent is None:
            return f"not connected since {in_words(self.heard)}" if self.heard else "not connected"
        return "connected" if self.is_connected else f"silent for {self.silent:.0f} s"


@dataclass(frozen=True)
class FederationState:
    """A state of a federation at one time."""

    when: float  # seconds since 1970
    sites: Mapping[str, SiteState]
    jobs: Sequence[Mapping[str, Any]]  # NVFlare's descriptions, each with a "name"
    progress: Mapping[str, Mapping[str, Any]]  # of jobs at work, by id

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        sites = {site: {"connection": state.connection, **vars(state)} for site, state in self.sites.items()}
        return {"when": self.when, "sites": sites, "jobs": list(self.jobs), "progress": dict(self.progress)}


def read_federation(kit: Path, job: str | None = None) -> FederationState:
    """Return what the admin of a ``kit`` learns of the federation, and of one ``job`` or all.

    Raises:
        BadInput: the kit is no admin's, or the server does not answer or know the job.
        RunFailed: NVFlare failed at a command.
    """
    with session.session(kit) as opened:
        silent, facts = ask_sites(opened, now := time.time())
        listed = [session.describe(opened, job)] if job else session.jobs(opened)
        jobs = [{"name": str(one.get("job_name", "")), **one} for one in listed]
        running = [str(one["job_id"]) for one in jobs if one["status"] == "RUNNING"]
        progress = {name: state for name in running if (state := session.progress(opened, name))}
    heard = _remember(kit, silent, now)
    absent = {site: why for state in progress.values() for site, why in state["absent"].items()}
    work = {site: text for state in progress.values() for site, text in places_in_round(state).items()}
    return FederationState(now, judge_sites(heard, silent, facts, absent, now, work), jobs, progress)


def ask_sites(opened: Session, now: float) -> tuple[dict[str, float], dict[str, Mapping[str, Any]]]:
    """Return, by connected site, the seconds from its last word to ``now``, and its facts."""
    clients = opened.get_system_info().client_info
    silent = {str(one.name): max(0.0, now - float(one.last_connect_time or now)) for one in clients}
    reports: dict[str, object] = {}
    for site in sorted(site for site, seconds in silent.items() if seconds < session.FRESH):
        with suppress(
            NoConnection, InternalError, *session.PASSING
        ):  # one that is silent would hide all, asked at once
            reports |= opened.report_resources("client", [site])
    return silent, {site: parse_facts(text) for site, text in reports.items()}


def parse_facts(text: object) -> Mapping[str, Any]:
    """Return the facts that NVFlare prints in its table; none if it prints something else, as any site may."""
    if len(printed := str(text)) > LONGEST:
        return {}
    try:
        facts = ast.literal_eval(printed)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return {}
    return clear_facts(facts) if isinstance(facts, dict) else {}


def places_in_round(progress: Mapping[str, Any]) -> dict[str, str]:
    """Return, by site, its place in the round of a job at work, by the ``progress`` that the job reports."""
    record = progress["record"]
    if not record:
        return {}
    number = min(record["round"] + 2, progress["rounds"])
    head = f"round {number} of {progress['rounds']}"
    places = dict.fromkeys((*record["participants"], *record["rejected"]), "answered")
    places |= dict.fromkeys(progress["silent"], "no answer yet") | dict.fromkeys(progress["at_work"], "at work")
    return {site: f"{head}: {text}" for site, text in sorted(places.items())}


def judge_sites(
    heard: Mapping[str, float],
    silent: Mapping[str, float],
    facts: Mapping[str, Mapping[str, Any]],
    absent: Mapping[str, str],
    now: float,
    work: Mapping[str, str] | None = None,
) -> dict[str, SiteState]:
    """Return the state, by name, of connected sites, those at work, and those that were heard of before.

    Args:
        heard: by site, when it was last connected, in seconds since 1970.
        silent: by connected site, the seconds since its last word.
        facts: by site, what it tells of its machine.
        absent: by site that lacks in rounds, the reason.
        now: the time, in seconds since 1970.
        work: by site, its place in the round at hand.
    """
    compared = (*VERSIONS, "task")
    usual = {name: _most_common([one[name] for one in facts.values() if name in one]) for name in compared}
    work, states = work or {}, {}
    for site in sorted({*heard, *silent, *work}):
        reported = facts.get(site, {})
        offset = reported["clock"] - now if "clock" in reported else None
        state = SiteState(silent.get(site), reported, offset, (), work.get(site, ""), heard.get(site))
        flags = [] if state.is_connected else [state.connection]
        flags += [
            f"{name} {reported[name]}, others have {usual[name]}"
            for name in compared
            if name in reported and reported[name] != usual[name]
        ]
        if offset is not None and abs(offset) > SKEW:
            flags.append(f"its clock is {offset:+z.0f} s from this one")
        flags += [
            f"{reported[name]:.1f} GiB of {name} free"
            for name, least in LEAST.items()
            if reported.get(name, least) < least
        ]
        if "certificate" in reported and reported["certificate"] < str(datetime.fromtimestamp(now, UTC).date() + SOON):
            flags.append(f"its certificate ends on {reported['certificate']}: `fedmerit deploy renew`")
        flags += [absent[site]] if site in absent else []
        states[site] = replace(state, flags=flags)
    return states


def list_changes(before: FederationState, after: FederationState) -> Iterator[str]:
    """Yield a line for each site that fell silent or is back, and for each job that ended, between two looks."""
    for name, site in after.sites.items():
        was_silent = name in before.sites and not before.sites[name].is_connected
        if site.is_connected and was_silent:
            yield f"{name}: connected again"
        elif not site.is_connected and not was_silent:
            yield f"{name}: {site.connection}"
    ended = {job["job_id"]: job["status"] for job in after.jobs if session.has_job_ended(job)}
    for job in before.jobs:
        if job["job_id"] in ended and not session.has_job_ended(job):
            yield f"job {job['name'] or job['job_id']} ({job['job_id']}) ended: {ended[job['job_id']]}"


def in_words(when: float) -> str:
    """Return seconds since 1970 as a date and time, such as ``2027-01-15 08:00 UTC``."""
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _remember(kit: Path, silent: Mapping[str, float], now: float) -> dict[str, float]:
    """Return when each site was last connected, as this admin saw it; keep it in the ``kit`` if that can be written."""
    before: dict[str, float] = {}
    with suppress(BadInput, AttributeError, TypeError, ValueError):
        before = {str(site): float(when) for site, when in read_object(kit / HEARD).items()}
    heard = before | {site: now - seconds for site, seconds in silent.items()}
    heard = {site: when for site, when in heard.items() if now - when < FORGOTTEN}
    with suppress(OSError):
        write_json(kit / HEARD, heard)
    return heard


def _most_common(values: Sequence[Any]) -> Any:
    """Return the most frequent value, of equally frequent ones the largest; None without values."""
    counts = Counter(map(str, values))
    return max(counts, key=lambda value: (counts[value], value)) if counts else None
