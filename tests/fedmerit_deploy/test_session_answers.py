"""What an admin's commands make of NVFlare's answers while jobs and sites come and go. No process is started."""

from types import SimpleNamespace

import pytest
from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.fuel.flare_api.api_spec import InternalError, JobNotRunning, NoConnection
from nvflare.fuel.hci.proto import MetaStatusValue

from fedmerit.errors import BadInput, RunFailed
from fedmerit_deploy import session


def failing(error):
    """A session of which every command ends with an error."""

    def fail(*_):
        raise error

    return SimpleNamespace(
        do_app_command=fail, abort_job=fail, get_job_meta=lambda job: {"status": "RUNNING"}, _close_ignore_errors=dict
    )


PASSING = [kind("no result") for kind in session.PASSING]


@pytest.mark.parametrize("error", [*PASSING, JobNotRunning("j"), InternalError("x"), RuntimeError("x")])
def test_a_job_that_starts_or_ends_has_no_progress_and_takes_no_note(error):
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
def test_no_command_ends_in_a_traceback(federation, monkeypatch, error, kind, words):
    monkeypatch.setattr(session, "new_secure_session", lambda *_, **__: failing(error))
    with (
        pytest.raises(kind, match=words.replace("(", r"\(").replace(")", r"\)")) as found,
        session.session(federation / "fedmerit/prod_00/a@lead.org"),
    ):
        raise error
    assert type(found.value) is kind


@pytest.mark.parametrize("error", [JobNotRunning("job j is not running"), InternalError("Job j is not running.")])
def test_abort_of_what_is_not_at_work_says_so(error):
    with pytest.raises(BadInput, match="nothing of it is at work at the server"):
        session.abort(failing(error), "j")


def test_a_job_is_asked_for_again_if_there_is_no_answer_just_now(monkeypatch):
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


def test_a_site_that_is_silent_beside_others_is_not_connected():
    heard = {"B": 1000.0, "A": 990.0, "C": 940.0}
    clients = [SimpleNamespace(name=name, last_connect_time=when) for name, when in heard.items()]
    opened = SimpleNamespace(get_system_info=lambda: SimpleNamespace(client_info=clients))
    assert session.connected(opened) == ["A", "B"]
    clients.clear()
    assert session.connected(opened) == []


def test_who_took_a_job_and_who_has_no_process_of_it():
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
def test_newcomers_are_sites_to_which_a_job_for_all_was_not_given(sites, details, found):
    described = {"deploy_map": {"app": sites}, "job_deploy_detail": details}
    assert session.newcomers(described, ["A", "B", "C"]) == found
