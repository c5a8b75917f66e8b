"""A site's process of a job: killed, it is started again; ended otherwise, it is not."""

import os
import signal
import sys
import threading
from functools import partial
from types import SimpleNamespace
from unittest.mock import MagicMock
from uuid import uuid4

import pytest
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobReturnCode
from nvflare.fuel.sec.audit import AuditService
from nvflare.private.admin_defs import Message
from nvflare.private.defs import SysCommandTopic, TrainingTopic, new_cell_message
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_engine import ClientEngine
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.utils.process_utils import spawn_process

from fedmerit_deploy import launcher
from fedmerit_deploy.launcher import RestartedProcess, SiteLauncher

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


@pytest.fixture
def begin(monkeypatch):
    """A process for each of some programs, one after the other; what was reported of deaths, and its handle."""
    monkeypatch.setattr(launcher, "PAUSES", (0.0, 0.0))
    handles = []

    def make(*programs):
        left, reported = list(programs), []
        handles.append(
            RestartedProcess(
                lambda: spawn_process([sys.executable, "-S", "-c", left.pop(0)], dict(os.environ)),
                lambda *death: reported.append(death),
            )
        )
        return handles[-1], reported, left

    yield make
    for handle in handles:
        handle.terminate()


@pytest.mark.parametrize(
    ("programs", "code", "deaths"),
    [
        (["pass"], JobReturnCode.SUCCESS, []),
        (["raise SystemExit(1)", "pass"], JobReturnCode.EXECUTION_ERROR, []),  # it would repeat
        ([DIES, "pass"], JobReturnCode.SUCCESS, [(9, 0.0)]),
        ([DIES, DIES, "pass"], JobReturnCode.SUCCESS, [(9, 0.0)] * 2),
        ([DIES] * 3, JobReturnCode.UNKNOWN, [(9, 0.0), (9, 0.0), (9, None)]),  # a code that ends no job
    ],
)
def test_launcher_restarts_killed_process(begin, programs, code, deaths):
    handle, reported, _ = begin(*programs)
    handle.wait()
    assert (handle.poll(), reported) == (code, deaths)


def test_launcher_restarts_no_terminated_process(begin):
    handle, reported, left = begin("import time; time.sleep(600)", "pass")
    waiting = threading.Thread(target=handle.wait)
    waiting.start()
    handle.terminate()
    waiting.join(300)
    assert not waiting.is_alive()
    assert (reported, left, handle.adapter.poll()) == ([], ["pass"], -signal.SIGKILL)


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """A function that returns a site's answer to a server that leaves out the request for authorization."""
    monkeypatch.setattr(ClientRequestProcessors, "request_processors", [*ClientRequestProcessors.request_processors])
    SiteLauncher()
    AuditService.initialize(str(tmp_path / "audit.log"))
    engine = MagicMock(spec=ClientEngine, args=SimpleNamespace(workspace=str(tmp_path)))
    engine.new_context.return_value = FLContext()
    engine.delete_run = partial(ClientEngine.delete_run, engine)
    agent = FedAdminAgent("site1", MagicMock(), engine)
    for processor in ClientRequestProcessors.request_processors:
        agent.register_processor(processor)

    def answer(topic, body="", **headers):
        message = Message(topic=topic, body=body)
        message.set_headers(headers)
        return str(agent._dispatch_request(new_cell_message({}, message)).payload.body)

    yield answer
    AuditService.close()


@pytest.mark.parametrize("topic", [SysCommandTopic.SHELL, SysCommandTopic.REPORT_ENV, SysCommandTopic.SYS_INFO])
def test_site_refuses_shell_and_facts_of_machine(ask, topic, tmp_path):
    """A hostile server got any file of the site's machine."""
    (secret := tmp_path / "client.key").write_text("a private key")
    assert "invalid_request" in ask(topic, f"cat {secret}")


@pytest.mark.parametrize("topic", [TrainingTopic.DELETE_RUN, TrainingTopic.DEPLOY])
def test_site_touches_only_folders_of_jobs(ask, topic, tmp_path):
    """A hostile server could delete a site's rules and logs."""
    for name in ("startup", "local", job := str(uuid4())):
        (tmp_path / name).mkdir()
    assert "no id of a job" in ask(topic, job_id="local", job_meta={"a": 1}, app_name="app")
    assert (tmp_path / "local").exists()
    assert "no id of a job" not in ask(topic, job_id=job)
    assert (tmp_path / job).exists() == (topic == TrainingTopic.DEPLOY)
