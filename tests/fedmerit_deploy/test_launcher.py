"""A site's process of a job: killed, it is started again; ended otherwise, it is not."""

import os
import signal
import sys
import threading

import pytest
from nvflare.apis.job_launcher_spec import JobReturnCode
from nvflare.utils.process_utils import spawn_process

from fedmerit_deploy import launcher
from fedmerit_deploy.launcher import RestartedProcess

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
