"""The page of ``fedmerit job status --html``: the run, what needs a look, sites with their course, errors, jobs."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmerit.schema.score_name import with_score_name
from fedmerit_cli.terminal import last_round
from fedmerit_deploy.commands.status_output import JOB_COLUMNS, SHOWN_VERSIONS, describe_work, job_cells

if TYPE_CHECKING:
    from fedmerit_deploy.status import FederationState, SiteState

SHOWN_ENDS = 5  # jobs, the last submitted, whose ends are explained
STATES = {  # by state: the kind of its badge, and what it means
    "answered": ("yes", "its update of this round is here"),
    "at work": ("on", "trains or evaluates"),
    "waiting": ("open", "connected, has not answered yet"),
    "connected": ("yes", "connected; no job is at work"),
    "silent": ("warn", "connected, without a word for a minute or more"),
    "not connected": ("no", "the server has no connection to it"),
    "unknown": ("off", "this page is out of date"),
}
JOB_KINDS = {
    "RUNNING": "on",
    "FINISHED:COMPLETED": "yes",
    "SUBMITTED": "open",
    "APPROVED": "open",
    "DISPATCHED": "open",
}


@dataclass(frozen=True)
class Course:
    """A line of numbers over rounds, with gaps where a site was absent."""

    lines: Sequence[str]  # points of polylines, from 0 to 100 each way
    gaps: Sequence[tuple[float, float]]  # begin and width, in percent of the line
    last: str  # number, in words; "" if there is none
    seen: str  # alternative text


def write_status_page(out: Path, state: "FederationState", every: int, problem: str = "") -> None:
    """Write a page that loads itself again every so many seconds.

    Args:
        out: the page.
        state: what the server last said.
        every: seconds between two looks; 0: the page does not load itself again.
        problem: why the server does not answer, so the state is an old one; "": it does.
    """
    from fedmerit_data.pages import write_page
    from fedmerit_deploy.job_ends import explain_end
    from fedmerit_deploy.status import in_words

    sites = [_site_row(name, site, state, is_old=bool(problem)) for name, site in state.sites.items()]
    write_page(
        out,
        "fedmerit_deploy",
        "status.html.j2",
        every=every,
        when=in_words(state.when),
        problem=problem,
        heading=_heading(state, problem),
        runs=list(_runs(state)),
        counts=Counter(site["state"] for site in sites),
        flags={name: site.flags for name, site in state.sites.items() if site.flags},
        sites=sites,
        common=_common_facts([site.facts for site in state.sites.values()]),
        jobs=[_job_row(job) for job in state.jobs],
        ends=[text for job in state.jobs[:SHOWN_ENDS] for text in explain_end(job)],
        states=STATES,
    )


def _heading(state: "FederationState", problem: str) -> str:
    if problem:
        return "The server does not answer"
    is_active = any(JOB_KINDS.get(job["status"]) == "on" for job in state.jobs)  # without a round, it begins or ends
    run = "A run is at work" if state.progress else "A job begins or ends" if is_active else "No run is at work"
    lacking = [name for name, site in state.sites.items() if not site.is_connected]
    if not lacking:
        return f"{run}; all sites are connected" if state.sites else f"{run}; no site is connected"
    return f"{run}; {lacking[0]} is away" if len(lacking) == 1 else f"{run}; {len(lacking)} sites are away"


def _runs(state: "FederationState") -> Iterator[dict[str, Any]]:
    """Yield a card for each job at work."""
    names = {job["job_id"]: job["name"] for job in state.jobs}
    for identifier, progress in state.progress.items():
        record, words = progress["record"], "no round is complete yet"
        if record:
            words = last_round(record, "weight" not in progress["undefined"])
        yield {
            "name": " · ".join(filter(None, (names.get(identifier, ""), identifier[:8]))),
            "method": progress["method"],
            "rounds": progress["rounds"],
            "done": record["round"] + 1 if record else 0,
            "words": words,
        }


def _site_row(name: str, site: "SiteState", state: "FederationState", *, is_old: bool) -> dict[str, Any]:
    """Return a row of the table of sites; its ``state`` is a key of `STATES`."""
    from fedmerit_deploy.status import SILENCE, in_words

    if is_old:
        status = "unknown"
    elif site.silent is None:
        status = "not connected"
    elif not site.is_connected:
        status = "silent"
    else:
        ends = {"answered": "answered", "at work": "at work", "no answer yet": "waiting"}
        status = next((text for end, text in ends.items() if site.work.endswith(end)), "connected")
    heard = "never" if site.heard is None else in_words(site.heard)
    if site.silent is not None and not is_old:
        heard = f"{site.silent:.0f} s ago" if site.silent < 2 * SILENCE else f"{site.silent / 60:.0f} min ago"
    return {
        "name": name,
        "state": status,
        "heard": heard,
        "work": describe_work(site),
        "room": ", ".join(f"{site.facts[key]:.1f} GiB {key}" for key in ("disk", "memory") if key in site.facts),
        "error": site.facts.get("last_error", ""),
        "dice": None,
        "seconds": None,
        **dict(_courses(name, state)),
    }


def _courses(site: str, state: "FederationState") -> Iterator[tuple[str, Course | None]]:
    """Yield the course of a site in the job at work: Dice in percent, and seconds of a round."""
    for progress in state.progress.values():
        recent = progress.get("recent") or {}
        for name, factor, unit in (("dice", 100.0, " %"), ("seconds", 1.0, " s")):
            values = recent.get(name, {}).get(site)
            if values:
                numbers = [None if value is None else factor * value for value in values]
                slowest = max((value or 0.0 for row in recent[name].values() for value in row), default=0.0)
                yield name, _course(site, numbers, int(recent["first"]), 100.0 if name == "dice" else slowest, unit)


def _course(site: str, values: Sequence[float | None], first: int, top: float, unit: str) -> Course | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    step, lines, gaps = 100 / max(len(values) - 1, 1), [], []
    for is_known, part in groupby(enumerate(values), key=lambda pair: pair[1] is not None):
        places = list(part)
        if is_known:
            lines.append(" ".join(f"{step * x:.1f},{100 - 100 * (y or 0) / (top or 1):.1f}" for x, y in places))
        else:
            begin, end = places[0][0] - 0.5, places[-1][0] + 0.5
            gaps.append((max(0.0, step * begin), min(100.0, step * end) - max(0.0, step * begin)))
    last = f"{known[-1]:.1f}{unit}"
    kind = "Validation Dice" if unit == " %" else "Seconds"
    absent = f", absent in {len(values) - len(known)}" if len(known) < len(values) else ""
    seen = f"{kind} of {site} in rounds {first} to {first + len(values) - 1}: last {last}{absent}"
    return Course(lines, gaps, last, with_score_name(seen))


def _common_facts(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what all sites that answered have in common; what differs is among the things to look at."""
    words = []
    for name in (*SHOWN_VERSIONS, "task"):
        values = Counter(str(one[name]) for one in facts if name in one)
        if values:
            usual, count = values.most_common(1)[0]
            rest = "" if count == values.total() else f" ({count} of {values.total()} sites)"
            words.append((f"task {usual}" if name == "task" else f"{name} {usual}") + rest)
    if offsets := [one["certificate"] for one in facts if "certificate" in one]:
        words.append(f"certificates until {min(offsets)} or later")
    return words


def _job_row(job: Mapping[str, Any]) -> dict[str, str]:
    """Return a row of the table of jobs, in UTC, with the kind of its badge."""
    row = dict(zip(JOB_COLUMNS, job_cells(job, UTC), strict=True))
    status = row["status"].partition(":")[2].lower().replace("_", " ") or row["status"].lower()
    return row | {"status": status, "kind": JOB_KINDS.get(row["status"], "no")}
