"""NVIDIA's Multi-Process Service (MPS), by which processes of a study compute on a GPU at the same time.

Without it a GPU gives each process slices of time, in which a small network leaves most of it idle.
"""

import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from fedmerit.child_processes import python_command

CONTROL = "nvidia-cuda-mps-control"  # NVIDIA's program
SERVICE = PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"  # variables by which processes find it
PROBE = "import torch; torch.zeros(1, device='cuda')"
TIMEOUT = 120.0  # seconds, of importing PyTorch beside other work
log = logging.getLogger(__name__)


@contextmanager
def shared_gpus() -> Iterator[bool]:
    """Have processes that begin in here share GPUs by MPS, where it can be started; yields whether they do.

    A service of the user's, which `PIPES` names, stays; one of ours ends with this context.
    """
    if PIPES in os.environ:
        yield True
        return
    control = shutil.which(CONTROL)
    if control is None:
        yield False
        return
    folder = tempfile.mkdtemp(prefix="mps-")
    os.environ |= dict.fromkeys(SERVICE, folder)
    fault = _begin(control)
    if fault:
        log.warning("GPUs are shared in turn, as MPS does not start: %.200s", fault)
        _end(control, folder)
        yield False
        return
    try:
        yield True
    finally:
        _end(control, folder)


def _begin(control: str) -> str:
    """Start the service, and a process that computes by it; why that failed, or an empty text."""
    for command in ([control, "-d"], python_command("-c", PROBE)):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode:
            return (done.stderr or done.stdout or f"exit code {done.returncode}").strip().splitlines()[-1]
    return ""


def _end(control: str, folder: str) -> None:
    try:
        subprocess.run([control], input="quit\n", capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("MPS could not be ended: %s", error)
    for variable in SERVICE:
        os.environ.pop(variable, None)
    shutil.rmtree(folder, ignore_errors=True)
