"""A site's script of NVFlare's Client API: started, asked, and its answers read.

On NVFlare its executor starts the script, in the site's process or one of its own; on the local engine `serve` does, in
a process that `fedmerit.engines.script_sites` starts.
"""

import hashlib
import os
import pickle
import shlex
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from nvflare.apis.dxo import DXO
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLMetaKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.utils.task_utils import materialize_lazy_download_refs
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.executors.client_api_executor import ClientAPIExecutor, ExecutionMode
from nvflare.app_common.executors.task_script_runner import TaskScriptRunner
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.client.api_spec import CLIENT_API_KEY
from nvflare.client.config import ConfigKey, ExchangeFormat
from nvflare.client.in_process.api import TOPIC_LOCAL_RESULT, InProcessClientAPI
from nvflare.fuel.data_event.data_bus import DataBus

from fedmerit.child_processes import PATHS
from fedmerit.errors import BadInput
from fedmerit.schema.messages import EVALUATE, TRAIN
from fedmerit.site.policy import MANIFEST, SiteScript
from fedmerit.trainers.script.trainer import Question, Said

POLL = 0.02  # seconds between two looks of a script in this process for its next task; NVFlare's own is .5
CLEARING = 10.0  # seconds; a script that sends with clear_cache=False clears nothing
WORK = {TRAIN: AppConstants.TASK_TRAIN, EVALUATE: AppConstants.TASK_VALIDATION}  # as NVFlare calls it


class ClientScript(ClientAPIExecutor):
    """An executor of a script, whose log data stays at the site."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Handle an event as NVFlare does; a script that runs in this process is handed its tasks at once."""
        super().handle_event(event_type, fl_ctx)
        script = DataBus().get_data(CLIENT_API_KEY) if event_type == EventType.START_RUN else None
        if isinstance(script, InProcessClientAPI):
            script.result_check_interval = POLL

    def fire_log_analytics(self, fl_ctx: FLContext, dxo: DXO) -> None:
        """Drop log data: NVFlare would send it to the server past all filters."""


def start_script(launch: Mapping[str, Any], custom: Path) -> ClientScript:
    """Return the executor of a script, which NVFlare starts with the event START_RUN.

    Args:
        launch: "file", relative to ``custom`` or absolute; "args"; "command", of an own process, "" for this one;
            "transfer", FULL or DIFF; "timeout", seconds to wait for an answer, 0: as long as it takes.
        custom: the folder of the job's own code.

    Raises:
        BadInput: there is no such script.
    """
    file = find_script(str(launch["file"]), custom)
    sys.path.insert(0, str(file.parent))  # as Python does: what lies beside it is imported by it
    common = {
        "params_exchange_format": ExchangeFormat.PYTORCH,  # on both sides: no numbers are converted
        "server_expected_format": ExchangeFormat.PYTORCH,
        "params_transfer_type": launch["transfer"],
        "result_wait_timeout": float(launch["timeout"]) or None,
    }
    if command := str(launch["command"]):
        paths = [str(file.parent), *filter(None, os.environ.get(PATHS, "").split(os.pathsep))]
        os.environ[PATHS] = os.pathsep.join(paths)  # of the script's process, which imports from no working folder
        argv = [*shlex.split(command), str(file), *shlex.split(str(launch["args"]))]
        return ClientScript(ExecutionMode.EXTERNAL_PROCESS, command=argv, **common)
    return ClientScript(
        ExecutionMode.IN_PROCESS, task_script_path=str(file), task_script_args=str(launch["args"]), **common
    )


def find_script(name: str, custom: Path) -> Path:
    """Return the script of this name, absolute; `BadInput` if there is none."""
    path = Path(name)
    found = [path] if path.is_absolute() else sorted(custom.rglob(path.name))
    if not found or not found[0].is_file():
        raise BadInput(f"{name}: no script of that name at this site; expected it in {custom}")
    return found[0].resolve()


def brought_script(launch: Mapping[str, Any], custom: Path) -> SiteScript:
    """Return the script that a job brings with its code; `BadInput` if it names another file of the site."""
    file = find_script(str(launch.get("file", "")), custom)
    if not file.is_relative_to(custom.resolve()):
        raise BadInput(f"{file}: not brought by the job; name it in local/{MANIFEST} of the kit if it may run here")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return SiteScript(file=str(file), sha256=digest, args=str(launch["args"]), command=str(launch["command"]))


def materialized(shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
    """Return a message with its tensors: of an external process NVFlare passes references to them."""
    cell = fl_ctx.get_engine().get_cell()
    whole: Shareable = materialize_lazy_download_refs(shareable, cell, abort_signal)
    return whole


def ask_script(script: ClientScript, question: Question, fl_ctx: FLContext, abort_signal: Signal) -> Said:
    """Return what the script answers.

    Raises:
        RuntimeError: it ended, raised, or took too long.
    """
    model = FLModelUtils.to_shareable(question_model(question))
    answer = script.execute(WORK[question.work], model, fl_ctx, abort_signal)
    if (code := answer.get_return_code()) != ReturnCode.OK:
        raise RuntimeError(
            f"the script ended, or gave no answer in time ({code}); the site's log says which; mend that and "
            "start the job again, or raise script_timeout; min_clients lets the others go on"
        )
    return read_answer(FLModelUtils.from_shareable(materialized(answer, fl_ctx, abort_signal)))


def question_model(question: Question) -> FLModel:
    """Return a question as a script receives it."""
    return FLModel(
        params_type=ParamsType.FULL,
        params=dict(question.state),
        current_round=question.round,
        total_rounds=question.rounds,
        meta=dict(question.meta),
    )


def read_answer(model: FLModel) -> Said:
    """Return what a script sent."""
    return Said(model.params or {}, model.params_type == ParamsType.DIFF, model.metrics or {}, model.meta or {})


def serve(handle: str, site: str, file: str, args: str, transfer: str) -> None:
    """Run a script on a thread of its own, and ask it on this one, by the questions from the connection ``handle``."""
    connection, parent = Connection(int(handle)), os.getppid()
    os.set_inheritable(connection.fileno(), False)  # not for processes of the script's
    sys.path.insert(0, str(Path(file).parent))
    answers: list[Any] = []
    arrived, bus = threading.Event(), DataBus()

    def take(topic: str, answer: Any, databus: DataBus) -> None:
        answers.append(answer)
        arrived.set()

    def describe(work: str | None) -> dict[str, Any]:
        exchange = {
            ConfigKey.EXCHANGE_FORMAT: ExchangeFormat.PYTORCH,
            ConfigKey.SERVER_EXPECTED_FORMAT: ExchangeFormat.PYTORCH,
            ConfigKey.TRANSFER_TYPE: transfer,
            ConfigKey.TRAIN_WITH_EVAL: False,
            ConfigKey.TRAIN_TASK_NAME: "train",
            ConfigKey.EVAL_TASK_NAME: WORK[EVALUATE],
            ConfigKey.SUBMIT_MODEL_TASK_NAME: "submit_model",
        }
        return {
            FLMetaKey.SITE_NAME: site,
            FLMetaKey.JOB_ID: "local",
            ConfigKey.TASK_NAME: work,
            ConfigKey.TASK_EXCHANGE: exchange,
        }

    bus.subscribe([TOPIC_LOCAL_RESULT], take)
    api = InProcessClientAPI(describe(None), result_check_interval=POLL)
    api.init()
    bus.put_data(CLIENT_API_KEY, api)
    runner = TaskScriptRunner(str(Path(file).parent), file, args, redirect_print_to_log=False)

    def run() -> None:
        try:
            runner.run()
        except BaseException:
            traceback.print_exc()
        finally:
            arrived.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while True:
        try:
            question: Question = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            break
        arrived.clear()
        answers.clear()
        until = time.monotonic() + CLEARING
        while api.fl_model is not None and time.monotonic() < until:  # flare.send clears it last: not the next one
            time.sleep(POLL / 10)
        api.set_meta(describe(WORK[question.work]))
        api.fl_model = question_model(question)
        while thread.is_alive() and os.getppid() == parent and not arrived.wait(1.0):
            pass
        if not answers:
            break
        connection.send_bytes(pickle.dumps(read_answer(FLModelUtils.from_shareable(answers.pop()))))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # whatever threads the script left
