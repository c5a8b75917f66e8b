"""When the server begins a run, and what a site refuses then."""

from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import Task, TaskCompletionStatus
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedmerit.flare import controller as module
from fedmerit.flare import executor
from fedmerit.flare.controller import MeritController, allow_repeated_pop
from fedmerit.trainers.monai_trainer.machine_settings import RUN_NAME


@pytest.fixture
def controller(tmp_path, monkeypatch):
    """One whose job lies in a temporary folder; it notes the run folder that it begins to work on."""
    made = MeritController()
    workspace = SimpleNamespace(get_site_config_dir=lambda: str(tmp_path / "local"))
    made.engine = SimpleNamespace(get_workspace=lambda: workspace, get_component=lambda name: None)
    made.abort_signal, made.begun = Signal(), []
    made.communicator = WFCommServer()
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


def test_a_site_that_asks_twice_for_its_task_ends_nothing():
    """Of two tasks that stand, the first one's site asks again before it answers, as where a message was late."""
    communicator = WFCommServer()
    communicator._engine, communicator.controller = MagicMock(), MagicMock()
    communicator._engine.new_context = lambda: nullcontext(FLContext())
    clients = [Client("a", "1"), Client("b", "2")]
    communicator._engine.validate_targets = lambda names: (clients, [])
    allow_repeated_pop(communicator)
    for client in clients:
        communicator.send(Task("train", Shareable()), FLContext(), targets=[client.name])
    for _ in range(2):
        communicator.process_task_request(clients[0], FLContext())
    (task, _) = communicator._tasks
    assert len(task.client_tasks) == 2  # NVFlare's fault: mended there, `forgive` can go
    task.completion_status = TaskCompletionStatus.OK
    communicator.check_tasks()
    assert communicator.get_num_standing_tasks() == 1


@pytest.mark.parametrize("wrong", [{}, {"method": "no such method"}])
def test_a_job_that_cannot_run_here_is_refused_as_it_begins(wrong, monkeypatch):
    told, ended = [], []
    monkeypatch.setattr(executor.MeritExecutor, "_follow_manifest", lambda self, fl_ctx: None)
    monkeypatch.setattr(executor, "report_error", lambda own, error, what, fl_ctx: told.append(what))
    one = executor.MeritExecutor(wrong)
    monkeypatch.setattr(one, "system_panic", lambda reason, fl_ctx: ended.append(reason))
    one.handle_event(EventType.START_RUN, FLContext())
    assert told == ["job refused"]
    assert len(ended) == 1
    assert "no such method" not in ended[0]  # the server hears that, not why
