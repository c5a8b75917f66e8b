"""The local engine's sites that train by a script: each in a process of its own, with NVFlare's Client API in it."""

import os
import pickle
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from fedmerit.errors import RunFailed
from fedmerit.schema.messages import EVALUATE
from fedmerit.trainers.script.trainer import Question, Said

CLEARING = 10.0  # seconds; a script that sends with clear_cache=False clears nothing
SERVE = f"import sys; from {__name__} import serve; serve(*sys.argv[1:])"


class LocalScript:
    """A site's script in a process of its own.

    Args:
        site: its name.
        file: the script.
        args: its arguments, as on a command line.
        transfer: "FULL" or "DIFF".
        log: the file of what it prints; it begins in a folder of its own beside that, as on NVFlare.
        timeout: seconds to wait for an answer, 0: as long as it takes; the first wait includes its start.
    """

    def __init__(self, site: str, file: Path, args: str, transfer: str, log: Path, timeout: float = 0.0):
        self.site, self.log, self.timeout = site, log, timeout
        self._connection, its = Pipe()
        (place := log.with_suffix("")).mkdir(parents=True, exist_ok=True)
        start = [sys.executable, "-u", "-P", "-c", SERVE, str(its.fileno()), site, str(file), args, transfer]
        paths = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}
        with its, log.open("ab") as output:  # no multiprocessing, which would run the caller's own script again
            self._process = subprocess.Popen(
                start,
                cwd=place,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[its.fileno()],
                env=paths,
            )

    def ask(self, question: Question) -> Said:
        """What it answers; `RunFailed` naming its log if it ended, or gave none in time and so was ended."""
        answer = None
        with suppress(EOFError, BrokenPipeError, ConnectionResetError):
            self._connection.send_bytes(pickle.dumps(question))
            if not self._connection.poll(self.timeout or None):
                self._process.kill()
                raise RunFailed(
                    f"site {self.site}: its script gave no answer in {self.timeout:g} seconds, and was ended; "
                    f"{self.log} says how far it came; raise script_timeout if it takes longer"
                )
            answer = self._read(self._connection.recv_bytes())
        if not isinstance(answer, Said):
            raise RunFailed(
                f"site {self.site}: its script ended{self._code()}; {self.log} says why; mend that, then --resume, or "
                "begin again if the script changed; --min-sites lets the others go on"
            )
        return answer

    def _read(self, sent: bytes) -> Any:
        try:
            return pickle.loads(sent)
        except (AttributeError, ImportError) as error:
            raise RunFailed(
                f"site {self.site}: its script sent an object of a class that only it has ({error!s:.100}); send "
                "numbers, texts, tensors or arrays"
            ) from None

    def _code(self) -> str:
        """How the process ended, if not by itself."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        return f" (exit code {code})" if (code := self._process.returncode) else ""

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(handle: str, site: str, file: str, args: str, transfer: str) -> None:
    """The process: the script on a thread of its own, questions and answers, by the file ``handle``, on this one."""
    from nvflare.apis.fl_constant import FLMetaKey
    from nvflare.app_common.executors.task_script_runner import TaskScriptRunner
    from nvflare.app_common.utils.fl_model_utils import FLModelUtils
    from nvflare.client.api_spec import CLIENT_API_KEY
    from nvflare.client.config import ConfigKey, ExchangeFormat
    from nvflare.client.in_process.api import TOPIC_LOCAL_RESULT, InProcessClientAPI
    from nvflare.fuel.data_event.data_bus import DataBus

    from fedmerit.engines.nvflare.client_script import POLL, WORK, question_model, read_answer

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
