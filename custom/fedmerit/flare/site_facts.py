"""What a site says of its machine when an admin asks how the federation is: NVFlare's report of resources, with more.

Versions, room, the clock, and the kind of the last error: nothing of images, paths or patients. The hospital hides
what it does not want to say by the argument ``hidden`` in local/resources.json.
"""

import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.app_common.resource_managers.gpu_resource_manager import GPUResourceManager

from fedmerit.flare.executor import ERRORS
from fedmerit.machine import free_memory
from fedmerit.version import installed_versions

GIB = 2**30
KIND = re.compile(rb"^(?:\w+\.)*(\w+)(?:: |$)")  # of the last line of a traceback, its error's kind
TAIL = 4096  # bytes of a log in which its last error is


class SiteFacts(GPUResourceManager):
    """NVFlare's manager of a site's GPUs, of which FedMerit's jobs ask for none.

    Args:
        hidden: names of facts that do not leave the site.
        of_gpus: NVFlare's own arguments.
    """

    def __init__(self, hidden: Sequence[str] = (), **of_gpus: Any):
        super().__init__(**of_gpus)
        self.hidden = hidden

    def report_resources(self, fl_ctx: FLContext) -> dict[str, Any]:
        """By name: versions; ``disk`` and ``memory``, GiB free; ``clock``, seconds since 1970; ``last_error``."""
        kit = Path(fl_ctx.get_engine().get_workspace().get_root_dir())
        return {name: value for name, value in read_facts(kit).items() if name not in self.hidden}


def read_facts(kit: Path) -> dict[str, Any]:
    """Of this machine and the site's ``kit``, as `SiteFacts.report_resources` has them."""
    free = {"disk": shutil.disk_usage(kit).free / GIB, "memory": free_memory() / GIB}
    rounded = {name: round(amount, 1) for name, amount in free.items()}
    return {**installed_versions(), **rounded, "clock": round(time.time(), 1), "last_error": last_error(kit)}


def last_error(kit: Path) -> str:
    """The kind of the last error in the site's own logs of runs, and when it was written; "" if there is none."""
    logs = [(path.stat().st_mtime, path) for path in kit.glob(f"runs/*/sites/*/{ERRORS}")]
    if not logs:
        return ""
    when, path = max(logs)
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        lines = [line for line in file.read().splitlines() if line and not line.startswith((b" ", b"\t"))]
    found = KIND.match(lines[-1]) if lines else None
    kind = found[1].decode() if found else "error"
    return f"{kind} {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(when))}"
