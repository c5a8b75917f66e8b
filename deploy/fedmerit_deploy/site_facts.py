"""What a site says of its machine when an admin asks how the federation is: NVFlare's report of resources, with more.

`fedmerit_deploy.machine_facts` lists what may leave. The hospital hides what it does not want to say by ``hidden`` in
its manifest.
"""

import re
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cryptography import x509
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.resource_managers.gpu_resource_manager import GPUResourceManager
from nvflare.fuel.utils.gpu_utils import use_nvidia_smi

from fedmerit.engines.nvflare.executor import CERTIFICATE, ERRORS
from fedmerit.errors import BadInput
from fedmerit.files import read_json
from fedmerit.machine import free_memory
from fedmerit.site.policy import MANIFEST, Manifest, read_manifest_file
from fedmerit.trainers.monai.training_checkpoint import PROGRESS
from fedmerit.version import installed_versions
from fedmerit_deploy.machine_facts import clear_facts, count_bin

GIB = 2**30
KIND = re.compile(rb"^(?:\w+\.)*(\w+)(?:: |$)")  # of the last line of a traceback, its error's kind
STALE = 600.0  # seconds after which a note of a batch is of a training that was ended
TAIL = 4096  # bytes of a log in which its last error is


class SiteFacts(GPUResourceManager):
    """NVFlare's manager of a site's GPUs, of which FedMerit's jobs ask for none."""

    def report_resources(self, fl_ctx: FLContext) -> dict[str, Any]:
        """By name, what `fedmerit_deploy.machine_facts` lists and the site's manifest does not hide."""
        return read_facts(Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_ROOT)))


def read_facts(kit: Path) -> dict[str, Any]:
    """Of this machine and the site's ``kit``, as `SiteFacts.report_resources` has them."""
    manifest = read_manifest_file(kit / "local" / MANIFEST)
    facts = {
        **installed_versions(),
        **_prepared(manifest),
        "gpu": ", ".join((use_nvidia_smi("name") or [])[1:]),
        "disk": shutil.disk_usage(kit).free / GIB,
        "memory": free_memory() / GIB,
        "clock": time.time(),
        "last_error": last_error(kit),
    }
    with suppress(OSError):  # it ends now
        facts["batch"] = batch_at_work(kit)
    with suppress(OSError, ValueError):
        own = x509.load_pem_x509_certificate((kit / "startup" / CERTIFICATE).read_bytes())
        facts["certificate"] = f"{own.not_valid_after_utc:%Y-%m-%d}"
    return clear_facts(facts, manifest.hidden)


def _prepared(manifest: Manifest) -> Mapping[str, Any]:
    """Task of the site folder, and the bins of its patients and slices; only the task if patients are too few."""
    with suppress(BadInput, OSError, KeyError, TypeError, ValueError, AttributeError):
        info = read_json(Path(manifest.site_folder) / "site.json")
        counts = list(info["counts"].values())
        patients, slices = (count_bin(sum(int(one[name]) for one in counts)) for name in ("patients", "slices"))
        return {"task": info["task"], **({"patients": patients, "slices": slices} if patients else {})}
    return {}


def batch_at_work(kit: Path) -> str:
    """The batch that a training of the last minutes is at, and how many it has; "" if none is at work."""
    notes = [path for path in kit.glob(f"runs/*/sites/*/{PROGRESS}") if time.time() - path.stat().st_mtime < STALE]
    return notes[0].read_text() if notes else ""


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
