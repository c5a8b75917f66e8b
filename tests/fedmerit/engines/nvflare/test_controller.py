"""When the server begins a run, and what a site refuses then."""

import threading
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
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedmerit.engines.nvflare import controller as module
from fedmerit.engines.nvflare import executor
from fedmerit.engines.nvflare.controller import MeritController, allow_repeated_pop, default_timeout, recent_rounds
from fedmerit.files import RUN_NAME
from fedmerit.reasons import OTHER_VERSION
from fedmerit.schema.records import EVALUATE
from fedmerit.schema.results import ResultsFile, Row


@pytest.fixture
def controller(tmp_path, monkeypatch):
    """One whose job lies in a temporary folder; it notes the run folder that it begins to work on."""
    made = MeritController({})
    places = ("site_config_dir", "startup_kit_dir", "root_dir")
    workspace = SimpleNamespace(**{f"get_{place}": lambda: str(tmp_path / "kit") for place in places})
    made.engine = SimpleNamespace(get_workspace=lambda: workspace, get_component=lambda name: None, get_clients=list)
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
def test_a_job_that_cannot_run_here_is_refused(wrong, monkeypatch):
    reported = []
    monkeypatch.setattr(executor.MeritExecutor, "_follow_manifest", lambda self, fl_ctx: None)
    monkeypatch.setattr(executor, "report_error", lambda own, error, what, fl_ctx: reported.append(what))
    one = executor.MeritExecutor(wrong)
    one.handle_event(EventType.START_RUN, FLContext())
    assert reported == ["job refused"]
    answer = FLModelUtils.from_shareable(one.execute(EVALUATE, Shareable(), FLContext(), MagicMock()))
    assert answer.meta["reason"] == OTHER_VERSION  # not why


class Asked:
    """An exchange with three sites; two answers are enough."""

    work, what, tasks = "train", "reply", dict.fromkeys("ABC")

    def __init__(self):
        self.answered = set()

    def has_reply(self, site):
        return site in self.answered

    def refuse(self, site, reason, failed=False):
        self.answered.add(site)

    def is_complete(self):
        return len(self.answered) >= 2


class Arrivals(threading.Event):
    """Notes how long it would wait."""

    def __init__(self):
        super().__init__()
        self.waited = []

    def wait(self, timeout=None):
        self.waited.append(timeout)
        return True


@pytest.fixture
def ask(controller, monkeypatch):
    """Asks three sites: who answers at which look at the tasks, and who takes its task; how many looks it takes."""
    clock = SimpleNamespace(now=0.0)
    times = SimpleNamespace(monotonic=lambda: clock.now, sleep=lambda seconds: None)
    monkeypatch.setattr(module, "time", times)
    controller.arrived, controller.round_timeout = Arrivals(), 100
    controller.events = None
    for name in ("send_model", "warning", "sample_clients"):
        monkeypatch.setattr(controller, name, lambda *args, **named: list("ABC"))
    monkeypatch.setattr(controller, "_build_shareable", lambda data: Shareable(), raising=False)

    def run(answers, takes=()):
        exchange, looks, standing = Asked(), [], [3]
        controller.federation = SimpleNamespace(largest_first=sorted, finished=False, sites=list("ABC"))
        monkeypatch.setattr(controller, "models", lambda: dict(exchange.tasks))

        def look():
            looks.append(clock.now)
            clock.now += 1
            controller.at_work.update(takes if len(looks) == 2 else ())
            exchange.answered |= {site for site, at in answers.items() if at <= len(looks)}
            standing[0] = 3 - len(exchange.answered)

        monkeypatch.setattr(controller, "cancel_all_tasks", lambda: standing.__setitem__(0, 0))
        monkeypatch.setattr(controller, "get_num_standing_tasks", lambda: standing[0])
        monkeypatch.setattr(controller, "communicator", SimpleNamespace(check_tasks=look))
        controller._exchange_messages(exchange)
        return len(looks)

    return run


def test_a_site_that_is_gone_costs_one_timeout_until_it_takes_a_task_again(controller, ask):
    controller.arrived.waited.clear()
    assert ask({"A": 3, "B": 5, "C": 4}) == 5
    assert controller.arrived.waited == [module.IDLE_PERIOD] * 4 + [controller.task_check_period]
    assert ask({"A": 3, "B": 5}) > 100
    assert controller.silent == {"C"}
    assert [ask({"A": 3, "B": 5}), ask({"A": 3, "B": 4})] == [5, 4]
    assert ask({"A": 3, "B": 5, "C": 60}, takes="C") == 60  # at work again: the others wait for it
    assert controller.silent == set()
    assert ask({"A": 3, "B": 5}, takes="C") > 100


@pytest.mark.parametrize(
    ("size", "took", "seconds"),
    [(0, None, 86400), (125_000_000, None, 88400), (0, 0.0, 1800), (1_250_000, 600.0, 3620)],
)
def test_how_long_sites_are_waited_for_follows_from_size_and_past(size, took, seconds):
    assert default_timeout(size, took) == seconds


def test_the_limit_nobody_stated_is_in_the_log(controller, ask, monkeypatch):
    said = []
    monkeypatch.setattr(controller, "info", said.append)
    monkeypatch.setattr(controller, "_signer", lambda: "the server's key")
    monkeypatch.setattr(module, "payload_bytes", lambda task: 2_500_000)
    controller.round_timeout = 0
    assert [ask({"A": 3, "B": 5, "C": 9}), ask({"A": 3, "B": 5})] == [9, 1868]  # 1800 + 3 * 9 + 2 * 20 s
    assert said == [
        "reply: waits 86440 s at most (message of 2.5 MB, none before)",
        "reply: waits 1867 s at most (message of 2.5 MB, 9 s at most before)",
    ]


def test_a_site_whose_certificate_is_revoked_is_neither_asked_nor_heard(controller, ask, monkeypatch):
    controller.events = SimpleNamespace(shut_out=lambda site: "its certificate is revoked" * (site == "C"))
    assert ask({"A": 3, "B": 5}) == 5
    assert controller.silent == set()
    taken, refused = [], []
    controller.exchange = SimpleNamespace(
        refuse=lambda site, why: refused.append((site, why)), take=lambda site, answer: taken.append(site)
    )
    monkeypatch.setattr(module, "model_to_answer", lambda model, network: None)
    controller.federation = SimpleNamespace(network=None)
    for site in "BC":
        controller._accept(site, site)
    assert (taken, refused) == (["B"], [("C", "its certificate is revoked")])


def test_recent_rounds_have_gaps_where_a_site_was_absent(tmp_path, monkeypatch):
    records = [
        {"round": number, "participants": sites, "validation_dice": dict.fromkeys(sites, 0.1 * number)}
        for number, sites in enumerate([["A", "B"], ["A"], ["A", "B"]])
    ]
    file = ResultsFile(tmp_path / "results.csv")
    file.append(
        Row("run", "fedavg", 0, one["round"], site, "seconds", 2.5 + one["round"])
        for one in records
        for site in one["participants"]
    )
    file.append([Row("run", "fedavg", 0, 0, "A", "seconds", 99.0, "testing")])
    recent = recent_rounds(tmp_path, records)
    assert recent["first"] == 0
    assert recent["dice"] == {"A": [0.0, 0.1, 0.2], "B": [0.0, None, 0.2]}
    assert recent["seconds"] == {"A": [2.5, 3.5, 4.5], "B": [2.5, None, 4.5]}
    monkeypatch.setattr(module, "RECENT", 2)
    assert recent_rounds(tmp_path, records)["first"] == 1
    assert recent_rounds(tmp_path, []) == {"first": 0, "dice": {}, "seconds": {}}


def test_an_answer_wakes_the_server(controller):
    context = FLContext()
    context.set_prop(AppConstants.AGGREGATION_ACCEPTED, True)
    controller.handle_event(AppEventType.AFTER_CONTRIBUTION_ACCEPT, context)
    assert controller.arrived.is_set()
