"""An admin's commands to the server, over NVFlare's session API: submit, look, fetch, abort, resume, remove a site."""

import logging
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.apis.job_def import RunStatus
from nvflare.fuel.flare_api.api_spec import (
    AuthenticationError,
    AuthorizationError,
    CommandError,
    InternalError,
    InvalidJobDefinition,
    InvalidTarget,
    JobNotDone,
    JobNotFound,
    JobNotRunning,
    NoClientsAvailable,
    NoConnection,
    NoReply,
    SessionClosed,
)
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from nvflare.fuel.hci.proto import MetaStatusValue

from fedmerit.engines.nvflare.operations import NO_SITE, NOTE, PROGRESS, REPEATS
from fedmerit.errors import BadInput, RunFailed
from fedmerit.evidence.ledger import Ledger
from fedmerit.files import RUN_NAME, read_object, write_json
from fedmerit_deploy.job_ends import LATER, JobEnd, explain_end
from fedmerit_deploy.kit_files import read_name, require_kind, server_address
from fedmerit_deploy.processes import proxy_advice

LOGIN = 10.0  # seconds to try to reach the server
POLL = 1.0  # seconds
TRIES = 3
FRESH = 45.0  # seconds since a site's last word, compared with the last of any: one says a word every ten
STOPPING = 120.0  # seconds for an aborted job to end
STORING = 30.0  # seconds for the server to store what a job left, once that is over
COMPLETED = "FINISHED:COMPLETED"
AGREED = ": OK"  # ends what NVFlare says of a site, or the server, that took a job
SERVER = "server"  # NVFlare's word, in a job's deploy_map and for who took it
UNEXPECTED = "runtime error encountered"  # how NVFlare's own begin
NOT_RUNNING = "not running"  # NVFlare's words for a job without a process
PASSING = (NoReply, SessionClosed, CommandError, InvalidTarget, NoClientsAvailable)  # a job, server or site changes now
ENDED = ("FINISHED", "ABORTED", "ABANDONED", "FAILED")  # what the status of a job that is over begins with


class Unreachable(BadInput):
    """An error: the server does not answer; it may be starting."""


@contextmanager
def session(kit: Path, timeout: float = LOGIN) -> Iterator[Session]:
    """Open a session with the server, as the admin of a startup kit; try for ``timeout`` seconds to reach it.

    Raises:
        BadInput: the kit is no admin's, or the server does not answer, know or obey its owner; in the session too,
            if NVFlare refuses a command.
        RunFailed: NVFlare failed at a command.
    """
    require_kind(kit, "admin")
    host, port = server_address(kit)
    opened, quiet = None, logging.NullHandler()
    logging.getLogger().addHandler(quiet)  # without any, what NVFlare's cells log would go to standard error
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):  # tracebacks of logins that are tried again
            opened = new_secure_session(read_name(kit), str(kit.resolve()), timeout=timeout)
        yield opened
    except (NoConnection, FLCommunicationError) as error:  # the second: it is there, and answers too late
        raise Unreachable(
            f"server {host}:{port} cannot be reached as {read_name(kit)}: {error}; is it started, is the port open, "
            f"and is the certificate in the kit of this federation and not expired?{proxy_advice(host)}"
        ) from error
    except AuthenticationError as error:
        raise BadInput(
            f"server {host}:{port} does not accept {read_name(kit)}: {error}; was the kit replaced?"
        ) from error
    except AuthorizationError as error:
        raise BadInput(f"{read_name(kit)} may not do that: {error}; ask an admin with the role for it") from error
    except JobNotFound as error:
        raise BadInput(f"{error}; `fedmerit job status` lists the jobs") from error
    except JobNotRunning as error:
        raise BadInput(f"{error}; it has ended already") from error
    except PASSING as error:
        reason = str(error) or type(error).__name__
        raise RunFailed(f"server {host}:{port}: gave no answer just now ({reason}); try again") from error
    except (InternalError, RuntimeError) as error:
        if not (isinstance(error, InternalError) or str(error).startswith(UNEXPECTED)):
            raise  # not NVFlare's
        raise RunFailed(f"server {host}:{port}: {error}; see log.txt in the server's kit") from error
    finally:
        if opened is not None:
            with redirect_stdout(StringIO()):
                opened._close_ignore_errors()
        logging.getLogger().removeHandler(quiet)


def submit(opened: Session, job: Path) -> str:
    """Submit a job folder and return its id; `BadInput` if the folder holds no job, or the server refuses it."""
    if not (job / "meta.json").is_file():
        raise BadInput(f"{job}: no job folder (no meta.json in it); write one with `fedmerit job export`")
    try:
        return str(opened.submit_job(str(job.resolve())))
    except InvalidJobDefinition as error:
        raise BadInput(f"{job}: the server refuses it: {error}") from error


def resume(opened: Session, job_id: str) -> str:
    """Resume the run of a job that ended early, or that runs without a site that is back; the new job's id.

    A clone of the job starts from the run's last complete round: NVFlare ends a job with the process of any of its
    sites, or with the server's, and gives no running job to a site that starts again.

    Raises:
        BadInput: the job came to its end, so that nothing is left to do.
    """
    description = latest(opened, job_id)
    job_id = str(description["job_id"])
    if description["status"] == COMPLETED or JobEnd.of(description).finished:
        raise BadInput(f"job {job_id}: came to its end; fetch it")
    if not has_job_ended(description):
        stop(opened, job_id)
    return str(opened.clone_job(description.get("cloned_from") or job_id))


def latest(opened: Session, job_id: str) -> dict[str, Any]:
    """Return NVFlare's description of the last job of a run: the given one, or a later one that continues it."""
    description = job(opened, job_id)
    first = description.get("cloned_from") or job_id
    for other in jobs(opened):  # the last submitted first
        if other["job_id"] == description["job_id"]:
            break
        if (later := job(opened, str(other["job_id"]))).get("cloned_from") == first:
            return later
    return description


def describe(opened: Session, job_id: str) -> dict[str, Any]:
    """Return NVFlare's description of a job, with `LATER` if it ended early and another one continues its run."""
    description = job(opened, job_id)
    if not has_job_ended(description) or description["status"] == COMPLETED:
        return description
    later = latest(opened, job_id)
    if later["job_id"] == description["job_id"]:
        return description
    return description | {LATER: f"job {later['job_id']} ({later['status']}) continues its run"}


def stop(opened: Session, job_id: str) -> None:
    """Abort a job and wait for its end; it may have ended with its server, which then still calls it running."""
    deadline = time.monotonic() + STOPPING
    while job(opened, job_id)["status"] == RunStatus.DISPATCHED and time.monotonic() < deadline:
        time.sleep(POLL)  # NVFlare aborts no job that it is just starting
    if _abort(opened, job_id) and not has_job_ended(await_end(opened, job_id, STOPPING)):
        raise RunFailed(f"job {job_id}: was aborted, but did not end within {STOPPING:g} seconds; try again")


def abort(opened: Session, job_id: str) -> None:
    """Abort a job; `BadInput` if it is over already, or not at work yet."""
    if has_job_ended(description := describe(opened, job_id)):
        later = f"; {description[LATER]}" if LATER in description else ""
        raise BadInput(f"job {job_id}: is over already ({description['status']}){later}")
    if not _abort(opened, job_id):
        raise BadInput(f"job {job_id}: nothing of it is at work at the server; it is being started or ended")


def _abort(opened: Session, job_id: str) -> bool:
    """Abort a job; return False if nothing of it is at work at the server."""
    try:
        opened.abort_job(job_id)
    except (JobNotRunning, InternalError) as error:
        if NOT_RUNNING not in str(error):
            raise
        return False
    return True


def await_end(opened: Session, job_id: str, seconds: float) -> dict[str, Any]:
    """Return NVFlare's description of a job when it is over, or after so many seconds.

    NVFlare's own ``wait_for_job`` ends with an error if the server gives no answer just then.
    """
    deadline = time.monotonic() + seconds
    while not has_job_ended(description := job(opened, job_id)) and time.monotonic() < deadline:
        time.sleep(POLL)
    return description


def remove_site(opened: Session, job_id: str, site: str) -> str:
    """Stop a run, if it is at work, and submit a job that repeats it from round 0 without ``site``; return its id.

    It is the leave-one-out run: the same plan and seeds, by all other sites that are connected. The run that the site
    took part in stays, with its ledger. The site's certificate stays valid until it is revoked.

    Raises:
        BadInput: the site has no part in the run, or too few others are connected.
    """
    description = latest(opened, job_id)
    first, job_id = str(description.get("cloned_from") or job_id), str(description["job_id"])
    took = job_sites(description) | job_sites(job(opened, first))
    if site not in took:
        raise BadInput(f"job {job_id}: {site} has no part in it; its sites are {', '.join(sorted(took)) or 'none'}")
    others, least = sorted(set(connected(opened)) - {site}), int(description.get("min_clients") or 1)
    if len(others) < least:
        raise BadInput(
            f"job {job_id}: needs {least} sites without {site}, connected are {', '.join(others) or 'none'}; wait for "
            "others, or submit a job with fewer --min-sites"
        )
    if not has_job_ended(description):
        stop(opened, job_id)
    with tempfile.TemporaryDirectory(prefix="removal-") as folder:
        # beside the job folder lie NVFlare's own meta.json of the job, which has other names, and its workspace
        folders = [path.parents[1] for path in download(opened, first, folder).rglob("app/config")]
        repeated = next((path for path in folders if (path / "meta.json").is_file()), None)
        if repeated is None:
            raise RunFailed(f"job {first}: the server gave no job folder; submit that again, without {site}")
        meta = read_object(repeated / "meta.json")
        meta["deploy_map"] = {app: [SERVER, *others] for app in meta["deploy_map"]}
        meta[REPEATS] = f"repeats the run of job {first} without {site}"
        write_json(repeated / "meta.json", meta)
        return submit(opened, repeated)


def connected(opened: Session) -> list[str]:
    """Return the sorted names of connected sites. NVFlare lists a site for ten minutes after its last word."""
    last = {str(client.name): client.last_connect_time or 0.0 for client in opened.get_system_info().client_info}
    return sorted(name for name, when in last.items() if max(last.values()) - when < FRESH)


def jobs(opened: Session) -> list[dict[str, Any]]:
    """Return NVFlare's description of every job, the last submitted first."""
    return [dict(job) for job in opened.list_jobs(detailed=True, reverse=True)]


def job(opened: Session, job_id: str) -> dict[str, Any]:
    """Return NVFlare's description of a job; ask again if there is no answer just now."""
    for _ in range(TRIES - 1):
        with suppress(*PASSING):
            return dict(opened.get_job_meta(job_id))
        time.sleep(POLL)
    return dict(opened.get_job_meta(job_id))


def progress(opened: Session, job_id: str) -> Mapping[str, Any] | None:
    """Return the progress of a job at work, as its controller reports it; None before and after that."""
    answer = _ask_job(opened, job_id, PROGRESS, {})
    return answer if isinstance(answer, Mapping) else None


def note(opened: Session, job_id: str, text: str) -> bool:
    """Have a line written into the ledger's next record; return whether the job, at work, took it."""
    return bool(_ask_job(opened, job_id, NOTE, {"text": text}))


def _ask_job(opened: Session, job_id: str, topic: str, content: Mapping[str, str]) -> Any:
    """Return the answer of a job at work; None if it is being started or ended, or this admin may not ask."""
    try:
        with redirect_stdout(StringIO()):
            return opened.do_app_command(job_id, topic, content)
    except (JobNotRunning, InternalError, AuthorizationError, RuntimeError, *PASSING):
        return None


def job_sites(description: Mapping[str, Any]) -> set[str]:
    """Return the sites that took a job as it was deployed, by the description of `job`."""
    details = map(str, description.get("job_deploy_detail") or ())
    return {text.removesuffix(AGREED) for text in details if text.endswith(AGREED)} - {SERVER}


def newcomers(description: Mapping[str, Any], connected: Collection[str]) -> set[str]:
    """Return the connected sites to which a job for all sites was not given yet, since they came later."""
    for_all = any("@ALL" in map(str, sites) for sites in (description.get("deploy_map") or {}).values())
    given = {text.partition(": ")[0] for text in map(str, description.get("job_deploy_detail") or ())}
    return set(connected) - given if for_all and given else set()


def sites_without(opened: Session, job_id: str, sites: Collection[str]) -> set[str]:
    """Return those of the connected ``sites`` that say that they have no process of a job."""
    listed = opened.get_client_job_status(sorted(sites)) or []
    rows = [(str(one.get("client_name")), one.get("job_id"), one.get("status")) for one in listed]
    having = {site for site, job, _ in rows if job == job_id}
    return {site for site, job, status in rows if job or status == MetaStatusValue.NO_JOBS} - having


def has_job_ended(description: Mapping[str, Any]) -> bool:
    """Return whether a job, by the description of `job`, is over, completed or not."""
    return str(description["status"]).startswith(ENDED)


def explain_refusal(description: Mapping[str, Any]) -> list[str]:
    """Return what server and sites that refused said when the job was to start there."""
    details = description.get("job_deploy_detail") or []
    return [text.replace("NVFLARE_ERROR: ", "") for text in map(str, details) if not text.endswith(AGREED)]


def fetch(opened: Session, job_id: str, out: Path) -> Path:
    """Download the run folder of a job that is over to ``out``, and return its path.

    Raises:
        BadInput: ``out`` holds something, the job is not over, or it left no run: no site took it, or no round of it
            is complete.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out}: exists already; choose another --out")
    description = describe(opened, job_id)
    if not has_job_ended(description):
        raise BadInput(f"job {job_id}: is {description['status']}; fetch it when it is over, or abort it first")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".fetch-") as folder:
        result = download(opened, job_id, folder)
        runs = [path.parent for path in sorted(result.rglob("run.json")) if path.parent.name == RUN_NAME]
        if not runs or not Ledger(runs[0] / "ledger.jsonl").records:
            raise BadInput(_explain_missing_run(description, has_begun=bool(runs)))
        if out.exists():
            out.rmdir()
        shutil.move(runs[0], out)
    return out


def _explain_missing_run(description: Mapping[str, Any], has_begun: bool) -> str:
    """Return why a job that is over has nothing to fetch, and what to do about it."""
    refused, known = explain_refusal(description), explain_end(description)
    error = JobEnd.of(description).error
    is_abandoned = description["status"] == RunStatus.ABANDONED
    why = (
        "its first round was not complete"
        if has_begun
        else "the server ended before it could store anything"
        if is_abandoned
        else NO_SITE
        if NO_SITE in error or not error
        else "it did not begin"
    )
    advice = ["submit a job that `fedmerit job export` wrote, unchanged, or ask those who refuse to allow it"]
    lines = [f"left no run: {why}", f"its status is {description['status']}", *refused, *known, *advice * bool(refused)]
    return f"job {description['job_id']}: {'; '.join(lines)}"


def download(opened: Session, job_id: str, folder: str) -> Path:
    """Download what the server stored of a job that is over; `BadInput` if it stored nothing in time."""
    deadline = time.monotonic() + STORING
    while True:
        try:
            with redirect_stdout(StringIO()):
                return Path(opened.download_job_result(job_id, folder))
        except JobNotDone as error:
            if time.monotonic() > deadline:
                raise BadInput(f"job {job_id}: {error}; try again in a few seconds") from error
            time.sleep(POLL)
