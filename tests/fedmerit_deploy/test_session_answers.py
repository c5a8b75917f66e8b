"""Test an admin's commands against NVFlare's answers while jobs and sites come and go. No process is started."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.apis.job_def import RunStatus
from nvflare.fuel.flare_api.api_spec import InternalError, JobNotRunning, NoConnection
from nvflare.fuel.hci.proto import MetaStatusValue

from fedmerit.engines.nvflare.operations import REPEATS, read_repeats
from fedmerit.errors import BadInput, RunFailed
from fedmerit_deploy import session
from fedmerit_deploy.job_ends import explain_end
from fedmerit_deploy.session import remove_site


def failing(error):
    """A session of which every command ends with an error."""

    def fail(*_):
        raise error

    return SimpleNamespace(
        do_app_command=fail, abort_job=fail, get_job_meta=lambda job: {"status": "RUNNING"}, _close_ignore_errors=dict
    )


PASSING = [kind("no result") for kind in session.PASSING]


@pytest.mark.parametrize("error", [*PASSING, JobNotRunning("j"), InternalError("x"), RuntimeError("x")])
def test_progress_of_changing_job_is_none(error):
    assert session.progress(failing(error), "j") is None
    assert session.note(failing(error), "j", "text") is False


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        *((one, RunFailed, "gave no answer just now (no result); try again") for one in PASSING),
        (NoConnection("x"), session.Unreachable, "cannot be reached as a@lead.org: x; is it started"),
        (FLCommunicationError("late"), session.Unreachable, "cannot be reached as a@lead.org: late"),
        (RuntimeError("runtime error encountered: x"), RunFailed, "x; see log.txt in the server's kit"),
        (RuntimeError("of the caller"), RuntimeError, "of the caller"),
    ],
)
def test_session_translates_errors_of_nvflare(federation, monkeypatch, error, kind, words):
    monkeypatch.setattr(session, "new_secure_session", lambda *_, **__: failing(error))
    with (
        pytest.raises(kind, match=words.replace("(", r"\(").replace(")", r"\)")) as found,
        session.session(federation / "fedmerit/prod_00/a@lead.org"),
    ):
        raise error
    assert type(found.value) is kind


@pytest.mark.parametrize("error", [JobNotRunning("job j is not running"), InternalError("Job j is not running.")])
def test_abort_rejects_job_not_at_work(error):
    with pytest.raises(BadInput, match="nothing of it is at work at the server"):
        session.abort(failing(error), "j")


def test_job_retries_after_missing_answer(monkeypatch):
    monkeypatch.setattr(session, "POLL", 0.0)
    answers = [*PASSING[:2], {"status": "RUNNING"}]

    def answer(job):
        said = answers.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    assert session.job(SimpleNamespace(get_job_meta=answer), "j") == {"status": "RUNNING"}
    answers += PASSING[:3]
    with pytest.raises(type(PASSING[2])):
        session.job(SimpleNamespace(get_job_meta=answer), "j")


def test_connected_omits_silent_site():
    heard = {"B": 1000.0, "A": 990.0, "C": 940.0}
    clients = [SimpleNamespace(name=name, last_connect_time=when) for name, when in heard.items()]
    opened = SimpleNamespace(get_system_info=lambda: SimpleNamespace(client_info=clients))
    assert session.connected(opened) == ["A", "B"]
    clients.clear()
    assert session.connected(opened) == []


def test_job_sites_and_sites_without_process():
    details = ["server: OK", "A: OK", "B: BYOC not permitted", "C: no reply (deployment timeout)", "D: OK"]
    assert session.job_sites({"job_deploy_detail": details}) == {"A", "D"}
    assert session.job_sites({"job_deploy_detail": None}) == set()
    rows = [
        {"client_name": "A", "job_id": "j", "status": "started"},
        {"client_name": "B", "status": MetaStatusValue.NO_JOBS},
        {"client_name": "C", "job_id": "other", "status": "started"},
        {"client_name": "D", "status": MetaStatusValue.NO_REPLY},
        {"client_name": "E", "job_id": "other", "status": "started"},
        {"client_name": "E", "job_id": "j", "status": "started"},
    ]
    opened = SimpleNamespace(get_client_job_status=lambda names: rows)
    assert session.sites_without(opened, "j", set("ABCDE")) == {"B", "C"}


@pytest.mark.parametrize(
    ("sites", "details", "found"),
    [
        (["@ALL"], ["server: OK", "A: OK", "B: BYOC not permitted"], {"C"}),
        (["@ALL"], None, set()),  # it is not deployed yet
        (["server", "A"], ["server: OK", "A: OK"], set()),
    ],
)
def test_newcomers_are_sites_without_deployment(sites, details, found):
    described = {"deploy_map": {"app": sites}, "job_deploy_detail": details}
    assert session.newcomers(described, ["A", "B", "C"]) == found


JOBS = {
    "first": {"job_id": "first", "status": session.COMPLETED, "job_deploy_detail": ["server: OK", "A: OK", "B: OK"]},
    "other": {"job_id": "other", "status": "RUNNING", "min_clients": 2},
    "later": {"job_id": "later", "status": "RUNNING", "min_clients": 2, "cloned_from": "first"},
}


@pytest.fixture
def server(monkeypatch):
    """An admin's session; "log" has what it was asked to do."""
    opened = SimpleNamespace(log=[])

    def download(job_id, folder):
        """As NVFlare 2.9 does: the job folder below "job", its own description of the job beside that."""
        whole = Path(folder, job_id)
        (whole / "job/mine/app/config").mkdir(parents=True)
        (whole / "meta.json").write_text(json.dumps({"job_id": job_id, "deploy_map": {"app": ["@ALL"]}}))
        (whole / "job/mine/meta.json").write_text(json.dumps({"name": "job", "deploy_map": {"app": ["@ALL"]}}))
        return str(whole)

    def submit(opened, folder):
        opened.log.append(json.loads((folder / "meta.json").read_text()))
        opened.note = read_repeats(folder)
        return "new"

    opened.download_job_result = download
    monkeypatch.setattr(session, "job", lambda opened, job_id: JOBS[job_id])
    monkeypatch.setattr(session, "jobs", lambda opened: [JOBS["later"], JOBS["other"], JOBS["first"]])
    monkeypatch.setattr(session, "connected", lambda opened: ["A", "B", "C"])
    monkeypatch.setattr(session, "stop", lambda opened, job_id: opened.log.append(f"stop {job_id}"))
    monkeypatch.setattr(session, "submit", submit)
    return opened


def test_job_that_ended_early_names_the_job_that_continues_its_run(server, monkeypatch):
    ended = {**JOBS["first"], "status": RunStatus.ABANDONED.value}
    monkeypatch.setitem(JOBS, "first", ended)
    described = session.describe(server, "first")
    assert explain_end(described) == [
        "first: ended, the server was started again while it ran",
        "first: job later (RUNNING) continues its run",
    ]
    assert session.describe(server, "other") == JOBS["other"]
    with pytest.raises(
        BadInput, match=r"is over already \(FINISHED:ABANDONED\); job later \(RUNNING\) continues its run"
    ):
        session.abort(server, "first")
    server.clone_job = lambda job_id: server.log.append(f"clone {job_id}") or "new"
    assert session.resume(server, "first") == "new"
    assert server.log == ["stop later", "clone first"]
    monkeypatch.setitem(JOBS, "later", {**JOBS["later"], "status": session.COMPLETED})
    with pytest.raises(BadInput, match="job later: came to its end; fetch it"):
        session.resume(server, "first")


@pytest.mark.parametrize("job", ["first", "later"])
def test_remove_site_submits_job_for_all_others(server, job):
    assert remove_site(server, job, "B") == "new"
    stopped, meta = server.log
    assert stopped == "stop later"
    assert meta["name"] == "job"
    assert meta["deploy_map"] == {"app": ["server", "A", "C"]}
    assert meta[REPEATS] == server.note == "repeats the run of job first without B"


@pytest.mark.parametrize(
    ("site", "there", "words"),
    [
        ("D", ["A", "B", "C"], "D has no part in it; its sites are A, B"),
        ("B", ["A", "B"], "needs 2 sites without B, connected are A"),
    ],
)
def test_remove_site_rejects_unusable_request_before_stopping(server, monkeypatch, site, there, words):
    monkeypatch.setattr(session, "connected", lambda opened: there)
    with pytest.raises(BadInput, match=words):
        remove_site(server, "later", site)
    assert not server.log
