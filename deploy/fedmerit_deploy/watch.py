"""The supervisor of a run: it resumes its job when this ended early, and gives a reason for each decision.

It decides by what the server says at each look, and can itself be stopped and started at any time.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from nvflare.apis.job_def import RunStatus
from nvflare.fuel.flare_api.flare_api import Session

from fedmerit.errors import RunFailed
from fedmerit_deploy import session
from fedmerit_deploy.job_ends import META, Cause, JobEnd, explain_end

PAUSES = (0.0, 60.0, 300.0, 900.0, 3600.0)  # seconds from a job's end to resumption, by how many were in vain
LOOK = 30.0  # seconds between looks
SOON = 2.0  # seconds to the next look while a note waits for its job
SETTLING = 3.0  # seconds after which the server has noted how a job ended
REJOINS = 3  # resumptions for a site that then took part in no round
REMINDER = 240.0  # seconds after which an outage is reported again
LONGEST_PAUSE = 300.0  # seconds between looks at a server that cannot be reached


class Action(StrEnum):
    """An action of the supervisor after a look."""

    wait = "wait"
    resume = "resume"
    finish = "finish"  # the job came to its end
    give_up = "give up"


@dataclass(frozen=True)
class Decision:
    """A decision: what to do, and why."""

    action: Action
    reason: str


@dataclass(frozen=True)
class Look:
    """A look at a job: what the server says of it."""

    description: Mapping[str, Any]  # NVFlare's
    sites: Collection[str]  # that began it
    connected: Collection[str]  # all connected sites of the federation
    apart: Collection[str] = ()  # connected sites without a process of the job at work, newly provisioned ones included
    round: int = 0  # complete rounds
    present: Collection[str] = ()  # sites that took part in the last of them


@dataclass
class Supervisor:
    """A supervisor that decides on one run, look by look."""

    limit: int = 10  # resumptions in a row without a complete round between; then it gives up
    site_timeout: float = 600.0  # seconds to wait for the last round's sites; then as many as the job needs are enough
    fruitless: int = field(default=0, init=False)  # resumptions since the last new round
    round: int = field(default=0, init=False)  # complete rounds, as far as they are known
    rejoined: Counter[str] = field(default_factory=Counter, init=False)  # by site, resumptions since its last round
    failed: str = field(default="", init=False)  # what ended the job before the last resumption, if it was a failure
    stopping: str = field(default="", init=False)  # the job that it stops itself, to resume it
    since: float | None = field(default=None, init=False)  # when the need to resume was first seen

    def decide(self, look: Look, now: float) -> Decision:
        """Return what to do after ``look``, at ``now`` [s] of any clock that never goes back."""
        end = JobEnd.of(look.description)
        if (done := max(look.round, end.round)) > self.round:
            self.round, self.fruitless, self.failed = done, 0, ""
        self.rejoined = Counter({site: tries for site, tries in self.rejoined.items() if site not in look.present})
        if not session.has_job_ended(look.description):
            return self._rejoin(look, now)
        if (final := self._final(look.description, end)) is not None:
            return final
        why = "; ".join(explain_end(look.description, advise=False)) or str(look.description["status"])
        if end.cause is Cause.hospital:  # it is tried now and then, without an end
            return self._resume(look, now, why, len(PAUSES), is_limited=False)
        return self._resume(look, now, why, self.fruitless)

    def _rejoin(self, look: Look, now: float) -> Decision:
        """Decide on a job at work: NVFlare gives it to no site that starts again, so it has to begin again for one."""
        back = [site for site in look.apart if self.rejoined[site] < REJOINS]
        if not back:
            self.since = None
            lack = f", without {_names(look.apart)}, which leaves it each time" if look.apart else ""
            return Decision(Action.wait, f"at work, {self.round} rounds complete{lack}")
        tries = 1 + min(self.rejoined[site] for site in back)
        decision = self._resume(look, now, f"{_names(back)}: connected, without a part in the job at work", tries)
        if decision.action is Action.resume:
            self.rejoined.update(back)
        return decision

    def _final(self, description: Mapping[str, Any], end: JobEnd) -> Decision | None:
        """Return the decision on a job that is not to be resumed; None for others."""
        status = description["status"]
        if status == session.COMPLETED or end.finished:
            return Decision(Action.finish, "came to its end")
        if status == RunStatus.FINISHED_ABORTED and description["job_id"] != self.stopping:
            return Decision(Action.give_up, "it was stopped on purpose; it is not resumed against that")
        refused = [text for text in session.explain_refusal(description) if "timeout" not in text]
        if status == RunStatus.FAILED_TO_RUN and refused:
            return Decision(Action.give_up, f"would be refused again: {'; '.join(refused)}")
        if end.cause is Cause.input:
            return Decision(Action.give_up, f"would end in the same way: {end.error}")
        if end.cause is Cause.failure and end.error == self.failed:
            return Decision(Action.give_up, f"ended twice in the same way after {self.round} rounds: {end.error}")
        return None

    def _resume(self, look: Look, now: float, why: str, tries: int, is_limited: bool = True) -> Decision:
        """Resume, or wait until the pause is over and the needed sites are there."""
        if is_limited and self.fruitless >= self.limit:
            return Decision(Action.give_up, f"resumed {self.fruitless} times without a complete round; {why}")
        if self.since is None:
            self.since = now
        waited, pause = now - self.since, PAUSES[min(tries, len(PAUSES) - 1)]
        end, away = JobEnd.of(look.description), set(look.sites) - set(look.connected)
        away, least = away - _absent(look, end), int(look.description.get("min_clients") or 1)
        there = len(set(look.sites) & set(look.connected)) if look.sites else len(look.connected)
        if there < least or (away and waited < self.site_timeout):
            needed = _names(away) if away else f"{least} sites, {there} are there"
            return Decision(Action.wait, f"waits for {needed}; {why}")
        if waited < pause:
            return Decision(Action.wait, f"pauses for {pause:g} seconds; {why}")
        self.failed = end.error if end.cause is Cause.failure else ""
        self.fruitless, self.since, self.stopping = self.fruitless + 1, None, str(look.description["job_id"])
        return Decision(Action.resume, why)


def _absent(look: Look, end: JobEnd) -> set[str]:
    """Return the sites without a part in the last complete round, for which nobody waits."""
    return set(look.sites) - set(look.present) if look.present else set(end.absent)


def _names(sites: Collection[str]) -> str:
    return ", ".join(sorted(sites))


def look_at(opened: Session, job_id: str) -> tuple[str, Look]:
    """Return the id of the job that continues the run of ``job_id``, itself or a later one, and a look at it."""
    description = session.latest(opened, job_id)
    first = description.get("cloned_from") or job_id
    job_id, connected = str(description["job_id"]), session.connected(opened)
    if session.has_job_ended(description) and META not in description:
        time.sleep(SETTLING)
        description = session.job(opened, job_id)
    sites = session.job_sites(description) or session.job_sites(session.job(opened, first))
    state = session.progress(opened, job_id) if description["status"] == RunStatus.RUNNING else None
    lacking = (set(state["silent"]) & set(connected)) | session.newcomers(description, connected) if state else set()
    apart = session.sites_without(opened, job_id, lacking) if lacking else lacking
    record = state["record"] if state else None
    done, present = (record["round"] + 1, record["participants"]) if record else (0, ())
    return job_id, Look(description, sites, connected, apart, done, present)


def watch(
    kit: Path,
    job_id: str,
    supervisor: Supervisor,
    on_decision: Callable[[str, Decision], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Keep a run at work until it has come to its end.

    Args:
        kit: the admin's startup kit.
        job_id: of any job of the run.
        supervisor: decides.
        on_decision: called with a job's id and the decision on it, whenever that is another than before.
        sleep: waits so many seconds.

    Raises:
        BadInput: the kit is no admin's, or the server does not know it or the job.
        RunFailed: the run is given up; the message says why.
    """
    last, pause, quiet = None, LOOK, 0.0  # seconds to the next look, and since the last line
    notes: list[str] = []  # that no complete round's record has yet
    sent: int | None = None  # complete rounds as the job at hand got them; None: it has not
    while True:
        is_outage = False
        try:
            with session.session(kit) as opened:
                job_id, look = look_at(opened, job_id)
                decision = supervisor.decide(look, time.monotonic())
                if decision.action is Action.resume:
                    job_id = session.resume(opened, job_id)
                    notes.append(f"resumed after {supervisor.round} rounds: {decision.reason}")
                    sent = None
                elif sent is not None and supervisor.round > sent:
                    notes.clear()
                elif notes and sent is None and all(session.note(opened, job_id, text) for text in notes):
                    sent = supervisor.round
                pause = SOON if notes and sent is None else LOOK  # before the next record
        except (session.Unreachable, RunFailed) as error:  # the server's machine may be starting again
            decision, is_outage = Decision(Action.wait, str(error)), True
            pause = min(2 * pause, LONGEST_PAUSE)
        if (job_id, decision) != last or (is_outage and quiet >= REMINDER):
            last, quiet = (job_id, decision), 0.0
            on_decision(job_id, decision)
        if decision.action is Action.finish:
            return
        if decision.action is Action.give_up:
            raise RunFailed(f"job {job_id}: given up: {decision.reason}")
        sleep(pause)
        quiet += pause
