"""A site's processes of jobs: one that is killed is started again, and its death ends nobody else's job.

And what a server may ask a site beside jobs: NVFlare's site looks at its authorization.json only if the server asks it
to, so a hostile server could have any file of the machine sent by a shell command, or rules and logs deleted as the
folder of a job.

NVFlare's own launcher reports a killed process, as for want of memory, as an error of the job, which its server then
ends at all sites. A new process gets the task at hand again; what the site remembers is on its disk.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobReturnCode
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle
from nvflare.private.admin_defs import Message, error_reply
from nvflare.private.defs import RequestHeader
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.client.shell_cmd import ShellCommandProcessor
from nvflare.private.fed.client.sys_cmd import ReportEnvProcessor, SysInfoProcessor
from nvflare.private.fed.client.training_cmds import DeleteRunNumberProcessor, DeployProcessor
from nvflare.utils.process_utils import ProcessAdapter

from fedmerit_deploy.kit_files import JOB

PAUSES = (2.0, 10.0, 30.0, 60.0)  # seconds before each new start; after the last the site is absent
REFUSED = (ShellCommandProcessor, ReportEnvProcessor, SysInfoProcessor)  # read files, tell a path, and the machine
STEADY = 600.0  # seconds of life after which a death counts as the first


class RestartedProcess(ProcessHandle):
    """A job's process, and the new ones that take over when it is killed.

    Args:
        start: starts a process.
        on_death: called with the signal that killed a process, and the seconds to the next; None: there is no next.
    """

    adapter: ProcessAdapter

    def __init__(self, start: Callable[[], ProcessAdapter], on_death: Callable[[int, float | None], None]):
        super().__init__(process_adapter=start())
        self._start, self._on_death = start, on_death
        self._stopped, self._starting = threading.Event(), threading.Lock()

    def wait(self) -> None:
        """Wait until a process ends by itself or by `terminate`, or was killed once too often."""
        pauses = list(PAUSES)
        while True:
            began = time.monotonic()
            self.adapter.wait()
            code = self.adapter.poll()
            if code is None or code >= 0 or self._stopped.is_set():
                return
            if time.monotonic() - began > STEADY:
                pauses = list(PAUSES)
            self._on_death(-code, pauses[0] if pauses else None)
            if not pauses or self._stopped.wait(pauses.pop(0)):
                return
            with self._starting:
                if self._stopped.is_set():
                    return
                self.adapter = self._start()

    def poll(self) -> int:
        """Return NVFlare's code of how the process ended; for a killed one the code that ends no job."""
        code = self.adapter.poll()
        return JobReturnCode.UNKNOWN if code is not None and code < 0 else int(super().poll())

    def terminate(self) -> None:
        """Kill the process, for good."""
        with self._starting:
            self._stopped.set()
        super().terminate()


class _DeployOfJob(DeployProcessor):
    """A processor that lets a request replace only the folder of a job, not one such as local/ or runs/ of the kit."""

    def process(self, req: Message, app_ctx: Any) -> Message:
        """Return NVFlare's answer; an error if the id is none of a job."""
        return super().process(req, app_ctx) if _names_job(req) else error_reply("no id of a job")


class _DeleteOfJob(DeleteRunNumberProcessor):
    """A processor that lets a request delete only the folder of a job."""

    def process(self, req: Message, app_ctx: Any) -> Message:
        """Return NVFlare's answer; an error if the id is none of a job."""
        return super().process(req, app_ctx) if _names_job(req) else error_reply("no id of a job")


def _names_job(request: Message) -> bool:
    return bool(JOB.fullmatch(str(request.get_header(RequestHeader.JOB_ID))))


class SiteLauncher(ClientProcessJobLauncher):
    """A launcher of a site's job processes for NVFlare, which starts killed ones again.

    NVFlare makes it before it listens to the server; requests of the kinds `REFUSED` then have nobody to answer them.
    """

    def __init__(self) -> None:
        super().__init__()
        replaced = (*REFUSED, DeployProcessor, DeleteRunNumberProcessor)
        kept = [one for one in ClientRequestProcessors.request_processors if not isinstance(one, replaced)]
        ClientRequestProcessors.request_processors[:] = [*kept, _DeployOfJob(), _DeleteOfJob()]

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> RestartedProcess:
        """Start the site's process of a job."""
        launch = super().launch_job

        def report(signal: int, seconds: float | None) -> None:
            then = "the site is absent from now on" if seconds is None else f"starts again in {seconds:g} seconds"
            self.logger.warning(f"a job's process was killed (signal {signal}; 9 may be for want of memory): {then}")

        return RestartedProcess(lambda: launch(job_meta, fl_ctx).adapter, report)
