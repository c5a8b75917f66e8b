"""The end of a job: its process at the server writes why it ended, and NVFlare's description of the job shows it.

NVFlare's own status names no site and no reason, and after a restart of the server it calls jobs running that are not.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, SystemComponents
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey, RunStatus
from pydantic import TypeAdapter, ValidationError

from fedmerit.engines.nvflare.operations import absences
from fedmerit.errors import BadInput
from fedmerit.files import read_object, write_json
from fedmerit.reasons import Remedy, is_full, remedy
from fedmerit_deploy.revocation import Revocations

FOLDER = "ended"  # in the server's kit, a file of each job whose end is not in NVFlare's description yet
LATER = "fedmerit_later"  # in `session.describe`: which job continues the run of a job that ended early
META = "fedmerit_end"  # in NVFlare's description of a job
OUTCOME_SECONDS = 60.0  # for the sites' reports on a job that is over at the server
ROOM_SECONDS, ROOM_PAUSE = 86_400.0, 5.0  # to wait for room on the server's disk; between tries
LONGEST = 600  # characters of a reason
LOGS = "log.txt in the kits of the server and of the sites says what happened"


class Cause(StrEnum):
    """A kind of cause that ended a job: what a new try is good for."""

    nothing = ""  # it came to its end, or was stopped
    passing = "passing"  # sites, or room on a disk or in memory, lack: it will work when they are back
    hospital = "hospital"  # sites refuse it, or have to mend something
    failure = "failure"  # once more may help
    input = "input"  # it would end in the same way


@dataclass(frozen=True)
class JobEnd:
    """A record of how a job ended."""

    round: int = 0  # complete rounds of the run
    finished: bool = False  # whether the run has come to its end, whatever NVFlare calls that
    error: str = ""  # what ended it, if anything did
    cause: Cause = Cause.nothing
    absent: Mapping[str, str] = field(default_factory=dict)  # by site, in how many rounds and why

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> "JobEnd":
        """Read the end from NVFlare's ``description`` of a job; return an empty one if it says nothing."""
        try:
            return TypeAdapter(cls).validate_python(description.get(META))
        except ValidationError:
            return cls()

    @classmethod
    def after(
        cls, records: Sequence[Mapping[str, Any]], error: BaseException | str = "", finished: bool = False
    ) -> "JobEnd":
        """Return the end of a run.

        Args:
            records: of the run's ledger.
            error: the error, or the lack of sites, that ended it; "": nothing did.
            finished: whether the run is complete.
        """
        text, what = " ".join(str(error).split()), remedy(str(error))
        if isinstance(error, BadInput):
            cause = Cause.input
        elif what is Remedy.hospital:
            cause = Cause.hospital
        elif isinstance(error, BaseException) and not is_full(error) and what is not Remedy.room:
            cause = Cause.failure
        else:
            cause = Cause.passing if text else Cause.nothing
        return cls(len(records), finished, text[:LONGEST], cause, absences(records))

    def write(self, kit: Path, job_id: str) -> None:
        """Leave it in the server's kit for `JobEnds`."""
        (kit / FOLDER).mkdir(exist_ok=True)
        write_json(kit / FOLDER / f"{job_id}.json", asdict(self))


def explain_end(description: Mapping[str, Any], advise: bool = True) -> list[str]:
    """Return in lines how a job ended, by NVFlare's description of it, and what to type; none if it is not over."""
    job, status, end = description["job_id"], description["status"], JobEnd.of(description)
    later = description.get(LATER)
    advise = advise and not later
    resume = f"; `fedmerit job resume {job}` continues" if advise else ""
    because = {
        RunStatus.FINISHED_COMPLETED: "",
        RunStatus.FINISHED_ABORTED: f"it was stopped on purpose{resume}",
        RunStatus.ABANDONED: f"the server was started again while it ran{resume}",
        RunStatus.FAILED_TO_RUN: "too few sites took it",
        RunStatus.FINISHED_CANT_SCHEDULE: "too few sites were connected for too long; start them, then submit it again",
        RunStatus.FINISHED_ABNORMAL: f"its process at the server was killed, as if out of memory; {LOGS}{resume}",
        RunStatus.FINISHED_EXECUTION_EXCEPTION: f"its process at the server was ended; {LOGS}{resume}",
    }.get(status)
    if because is None:
        return []
    if end.finished:  # NVFlare calls it abnormal if a site, lost before, did not report its own end
        because = "" if status == RunStatus.FINISHED_COMPLETED else f"the run is complete: `fedmerit job fetch {job}`"
    elif end.error and status != RunStatus.FINISHED_ABORTED:
        advice = {
            Cause.input: "; mend that, then submit a job again",
            Cause.hospital: f"; have those sites mend it{resume.replace('; `', ', then `')}",
        }.get(end.cause, resume)
        advice = "" if later else advice
        because = f"after {end.round} complete rounds: {end.error}{advice}"
    lines = [f"{job}: ended, {because}"] if because else []
    lines += [f"{job}: {later}"] if later else []
    return lines + [f"{job}: {site} was {why}" for site, why in end.absent.items()]


class JobEvents:
    """A hook of the engine at the server: whose certificate is revoked, and how jobs end."""

    def __init__(self, kit: Path):
        self.kit, self._revocations = kit, Revocations(kit)

    def shut_out(self, site: str) -> str:
        """Return why a site may take no part any more; "" if it may."""
        return self._revocations.explain(site)

    def ended(self, job: str, records: Sequence[Mapping[str, Any]], error: BaseException | str, finished: bool) -> None:
        """Keep how a job ended, for `JobEnds`; wait for room on a full disk, so that the cause is known afterwards."""
        end, deadline = JobEnd.after(records, error, finished), time.monotonic() + ROOM_SECONDS
        while True:
            try:
                return end.write(self.kit, job)
            except OSError as failure:
                if not is_full(failure) or time.monotonic() > deadline:
                    raise
            time.sleep(ROOM_PAUSE)


class JobEnds(FLComponent):
    """A part of the server's main process that keeps with every job how it ended."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """End, before the first job, those that an earlier process left as running; after a job, note its end."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            # NVFlare waits 15 minutes for the last word of a site that was revoked, or whose machine is off
            fl_ctx.get_engine().job_runner.client_outcome_wait_timeout = OUTCOME_SECONDS
            fl_ctx.get_engine().job_runner.update_unfinished_jobs(fl_ctx)  # of NVFlare, which nothing else calls
        elif event_type == EventType.JOB_COMPLETED:
            self._keep(str(fl_ctx.get_prop(FLContextKey.EVENT_DATA)[JobMetaKey.JOB_ID.value]), fl_ctx)

    def _keep(self, job_id: str, fl_ctx: FLContext) -> None:
        engine = fl_ctx.get_engine()
        file = Path(engine.get_workspace().get_root_dir()) / FOLDER / f"{job_id}.json"
        try:
            content = read_object(file)
        except BadInput:
            return  # its process was killed, or never began: NVFlare's status is all there is
        engine.get_component(SystemComponents.JOB_MANAGER).update_meta(job_id, {META: content}, fl_ctx)
        file.unlink()
