"""The output of ``fedmerit job status``: tables on the terminal, a page, metrics for Prometheus.

NVFlare's metric publishers count its own events and send them to a StatsD server; how sites are is known only here.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any

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
