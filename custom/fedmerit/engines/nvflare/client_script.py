"""A site's script of NVFlare's Client API: started, asked, and its answers read.

On NVFlare its executor starts the script, in the site's process or one of its own; on the local engine `serve` does, in
a process that `fedmerit.engines.script_sites` starts.
"""

import hashlib
import logging
import os
import pickle
import re
import shlex
import sys
import threading
import time
import traceback
from collections import deque
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
from nvflare.app_common.executors.client_api import external_process_backend
from nvflare.app_common.executors.client_api_executor import ClientAPIExecutor, ExecutionMode
from nvflare.app_common.executors.task_script_runner import TaskScriptRunner
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.client import api as client_api
from nvflare.client.api_spec import CLIENT_API_KEY
from nvflare.client.config import ConfigKey, ExchangeFormat
from nvflare.client.in_process.api import TOPIC_LOCAL_RESULT, InProcessClientAPI
from nvflare.fuel.data_event.data_bus import DataBus
from nvflare.fuel.utils.log_utils import get_module_logger

from fedmerit.child_processes import PATHS
from fedmerit.errors import BadInput
from fedmerit.reasons import REMEDIES, SCRIPT_LATE, reason_of, script_reason
from fedmerit.schema.records import EVALUATE, TRAIN
from fedmerit.site.policy import MANIFEST, SiteScript
from fedmerit.trainers.script.restarts import LINES, TRACEBACK, ScriptEnded, explain_output
from fedmerit.trainers.script.trainer import Question, Said

crashes: deque[BaseException] = deque(maxlen=1)  # the last error that ended a script in this process
SCRIPT_THREAD = "client_api_in_process_trainer"  # NVFlare's name of its thread
OUTPUT_THREAD = "client_api_trainer_log_"  # how NVFlare's names of the threads begin that log what a script prints
NOISE = re.compile(r"^\[ME=|CJ heartbeat time")  # what NVFlare prints in a script's process
OUTPUT = get_module_logger(external_process_backend.__name__, external_process_backend.ExternalProcessBackend.__name__)
BY_NVFLARE = re.compile(
    r"TASK_ABORTED|EXECUTION_EXCEPTION|trainer|backend|timed out|Traceback"
)  # says nothing of the script
MOST_LINES = 200  # of a script's output that are kept
ENDING = 5.0  # seconds for a script's thread to end
POLL = 0.02  # seconds between two looks of a script in this process for its next task; NVFlare's own is .5
CLEARING = 10.0  # seconds; a script that sends with clear_cache=False clears nothing
WORK = {TRAIN: AppConstants.TASK_TRAIN, EVALUATE: AppConstants.TASK_VALIDATION}  # as NVFlare calls it


class ClientScript(ClientAPIExecutor):
    """An executor of a script, whose log data stays at the site, and which can start the script again."""

    def __init__(self, *args: Any, **more: Any):
        super().__init__(*args, **more)
        self.printed: deque[str] = deque(maxlen=MOST_LINES)  # the last lines of a process of the script's own
        self.fault = ""  # the last error of NVFlare's about the script
        watch_threads()
        OUTPUT.addHandler(_Lines(self.printed))

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Handle an event as NVFlare does; a script that runs in this process is handed its tasks at once."""
        super().handle_event(event_type, fl_ctx)
        script = DataBus().get_data(CLIENT_API_KEY) if event_type == EventType.START_RUN else None
        if isinstance(script, InProcessClientAPI):
            script.result_check_interval = POLL

    def fire_log_analytics(self, fl_ctx: FLContext, dxo: DXO) -> None:
        """Drop log data: NVFlare would send it to the server past all filters."""

    def log_error(self, fl_ctx: FLContext, msg: str, fire_event: bool = True, *args: Any, **more: Any) -> None:
        """Log an error as NVFlare does, and keep it."""
        self.fault = msg
        super().log_error(fl_ctx, msg, fire_event, *args, **more)

    def system_panic(self, reason: str, fl_ctx: FLContext) -> None:
        """Keep why the script cannot be started: the site's next answer says it, and the job continues."""
        self.fault = reason
        self.log_warning(fl_ctx, reason)

    def start_again(self, fl_ctx: FLContext) -> None:
        """Start the script again after it ended."""
        self.handle_event(EventType.END_RUN, fl_ctx)
        self.printed.clear()
        crashes.clear()
        self.fault = ""
        with client_api.global_context_lock:  # it holds what connected the script that ended
            client_api.context_dict.clear()
            client_api.default_context = None
        self.handle_event(EventType.START_RUN, fl_ctx)

    def explain_end(self, code: str) -> ScriptEnded:
        """Return why the script gave no answer, NVFlare having said ``code``."""
        is_late = "timed out" in self.fault and "heartbeat" not in self.fault  # which a script that died lacks, too
        is_apart = self.execution_mode == ExecutionMode.EXTERNAL_PROCESS
        found = re.search(r"rc=(-?\d+)", self.fault)
        if is_late:
            lines, reason = "\n".join([*list(self.printed)[-LINES:], "it is still at work, or waits for something"]), ""
        elif is_apart:
            lines, reason = explain_output("\n".join(self.printed), int(found[1]) if found else None)
        else:
            for thread in threading.enumerate():  # its error comes after what it reports to NVFlare
                if thread.name == SCRIPT_THREAD:
                    thread.join(ENDING)
            lines, reason = explain_crash(crashes[-1] if crashes else None)
        cause = (self.fault or code).splitlines()[0]
        what = "gave no answer in time" if is_late else "ended without an answer"
        what += "" if BY_NVFLARE.search(cause) else f" ({cause:.200})"
        what += f" (exit code {found[1]})" if found and int(found[1]) else ""
        advice = "raise script_timeout if it takes longer, or mend it" if is_late else "mend that"
        return ScriptEnded(
            f"the script {what}; {advice} and start the job again; min_clients lets the others go on:\n{lines}",
            SCRIPT_LATE if is_late else reason,
            is_late,
            can_start=is_apart or not is_late,  # a thread cannot be ended
        )


class _Lines(logging.Handler):
    """A handler that keeps the last lines that a script's own process printed."""

    def __init__(self, lines: deque[str]):
        super().__init__()
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line of the script's, not what NVFlare says around it."""
        line = record.getMessage()
        if (record.threadName or "").startswith(OUTPUT_THREAD) and not NOISE.search(line):
            self.lines.append(line)


def watch_threads() -> None:
    """Have the errors that end a script in this process kept in `crashes`; NVFlare only logs some of them."""
    before = threading.excepthook
    if getattr(before, "keeps_crashes", False):
        return

    def keep(args: threading.ExceptHookArgs) -> None:
        if args.thread is not None and args.thread.name == SCRIPT_THREAD and args.exc_value is not None:
            crashes.append(args.exc_value)
        before(args)

    keep.keeps_crashes = True  # type: ignore[attr-defined]
    threading.excepthook = keep


def explain_crash(error: BaseException | None) -> tuple[str, str]:
    """Return the last lines of the traceback of a script that ran in this process, and the reason that its end is."""
    if isinstance(error, SystemExit):
        number = error.code if isinstance(error.code, int) else int(error.code is not None)
        return f"it called sys.exit({error.code!r:.200})", script_reason(number)
    if error is None:
        return explain_output("")
    text = "".join(traceback.format_exception(error))
    lines, reason = explain_output(text if TRACEBACK in text else f"{TRACEBACK}\n{text}", 1)
    known = reason_of(error)
    return lines, known if known in REMEDIES else reason


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
        ScriptEnded: it ended, raised, or took too long.
        RuntimeError: the job was aborted.
    """
    model = FLModelUtils.to_shareable(question_model(question))
    if isinstance(api := DataBus().get_data(CLIENT_API_KEY), InProcessClientAPI):
        await_cleared(api)
    answer = script.execute(WORK[question.work], model, fl_ctx, abort_signal)
    if (code := answer.get_return_code()) != ReturnCode.OK:
        if abort_signal.triggered:
            raise RuntimeError("the job was aborted")
        raise script.explain_end(str(code))
    return read_answer(FLModelUtils.from_shareable(materialized(answer, fl_ctx, abort_signal)))


def await_cleared(api: InProcessClientAPI) -> None:
    """Wait until a script in this process has forgotten the task before.

    It does so after it has sent its answer; a task that came earlier would be forgotten, too, and never be answered.
    """
    until = time.monotonic() + CLEARING
    while api.fl_model is not None and time.monotonic() < until:
        time.sleep(POLL / 10)


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
    metrics = {str(name): value for name, value in (model.metrics or {}).items()}
    return Said(model.params or {}, model.params_type == ParamsType.DIFF, metrics, model.meta or {})


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

    code = 0  # with which the process ends

    def run() -> None:
        nonlocal code
        try:
            runner.run()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):  # as Python does
                print(end.code, file=sys.stderr)
        except BaseException:
            code = 1
            traceback.print_exc()
        finally:
            arrived.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while True:
            try:
                question: Question = pickle.loads(connection.recv_bytes())
            except (EOFError, OSError):
                break
            arrived.clear()
            answers.clear()
            await_cleared(api)
            api.set_meta(describe(WORK[question.work]))
            api.fl_model = question_model(question)
            while thread.is_alive() and os.getppid() == parent and not arrived.wait(1.0):
                pass
            if not answers:
                break
            connection.send_bytes(pickle.dumps(read_answer(FLModelUtils.from_shareable(answers.pop()))))
    except Exception:  # such as an answer that cannot be sent on
        code = 1
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # whatever threads the script left
