"""How a site starts a script: which file it may be, what NVFlare is reported, and that its log data stays."""

import subprocess
import threading
from multiprocessing.connection import Pipe
from pathlib import Path
from types import SimpleNamespace

import pytest
from nvflare.apis.event_type import EventType
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.executors.client_api_executor import ClientAPIExecutor
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.client.api_spec import CLIENT_API_KEY
from nvflare.client.in_process.api import InProcessClientAPI
from nvflare.fuel.data_event.data_bus import DataBus

from fedmerit.engines.nvflare.client_script import (
    POLL,
    ClientScript,
    ask_script,
    brought_script,
    find_script,
    question_model,
    start_script,
)
from fedmerit.engines.script_sites import Launch, ScriptProcess
from fedmerit.errors import BadInput
from fedmerit.schema.records import TRAIN
from fedmerit.trainers.script.restarts import ScriptEnded
from fedmerit.trainers.script.trainer import Question

LAUNCH = {"file": "client.py", "args": "--epochs 2", "command": "", "transfer": "DIFF", "timeout": 5.0}
QUESTION = Question(TRAIN, {}, 0, 1, {})


@pytest.fixture
def custom(tmp_path):
    folder = tmp_path / "app" / "custom" / "src"
    folder.mkdir(parents=True)
    (folder / "client.py").write_text("pass")
    return folder.parent


def test_a_script_is_found_in_the_code_of_the_job_or_by_its_path(custom, tmp_path):
    assert find_script("client.py", custom) == custom / "src" / "client.py"
    assert find_script(str(custom / "src" / "client.py"), tmp_path) == custom / "src" / "client.py"
    with pytest.raises(BadInput, match=r"other\.py: no script of that name at this site"):
        find_script("other.py", custom)


def test_a_site_that_nobody_prepared_runs_only_what_nvflare_let_the_job_bring(custom, tmp_path):
    brought = brought_script(LAUNCH, custom)
    assert (brought.file, brought.fault) == (str(custom / "src" / "client.py"), "")
    own = tmp_path / "own.py"
    own.write_text("pass")
    for name in (str(own), "../../../own.py"):
        with pytest.raises(BadInput, match=r"not brought by the job|no script of that name"):
            brought_script(LAUNCH | {"file": name}, custom)


def test_nvflare_runs_it_here_or_in_a_process_of_its_own_and_its_log_data_goes_nowhere(custom):
    here = start_script(LAUNCH, custom)
    assert (here.execution_mode, here._task_script_args) == ("in_process", "--epochs 2")
    assert (here._result_wait_timeout, here._params_transfer_type) == (5.0, "DIFF")
    apart = start_script(LAUNCH | {"command": "python3 -u", "timeout": 0.0}, custom)
    assert apart.execution_mode == "external_process"
    assert apart._command == ["python3", "-u", str(custom / "src" / "client.py"), "--epochs", "2"]
    assert apart._result_wait_timeout is None
    assert isinstance(here, ClientScript)
    assert here.fire_log_analytics(None, None) is None  # NVFlare's own would look at both
    assert Path(apart._command[2]).is_file()


def test_an_answer_of_a_class_that_only_the_script_has_is_refused_with_what_to_send(tmp_path):
    script = ScriptProcess.__new__(ScriptProcess)
    script.site, script.log, script.timeout = "site-1", tmp_path / "script.log", 0.0
    script._connection, its = Pipe()
    its.send_bytes(b"cscript_of_a_site\nOwn\n.")  # as pickle names a class
    with pytest.raises(BadInput, match=r"^site site-1: .*script_of_a_site.*; send numbers, texts, tensors or arrays"):
        script.ask(QUESTION)


def test_ask_script_hands_over_the_next_task_once_the_script_forgot_the_last(monkeypatch):
    api = InProcessClientAPI({"site_name": "site-1"})
    api.fl_model = question_model(QUESTION)
    monkeypatch.setattr(DataBus, "get_data", lambda self, key: api if key == CLIENT_API_KEY else None)
    threading.Timer(0.2, api.clear).start()
    left = []

    def execute(*arguments):
        left.append(api.fl_model)
        return FLModelUtils.to_shareable(FLModel(metrics={"dice": 0.5}))

    context = SimpleNamespace(get_engine=lambda: SimpleNamespace(get_cell=lambda: None))
    said = ask_script(SimpleNamespace(execute=execute), QUESTION, context, None)
    assert (left, said.metrics) == ([None], {"dice": 0.5})


def test_an_answer_that_cannot_be_sent_on_ends_the_script_at_once(tmp_path):
    file = tmp_path / "client.py"
    file.write_text(
        "import nvflare.client as flare\nflare.init()\nflare.receive()\n"
        "flare.send(flare.FLModel(metrics={'dice': 0.5}, meta={'model': lambda: 0}))\n"
    )
    script = ScriptProcess("site-1", Launch(file=str(file), sha256="", clients=1), tmp_path / "script.log")
    with pytest.raises(ScriptEnded, match=r"(?s)site site-1: its script ended.*Can't pickle"):
        script.ask(QUESTION)


def test_a_script_in_this_process_is_handed_its_tasks_at_once(custom, monkeypatch):
    script = InProcessClientAPI({})
    monkeypatch.setattr(ClientAPIExecutor, "handle_event", lambda *_: DataBus().put_data(CLIENT_API_KEY, script))
    started = start_script(LAUNCH, custom)
    try:
        started.handle_event(EventType.ABORT_TASK, None)
        assert script.result_check_interval > POLL  # NVFlare's own
        started.handle_event(EventType.START_RUN, None)
        assert script.result_check_interval == POLL
    finally:
        DataBus().put_data(CLIENT_API_KEY, None)


def test_a_process_that_was_ended_has_no_exit_code():
    script = ScriptProcess.__new__(ScriptProcess)
    script._connection, _ = Pipe()
    script._process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    assert script._end(0.05) is None
