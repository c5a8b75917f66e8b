"""What the supervisor of a run decides, look by look, and what it does of that."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from fedmerit.errors import BadInput, RunFailed
from fedmerit.reasons import DISK_FULL, REFUSED
from fedmerit_deploy import session, watch
from fedmerit_deploy.job_ends import META, JobEnd
from fedmerit_deploy.watch import REJOINS, Action, Look, Supervisor

EXCEPTION, ABNORMAL = "FINISHED:EXECUTION_EXCEPTION", "FINISHED:ABNORMAL"
ALL = ("A", "B", "C")


def look(status, end=None, connected=ALL, **more):
    """At a job of three sites, two of which are enough."""
    details = more.pop("refused", [])
    reported = {"job_id": "j", "status": status, "min_clients": 2, "job_deploy_detail": details}
    return Look(reported | ({META: vars(end)} if end else {}), ALL, connected, **more)


def error(kind, text="why", round=0):
    return JobEnd.after([{"participants": [], "rejected": {}}] * round, kind(text))


WAIT, RESUME, GIVE_UP = Action.wait, Action.resume, Action.give_up


@pytest.mark.parametrize(
    ("seen", "action", "words"),
    [
        (look("SUBMITTED"), WAIT, "at work, 0 rounds complete"),
        (look("RUNNING", round=3), WAIT, "at work, 3 rounds complete"),
        (look(session.COMPLETED), Action.finish, "end"),
        (look("FINISHED:ABORTED"), GIVE_UP, "it was stopped on purpose"),
        (look("FINISHED:FAILED_TO_RUN", refused=["A: BYOC not permitted"]), GIVE_UP, "refused again: A: BYOC"),
        (look("FINISHED:FAILED_TO_RUN", refused=["A: no reply (deployment timeout)"]), RESUME, "too few sites"),
        (look(EXCEPTION, error(BadInput, "no keys")), GIVE_UP, "would end in the same way: no keys"),
        (look(EXCEPTION, error(RunFailed, "NaN", round=4)), RESUME, "after 4 complete rounds: NaN"),
        (look(EXCEPTION, JobEnd.after([], "fewer than 2 sites were left")), RESUME, "fewer than 2"),
        (look(ABNORMAL, JobEnd(4, True)), Action.finish, "end"),
        (look(ABNORMAL), RESUME, "its process at the server was killed"),
        (look("FINISHED:ABANDONED"), RESUME, "the server was started again"),
        (look(ABNORMAL, connected=("A", "C")), WAIT, "waits for B"),
        (look(ABNORMAL, connected=("A",)), WAIT, "waits for B, C"),
        (look("RUNNING", apart=("C",), round=2), WAIT, "pauses for 60 seconds; C: connected, without a part"),
        (look("RUNNING", apart=("C",), connected=("A", "C"), present=("A", "B")), WAIT, "waits for B"),
        (look("RUNNING", apart=("C",), connected=("A", "C"), present=("A",)), WAIT, "pauses for 60 seconds"),
        (look(ABNORMAL, JobEnd(4, absent={"B": "absent in 2 of 4"}), connected=("A", "C")), RESUME, "killed"),
    ],
)
def test_supervisor_decides_on_first_look(seen, action, words):
    decision = Supervisor().decide(seen, 0.0)
    assert (decision.action, words in decision.reason) == (action, True), decision


def decisions(supervisor, *looks):
    return [supervisor.decide(seen, now).action for seen, now in looks]


def test_supervisor_pauses_longer_until_round_or_limit():
    killed, supervisor = look(ABNORMAL), Supervisor(limit=3)
    assert decisions(supervisor, (killed, 0), (killed, 10), (killed, 69), (killed, 70)) == [RESUME, WAIT, WAIT, RESUME]
    assert decisions(supervisor, (killed, 100), (killed, 399), (killed, 400)) == [WAIT, WAIT, RESUME]
    assert decisions(supervisor, (look("RUNNING", round=1), 500), (killed, 510)) == [WAIT, RESUME]  # a round was done
    for now in (1000, 2000, 3000):
        last = decisions(supervisor, (killed, now), (killed, now + 900))[-1]
    assert last is GIVE_UP


def test_supervisor_gives_up_on_repeated_failure():
    supervisor, failed = Supervisor(), look(EXCEPTION, error(RunFailed, "NaN", round=4))
    assert decisions(supervisor, (failed, 0), (look("RUNNING", round=4), 5), (failed, 100)) == [RESUME, WAIT, GIVE_UP]
    supervisor, later = Supervisor(), look(EXCEPTION, error(RunFailed, "NaN", round=5))
    assert decisions(supervisor, (failed, 0), (later, 100)) == [RESUME, RESUME]


def test_supervisor_resumes_job_it_stopped():
    supervisor, back = Supervisor(), look("RUNNING", apart=("C",))
    assert decisions(supervisor, (back, 0), (back, 60), (look("FINISHED:ABORTED"), 70)) == [WAIT, RESUME, WAIT]
    assert decisions(supervisor, (look("FINISHED:ABORTED"), 130)) == [RESUME]


def test_supervisor_resumes_with_quorum_after_timeout():
    supervisor, two = Supervisor(site_timeout=600), look(ABNORMAL, connected=("A", "B"))
    assert decisions(supervisor, (two, 0), (two, 599), (two, 600)) == [WAIT, WAIT, RESUME]
    supervisor, one = Supervisor(site_timeout=600), look(ABNORMAL, connected=("A",))
    assert decisions(supervisor, (one, 0), (one, 10_000), (look(ABNORMAL), 10_001)) == [WAIT, WAIT, RESUME]


def test_supervisor_stops_waiting_for_leaving_site():
    supervisor, back = Supervisor(), look("RUNNING", apart=("C",), round=2)
    moments = [(back, float(now)) for now in range(0, 40_000, 60)]
    assert decisions(supervisor, *moments).count(RESUME) == REJOINS
    assert "without C" in supervisor.decide(back, 50_000.0).reason
    supervisor.decide(look("RUNNING", round=3, present=("A", "C")), 50_100.0)  # it took part
    assert decisions(supervisor, *moments).count(RESUME) == REJOINS


def test_supervisor_joins_new_site_soon():
    supervisor, back = Supervisor(), look("RUNNING", apart=("C",), round=2)
    assert decisions(supervisor, *((back, float(now)) for now in range(0, 600, 60))).count(RESUME) == 2
    supervisor.decide(look("RUNNING", round=2), 600.0)
    both = look("RUNNING", apart=("C", "D"), round=2)
    assert decisions(supervisor, (both, 610.0), (both, 670.0)) == [WAIT, RESUME]


def test_stop_waits_for_starting_job(monkeypatch):
    """NVFlare would not abort it, and two jobs would be at work in one run folder."""
    states, did = ["DISPATCHED", "DISPATCHED", "RUNNING", "FINISHED:ABORTED"], []
    monkeypatch.setattr(session, "POLL", 0)
    monkeypatch.setattr(session, "job", lambda opened, job_id: {"status": states.pop(0)})
    session.stop(SimpleNamespace(abort_job=lambda job_id: did.append((job_id, len(states)))), "j")
    assert did == [("j", 1)]


class Server:
    """What it says at one look after the other; jobs that it was asked to resume, notes that it took."""

    def __init__(self, *looks):
        self.looks, self.resumed, self.notes = list(looks), [], []

    def look(self, opened, job):
        seen = self.looks.pop(0)
        if isinstance(seen, Exception):
            raise seen
        return job, seen

    def resume(self, opened, job):
        self.resumed.append(job)
        return f"{job}+"

    def note(self, opened, job, text):
        self.notes.append((job, text))
        return True


@pytest.fixture
def watched(monkeypatch):
    """Watches a run at a `Server`; the decisions that were shown."""

    def run(server):
        shown = []
        monkeypatch.setattr(session, "session", lambda kit: nullcontext())
        monkeypatch.setattr(watch, "look_at", server.look)
        for name in ("resume", "note"):
            monkeypatch.setattr(session, name, getattr(server, name))
        watch.watch(None, "j", Supervisor(), lambda job, decision: shown.append((job, *vars(decision).values())), id)
        return shown

    return run


def test_watch_shows_each_decision_once(watched):
    away, running = session.Unreachable("server cannot be reached"), look("RUNNING", round=2)
    server = Server(running, running, away, away, look("FINISHED:ABANDONED"), running, running, look(session.COMPLETED))
    shown = watched(server)
    assert [(job, action) for job, action, _ in shown] == [
        ("j", WAIT),
        ("j", WAIT),
        ("j+", RESUME),
        ("j+", WAIT),
        ("j+", Action.finish),
    ]
    assert server.resumed == ["j"]
    ((job, note),) = server.notes
    assert (job, note.startswith("resumed after 2 rounds: j: ended, the server was started again")) == ("j+", True)


def test_watch_repeats_an_outage_every_few_minutes(watched):
    away = session.Unreachable("server cannot be reached")  # looks after 60, 120, 240, 300 and 300 seconds
    shown = watched(Server(*[away] * 6, look(session.COMPLETED)))
    assert [action for _, action, _ in shown] == [WAIT, WAIT, WAIT, WAIT, Action.finish]


def test_supervisor_waits_for_hospitals_without_limit():
    refused = look(EXCEPTION, error(RunFailed, f"round 0: no site sent a usable reply (A: {REFUSED})"))
    supervisor, now = Supervisor(limit=2), 0.0
    for _ in range(5):
        assert decisions(supervisor, (refused, now), (refused, now + 3599), (refused, now + 3600)) == [
            WAIT,
            WAIT,
            RESUME,
        ]
        now += 4000.0
    full = look(EXCEPTION, error(RunFailed, f"round 0: no site sent a usable reply (A: {DISK_FULL})"))
    assert decisions(Supervisor(), (full, 0), (full, 60), (full, 120)) == [RESUME, WAIT, RESUME]  # no failure twice


def test_watch_repeats_note_until_recorded(watched):
    back, at = look("RUNNING", round=2), look("RUNNING", round=3)
    server = Server(look("FINISHED:ABANDONED"), back, back, look(ABNORMAL), back, at, at, look(session.COMPLETED))
    watched(server)
    expected = [("j+", "0 rounds"), ("j++", "0 rounds"), ("j++", "2 rounds")]
    assert [(job, " ".join(text.split()[2:4]).strip(":")) for job, text in server.notes] == expected


def test_watch_ends_with_reason_of_giving_up(watched):
    with pytest.raises(RunFailed, match="job j: given up: it was stopped on purpose"):
        watched(Server(look("FINISHED:ABORTED")))
