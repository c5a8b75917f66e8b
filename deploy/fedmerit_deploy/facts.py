"""The facts that a site tells of its machine when an admin asks how the federation is: `LISTED`, and nothing else.

Versions, room, the clock, the kind of the last error, and counts in bins: no paths, no file names, no patient. Both
ends hold every answer against the list. The hospital hides what it does not want to tell by ``hidden`` in its manifest.
"""

import re
import shutil
import time
from bisect import bisect
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

from cryptography import x509
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.resource_managers.gpu_resource_manager import GPUResourceManager
from nvflare.fuel.utils.gpu_utils import use_nvidia_smi

from fedmerit.errors import BadInput
from fedmerit.files import read_object
from fedmerit.machine import free_memory
from fedmerit.schema.survey import LEAST
from fedmerit.version import PACKAGES, installed_versions

LARGEST = 1e12  # of a number
VERSIONS = (*PACKAGES, "python")
EDGES = (LEAST, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 100_000)  # fixed: moved ones would show a patient
BINS = (*(f"{low} to {high - 1}" for low, high in pairwise(EDGES)), f"{EDGES[-1]} or more")
GIB = 2**30
ERROR_KIND = re.compile(rb"(?:\w+\.)*(\w+)(?:: |$)")  # begins what follows the frames of a traceback
STALE = 600.0  # seconds after which a note of a batch is that of a training that was ended
TAIL = 1 << 16  # bytes of a log in which its last error is


def _text(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and bool(re.fullmatch(pattern, value, re.ASCII))


def _is_day(value: Any) -> bool:
    with suppress(TypeError, ValueError):
        return bool(str(date.fromisoformat(value)) == value)
    return False


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LARGEST


LISTED: Mapping[str, Callable[[Any], bool]] = {  # by fact, whether a value may leave
    **dict.fromkeys(VERSIONS, _text(r"[\w.+\-]{1,60}|not installed")),
    "gpu": _text(r"[\w .()/+,\-]{0,200}"),
    **dict.fromkeys(("disk", "memory"), _is_amount),  # GiB free
    "clock": _is_amount,  # seconds since 1970
    "certificate": _is_day,  # its last day
    "task": _text(r"[\w.\-]{1,60}"),
    **dict.fromkeys(("patients", "slices"), _text("|".join(BINS))),
    "batch": _text(r"\d{1,9} of \d{1,9}"),  # of the training at work
    "last_error": _text(r"([A-Za-z_]\w{0,60} \d{4}-\d\d-\d\d \d\d:\d\d UTC)?"),
}


def clear_facts(facts: Mapping[str, Any], hidden: Collection[str] = ()) -> dict[str, Any]:
    """Return the facts that are as listed and not hidden; numbers with one decimal.

    Nothing is returned if something unknown is to be hidden: a misspelt name must not let a fact out.
    """
    if not set(hidden) <= set(LISTED):
        return {}
    return {
        name: round(facts[name], 1) if isinstance(facts[name], float) else facts[name]
        for name, may_leave in LISTED.items()
        if name in facts and name not in hidden and may_leave(facts[name])
    }


def count_bin(count: int) -> str:
    """Return the bin that a count of patients or slices is in; "", which does not leave, below the first bin."""
    return BINS[place - 1] if (place := bisect(EDGES, count)) else ""


class SiteFacts(GPUResourceManager):
    """A manager of GPUs for NVFlare, of which FedMerit's jobs ask for none; its report has the site's facts."""

    def report_resources(self, fl_ctx: FLContext) -> dict[str, Any]:
        """Return the facts that the site's manifest does not hide, by name."""
        return read_facts(Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_ROOT)))


def read_facts(kit: Path) -> dict[str, Any]:
    """Return the facts of this machine and the site's ``kit`` that may leave."""
    from fedmerit.site.policy import MANIFEST, read_manifest_file  # an admin need not load PyTorch

    manifest = read_manifest_file(kit / "local" / MANIFEST)
    facts = {
        **installed_versions(),
        **_read_counts(Path(manifest.site_folder)),
        "gpu": ", ".join((use_nvidia_smi("name") or [])[1:]),
        "disk": shutil.disk_usage(kit).free / GIB,
        "memory": free_memory() / GIB,
        "clock": time.time(),
        "last_error": last_error(kit),
    }
    with suppress(OSError):  # the training may end at this moment
        facts["batch"] = batch_at_work(kit)
    with suppress(OSError, ValueError):
        certificate = x509.load_pem_x509_certificate((kit / "startup" / "client.crt").read_bytes())
        facts["certificate"] = f"{certificate.not_valid_after_utc:%Y-%m-%d}"
    return clear_facts(facts, manifest.hidden)


def _read_counts(site_folder: Path) -> Mapping[str, Any]:
    """Return the task of the site folder, and the bins of its patients and slices unless patients are too few."""
    with suppress(BadInput, OSError, KeyError, TypeError, ValueError, AttributeError):
        info = read_object(site_folder / "site.json")
        counts = list(info["counts"].values())
        patients, slices = (count_bin(sum(int(one[name]) for one in counts)) for name in ("patients", "slices"))
        return {"task": info["task"], **({"patients": patients, "slices": slices} if patients else {})}
    return {}


def batch_at_work(kit: Path) -> str:
    """Return the batch of a training of the last minutes, and how many it has; "" if none is at work."""
    from fedmerit.trainers.training_checkpoint import PROGRESS

    notes = [path for path in kit.glob(f"runs/*/sites/*/{PROGRESS}") if time.time() - path.stat().st_mtime < STALE]
    return notes[0].read_text() if notes else ""


def last_error(kit: Path) -> str:
    """Return the kind of the last error in the site's logs of runs, and its time; "" if there is none."""
    from fedmerit.engines.site_errors import ERRORS, TRACEBACK

    logs = [(path.stat().st_mtime, path) for path in kit.glob(f"runs/*/sites/*/{ERRORS}")]
    if not logs:
        return ""
    when, path = max(logs)
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        lines = file.read().splitlines()
    # lines after the kind are of the error's text, which may name a patient
    begin = max((place for place, line in enumerate(lines) if line == TRACEBACK.encode()), default=len(lines))
    match = ERROR_KIND.match(next((line for line in lines[begin + 1 :] if not line.startswith(b" ")), b""))
    kind = match[1].decode() if match else "error"
    return f"{kind} {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(when))}"
