"""When the server begins a run; whole jobs are in the tests of the engines and of deploy/."""

from types import SimpleNamespace

import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal

from fedmerit.flare import controller as module
from fedmerit.flare.controller import MeritController
from fedmerit.training.place import RUN_NAME


@pytest.fixture
def controller(tmp_path, monkeypatch):
    """One whose job lies in a temporary folder; it notes the run folder that it begins to work on."""
    made = MeritController()
    workspace = SimpleNamespace(get_site_config_dir=lambda: str(tmp_path / "local"))
    made.engine = SimpleNamespace(get_workspace=lambda: workspace, get_component=lambda name: None)
    made.abort_signal, made.begun = Signal(), []
    monkeypatch.setattr(made, "get_run_dir", lambda: str(tmp_path / "job"))
    monkeypatch.setattr(made, "_work", lambda run, workspace: made.begun.append(run))
    monkeypatch.setattr(module, "TASK_MONITOR", "MainThread")
    for variable in ("FEDMERIT_RUN", "FEDMERIT_RUNS"):
        monkeypatch.delenv(variable, raising=False)
    return made


def test_a_job_that_ends_before_a_site_asks_for_work_leaves_no_run(controller, tmp_path):
    controller.abort_signal.trigger("every site refuses it")
    with pytest.raises(RuntimeError, match="aborted"):
        controller.run()
    assert list(tmp_path.rglob("*")) == []


def test_a_run_begins_when_a_site_asks_for_work(controller, tmp_path):
    controller.handle_event(EventType.BEFORE_PROCESS_TASK_REQUEST, FLContext())
    controller.run()
    assert controller.begun == [tmp_path / "job" / RUN_NAME]
    assert controller.begun[0].is_dir()


def test_a_run_that_has_begun_goes_on_at_once(controller, tmp_path):
    (tmp_path / "job" / RUN_NAME).mkdir(parents=True)
    controller.run()
    assert controller.begun == [tmp_path / "job" / RUN_NAME]
