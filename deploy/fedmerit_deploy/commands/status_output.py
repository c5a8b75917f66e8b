"""The output of ``fedmerit job status``: tables on the terminal, a page, metrics for Prometheus, and alerts.

NVFlare's metric publishers count its own events and send them to a StatsD server; how sites are is known only here.
"""

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from email.message import EmailMessage
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

from fedmerit.errors import BadInput, printable
from fedmerit.schema.score_name import with_score_name
from fedmerit_cli.terminal import console, last_round, plain_table, print_line

if TYPE_CHECKING:
    from fedmerit_deploy.status import FederationState, SiteState

MOST_WIDTH = 10_000  # columns, to measure a table that nothing narrows
RUNNING = "RUNNING"  # NVFlare's status of a job at work
SITE_COLUMNS = ("site", "is", "round", "versions", "GiB disk", "clock", "last error")  # of the table of sites
SHOWN_VERSIONS = ("fedmerit", "nvflare", "torch", "python")
JOB_COLUMNS = ("job", "name", "status", "submitted", "by", "took")
METRICS: Mapping[str, str] = {  # what each is, by its name
    "fedmerit_site_connected": "1 if the site is connected and not silent",
    "fedmerit_site_silent_seconds": "seconds since the site's last word",
    "fedmerit_site_clock_offset_seconds": "the site's clock minus the admin's",
    "fedmerit_site_disk_gib": "GiB free on the disk of the site's kit",
    "fedmerit_site_memory_gib": "GiB of memory available at the site",
    "fedmerit_site_certificate_days": "days until the site's certificate ends",
    "fedmerit_site_flags": "how many things at the site need a look",
    "fedmerit_job_round": "complete rounds of the run",
    "fedmerit_job_rounds": "rounds to train",
    "fedmerit_job_absent": "sites that lack in rounds of the run",
    "fedmerit_status_timestamp_seconds": "when the server last answered",
}
DAY = 86400.0  # seconds
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
TIMEOUT = 10.0  # seconds that a webhook, or sendmail, may take
SENDMAIL = ("sendmail", "/usr/sbin/sendmail", "/usr/lib/sendmail")
OUT_OF_REACH = 120.0  # seconds without an answer of the server, before an alert says so


def job_cells(job: Mapping[str, Any], zone: tzinfo | None = None) -> list[str]:
    """Return one row of the table of jobs, by `JOB_COLUMNS`, in a time zone; None: the local one."""
    when = datetime.fromisoformat(job["submit_time_iso"]).astimezone(zone).strftime("%Y-%m-%d %H:%M")
    took = str(job.get("duration", "")).partition(".")[0]
    return [job["job_id"], job["name"], job["status"], when, job.get("submitter_name", ""), took]


def describe_work(state: "SiteState") -> str:
    """Return what a site does in the round at hand, with the batch of its training."""
    return f"{state.work}, batch {state.facts['batch']}" if "batch" in state.facts else state.work


def print_federation(state: "FederationState") -> None:
    """Print a line for each site, then for each thing that needs a look, then the jobs."""
    connected = ", ".join(site for site, one in state.sites.items() if one.is_connected)
    console.print(f"connected sites: {connected or 'none'}", soft_wrap=True)
    table = plain_table(*SITE_COLUMNS)
    for site, one in state.sites.items():
        facts, offset = one.facts, one.clock_offset
        versions = ", ".join(f"{name} {facts[name]}" for name in SHOWN_VERSIONS if name in facts)
        clock = "" if offset is None else f"{offset:+z.0f} s"
        room, error = str(facts.get("disk", "")), facts.get("last_error", "")
        table.add_row(site, one.connection, describe_work(one), versions, room, clock, error)
    if state.sites:
        console.print(table)
    for site, one in state.sites.items():
        for flag in one.flags:
            print_line(f"look at {site}: {flag}")
    print_jobs(state.jobs)
    for text in describe_progress(state):
        console.print(text, soft_wrap=True)


def print_jobs(jobs: Sequence[Mapping[str, Any]]) -> None:
    """Print a row for each job; on a narrow terminal two lines, so that no id is broken."""
    table = plain_table(*JOB_COLUMNS)
    for column in table.columns:
        column.no_wrap = True
    for job in jobs:
        table.add_row(*job_cells(job))
    if not jobs:
        console.print("no jobs")
    elif console.measure(table, options=console.options.update(max_width=MOST_WIDTH)).maximum <= console.width:
        console.print(table)
    else:
        for job in jobs:
            name, status, when, by, took = job_cells(job)[1:]
            print_line(f"{job['job_id']} {status}")
            print_line(f"    {name}, submitted {when} by {by}" + f", took {took}" * bool(took))


def describe_progress(state: "FederationState") -> list[str]:
    """Return a sentence for each job at work: how far it is, and for which sites it waits."""
    lines = []
    for name, progress in state.progress.items():
        head, done = f"{name}: no round of {progress['rounds']} is complete", ""
        if record := progress["record"]:
            head = f"{name}: round {record['round'] + 1} of {progress['rounds']}"
            done = last_round(record, is_weighted="weight" not in progress["undefined"])
        at_work, silent = (set(progress.get(part, ())) for part in ("at_work", "silent"))
        waiting = [("at work", at_work), ("no answer yet", silent - at_work)]
        more = [f"{what}: {', '.join(sorted(sites))}" for what, sites in waiting if sites]
        lines.append("; ".join([", ".join(filter(None, [head, done])), *more]))
    for job in state.jobs:
        if job["status"] == RUNNING and job["job_id"] not in state.progress:
            lines.append(f"{job['job_id']}: is being started, or its rounds are over and it waits for its sites to end")
    return lines


def describe_metrics(state: "FederationState") -> str:
    """Return the state in Prometheus's text format, as the node exporter's textfile collector reads it."""
    samples: dict[str, dict[str, float]] = {name: {} for name in METRICS}
    for site, one in state.sites.items():
        for name, value in _measure_site(one, state.when).items():
            samples[f"fedmerit_site_{name}"][f'{{site="{site}"}}'] = value
    for job, progress in state.progress.items():
        done = progress["record"]["round"] + 1 if progress["record"] else 0
        counts = {"round": done, "rounds": progress["rounds"], "absent": len(progress["absent"])}
        for name, value in counts.items():
            samples[f"fedmerit_job_{name}"][f'{{job="{job}"}}'] = value
    samples["fedmerit_status_timestamp_seconds"][""] = state.when
    lines = []
    for name, values in samples.items():
        lines += [f"# HELP {name} {METRICS[name]}", f"# TYPE {name} gauge"]
        lines += [f"{name}{labels} {value}" for labels, value in values.items()]
    return "\n".join(lines) + "\n"


def _measure_site(state: "SiteState", now: float) -> dict[str, float]:
    """Return the numbers of a site that are known, by name."""
    numbers: dict[str, float | None] = {
        "connected": float(state.is_connected),
        "silent_seconds": state.silent,
        "clock_offset_seconds": state.clock_offset,
        "disk_gib": state.facts.get("disk"),
        "memory_gib": state.facts.get("memory"),
        "flags": float(len(state.flags)),
    }
    if "certificate" in state.facts:
        numbers["certificate_days"] = (
            datetime.fromisoformat(f"{state.facts['certificate']}T00:00+00:00").timestamp() - now
        ) / DAY
    return {name: value for name, value in numbers.items() if value is not None}


# The page


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


# Alerts


@dataclass(frozen=True)
class Receivers:
    """A list of who is to be alerted.

    Raises:
        BadInput: a webhook is no http or https address, an address is no mail address, or there is no sendmail here.
    """

    webhook: str = ""  # address to which {"text": ...} is posted, as Slack, Mattermost and Teams take it
    mail: str = ""  # address

    def __post_init__(self) -> None:
        if self.webhook and not self.webhook.startswith(("https://", "http://")):
            raise BadInput(f"--webhook {self.webhook}: expected an address that begins with https:// or http://")
        if self.mail and ("@" not in self.mail or any(letter.isspace() for letter in self.mail)):
            raise BadInput(f"--mail {self.mail}: expected one mail address, such as it@hospital.example")
        if self.mail and _sendmail() is None:
            raise BadInput("--mail: this machine has no sendmail; install one (Debian, Ubuntu: apt install msmtp-mta)")

    def __bool__(self) -> bool:
        return bool(self.webhook or self.mail)

    def send(self, text: str) -> list[str]:
        """Send one line of text to all receivers; return what failed, in words."""
        text, failed = printable(text), []
        if self.webhook:
            try:
                head = {"Content-Type": "application/json"}
                with urlopen(Request(self.webhook, json.dumps({"text": text}).encode(), head), timeout=TIMEOUT):
                    pass
            except (OSError, ValueError) as error:
                failed.append(f"webhook: {type(error).__name__}: no alert was sent")  # the address is a secret
        if self.mail:
            message = EmailMessage()
            message["Subject"], message["To"] = f"FedMerit: {text[:120]}", self.mail
            message.set_content(text + "\n")
            try:
                command = [str(_sendmail()), "-t", "-i"]
                subprocess.run(command, input=message.as_bytes(), check=True, capture_output=True, timeout=TIMEOUT)
            except (OSError, subprocess.SubprocessError) as error:
                failed.append(f"sendmail: {type(error).__name__}: no mail was sent to {self.mail}")
        return failed


def _sendmail() -> str | None:
    return next(filter(None, map(shutil.which, SENDMAIL)), None)
