"""The cores, the memory and the instructions that this process may use: of its machine, or of its container.

Containers limit by control groups, of version 2 (``cpu.max``, ``memory.max``) or 1; a process is in a group, and
every group around that limits it too.
"""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from fedmerit.errors import BadInput

if TYPE_CHECKING:
    import torch

FREE_SHARE = 0.8  # of free memory to count on
CPUINFO = Path("/proc/cpuinfo")
BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}  # names of the instructions, of Intel and AMD, and of Arm
GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


def cores() -> int:
    """Return the cores that this process may keep busy, at least 1."""
    known = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()  # not of every system
    allowed = [float(known or 1)]
    for group in _groups("cpu"):
        quota = _numbers(group / "cpu.max")  # microseconds, in how many; "max" first if there is no limit
        quota = quota or _numbers(group / "cpu.cfs_quota_us") + _numbers(group / "cpu.cfs_period_us")
        if len(quota) == 2 and quota[0] > 0:  # -1: no limit
            allowed.append(quota[0] / quota[1])
    return max(1, int(min(allowed)))


def free_memory() -> int:
    """Return the bytes that this process may still take; files that the system holds in memory count as free."""
    free = [psutil.virtual_memory().available]
    for group in _groups("memory"):
        for limit, used, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            if (most := _numbers(group / limit)) and (taken := _numbers(group / used)):
                free.append(most[0] - taken[0] + _entry(group / "memory.stat", cache))
    return max(0, min(free))


def computes_bfloat16() -> bool:
    """Return whether the processor has instructions for bfloat16; True if the system does not say."""
    words = _text(CPUINFO).split()
    return not words or not BFLOAT16.isdisjoint(words)


def give_back_memory() -> None:
    """Return freed memory to the system, if the C library keeps it (glibc)."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def pick_device(device: str, site: str) -> "torch.device":
    """Return the torch device of a setting; `BadInput` naming the site if this machine has no such device.

    From then on cuDNN computes gradients in a fixed order, so that a run on a GPU repeats bit for bit.
    """
    import torch

    torch.backends.cudnn.deterministic = True
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(
            f"site {site}: device {device!r} cannot be used ({reason}); expected cpu, cuda, cuda:N or auto"
        ) from error
    return chosen


def _groups(controller: str) -> Iterator[Path]:
    """Return the folders of the groups around this process that may limit ``controller``, version 2 and 1."""
    for line in _text(OWN_GROUPS).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" or controller in controllers.split(","):
            root = GROUPS if number == "0" else GROUPS / controller
            own = root / path.lstrip("/")
            yield from (group for group in (own, *own.parents) if group == root or root in group.parents)


def _numbers(file: Path) -> list[int]:
    """Return the numbers in a file; none if there is no such file, or a word in it."""
    words = _text(file).split()
    return [int(word) for word in words] if all(word.lstrip("-").isdigit() for word in words) else []


def _entry(file: Path, name: str) -> int:
    """Return the number after a name in a file of ``name number`` lines; 0 if there is none."""
    return next((int(line.split()[1]) for line in _text(file).splitlines() if line.split()[0] == name), 0)


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
