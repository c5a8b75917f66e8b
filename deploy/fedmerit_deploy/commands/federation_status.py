"""What ``fedmerit job status`` shows of a federation: tables on the terminal, a page, metrics for Prometheus."""

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmerit.errors import BadInput
from fedmerit_cli.terminal import console, last_round, plain_table, print_line

if TYPE_CHECKING:
    from fedmerit_deploy.status import FederationState, SiteState

PRINTED = ("site", "is", "round", "versions", "GiB disk", "clock", "last error")  # of the columns, on the terminal
JOB_COLUMNS = ("job", "name", "status", "submitted", "by", "took")
SITE_METRICS: Mapping[str, str] = {
    "connected": "1 if the site is connected and not silent",
    "silent_seconds": "seconds since the site's last word",
    "clock_offset_seconds": "the site's clock minus the admin's",
    "disk_gib": "GiB free on the disk of the site's kit",
    "memory_gib": "GiB of memory available at the site",
    "certificate_days": "days until the site's certificate ends",
    "flags": "how many things at the site need a look",
}
JOB_METRICS: Mapping[str, str] = {
    "round": "complete rounds of the run",
    "rounds": "rounds to train",
    "absent": "sites that lack in rounds of the run",
}
DAY = 86400.0  # seconds


def site_cells(site: str, state: "SiteState") -> dict[str, str]:
    """One row of the table of sites, by column."""
    facts = state.facts
    versions = [f"{name} {facts[name]}" for name in ("fedmerit", "nvflare", "torch", "python") if name in facts]
    counts = [f"{facts[name]} {name}" for name in ("patients", "slices") if name in facts]
    return {
        "site": site,
        "is": state.connection,
        "round": f"{state.work}, batch {facts['batch']}" if "batch" in facts else state.work,
        "versions": ", ".join(versions),
        "GPU": facts.get("gpu", ""),
        "GiB disk": str(facts.get("disk", "")),
        "GiB memory": str(facts.get("memory", "")),
        "clock": "" if state.clock_offset is None else f"{state.clock_offset:+.0f} s",
        "certificate until": facts.get("certificate", ""),
        "data": ": ".join(filter(None, [facts.get("task", ""), ", ".join(counts)])),
        "last error": facts.get("last_error", ""),
    }


def job_cells(job: Mapping[str, Any]) -> list[str]:
    """One row of the table of jobs, by `JOB_COLUMNS`."""
    when = datetime.fromisoformat(job["submit_time_iso"]).astimezone().strftime("%Y-%m-%d %H:%M")
    name = job["name"] if "name" in job else job["job_name"]
    took = str(job.get("duration", "")).partition(".")[0]
    return [job["job_id"], name, job["status"], when, job.get("submitter_name", ""), took]


def print_federation(state: "FederationState") -> None:
    """On the terminal: a line for each site, then for each thing that needs a look, then the jobs."""
    connected = ", ".join(site for site, one in state.sites.items() if one.silent is not None)
    console.print(f"connected sites: {connected or 'none'}", soft_wrap=True)
    table = plain_table(*PRINTED)
    for site, one in state.sites.items():
        cells = site_cells(site, one)
        table.add_row(*(cells[column] for column in PRINTED))
    if state.sites:
        console.print(table)
    for text in list_flags(state):
        print_line(f"look at {text}")
    table = plain_table(*JOB_COLUMNS)
    table.columns[0].no_wrap = True
    for job in state.jobs:
        table.add_row(*job_cells(job))
    console.print(table if state.jobs else "no jobs")
    for text in describe_progress(state):
        console.print(text, soft_wrap=True)


def list_flags(state: "FederationState") -> list[str]:
    """What needs a look, each with its site's name."""
    return [f"{site}: {flag}" for site, one in state.sites.items() for flag in one.flags]


def describe_progress(state: "FederationState") -> list[str]:
    """A sentence for each job at work."""
    lines = []
    for name, progress in state.progress.items():
        if record := progress["record"]:
            is_weighted = "weight" not in progress["undefined"]
            done = last_round(record, is_weighted)
            lines.append(f"{name}: round {record['round'] + 1} of {progress['rounds']}, {done}")
    return lines


def write_status_page(out: Path, state: "FederationState", every: int, problem: str = "") -> None:
    """A page that loads itself again every so many seconds; ``problem``: why the state is not that of now."""
    import pandas as pd

    from fedmerit_data.pages import write_page
    from fedmerit_deploy.status import in_words
    from fedmerit_evaluation.figures.tables import Table

    sites = pd.DataFrame([site_cells(site, one) for site, one in state.sites.items()])
    jobs = pd.DataFrame([job_cells(job) for job in state.jobs], columns=[*JOB_COLUMNS], dtype=object)
    tables = [Table("sites", "Sites", sites), Table("jobs", "Jobs", jobs)]
    notes = ([problem] if problem else []) + list_flags(state)
    shown = {"every": every, "when": in_words(state.when), "tables": [one for one in tables if len(one.frame)]}
    write_page(out, "fedmerit_cli", "status.html.j2", notes=notes, progress=describe_progress(state), **shown)


def serve_metrics(port: int) -> Callable[["FederationState"], None]:
    """Serve metrics for Prometheus on a ``port`` of this machine only; what to call with each new state.

    Raises:
        BadInput: the package prometheus-client is not installed, or the port cannot be listened on.
    """
    try:
        from prometheus_client import CollectorRegistry, Gauge, start_http_server
    except ImportError as error:
        raise BadInput("--metrics: needs prometheus-client; pip install 'fedmerit[metrics]'") from error

    registry = CollectorRegistry()
    of_sites = {
        name: Gauge(f"fedmerit_site_{name}", text, ["site"], registry=registry) for name, text in SITE_METRICS.items()
    }
    of_jobs = {
        name: Gauge(f"fedmerit_job_{name}", text, ["job"], registry=registry) for name, text in JOB_METRICS.items()
    }
    looked = Gauge("fedmerit_status_timestamp_seconds", "when the server last answered", registry=registry)

    def show(state: "FederationState") -> None:
        for gauge in (*of_sites.values(), *of_jobs.values()):
            gauge.clear()
        for site, one in state.sites.items():
            for name, value in _measure_site(one, state.when).items():
                of_sites[name].labels(site).set(value)
        for job, progress in state.progress.items():
            done = progress["record"]["round"] + 1 if progress["record"] else 0
            values = {"round": done, "rounds": progress["rounds"], "absent": len(progress["absent"])}
            for name, value in values.items():
                of_jobs[name].labels(job).set(value)
        looked.set(state.when)

    try:
        start_http_server(port, "127.0.0.1", registry)
    except OSError as error:
        raise BadInput(f"--metrics {port}: cannot be listened on ({error.strerror}); choose another port") from error
    return show


def _measure_site(state: "SiteState", now: float) -> dict[str, float]:
    """Numbers of a site, by `SITE_METRICS`; those that are not known are left out."""
    known: dict[str, float | None] = {
        "connected": float(state.connection == "connected"),
        "silent_seconds": state.silent,
        "clock_offset_seconds": state.clock_offset,
        "disk_gib": state.facts.get("disk"),
        "memory_gib": state.facts.get("memory"),
        "flags": float(len(state.flags)),
    }
    if "certificate" in state.facts:
        known["certificate_days"] = (
            datetime.fromisoformat(f"{state.facts['certificate']}T00:00+00:00").timestamp() - now
        ) / DAY
    return {name: value for name, value in known.items() if value is not None}
