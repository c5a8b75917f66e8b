"""The closed list of reasons: found by kind and errno, and what helps."""

import errno
import re

import pytest
import torch

from fedmerit.errors import BadInput, Refused
from fedmerit.reasons import (
    BAD_DATA,
    DATA_CHANGED,
    DISK_FULL,
    GPU_FULL,
    LISTED,
    MEMORY_FULL,
    PATTERNS,
    REFUSED,
    SCRIPT_ANSWER,
    UNREADABLE_FILE,
    RefusedByRules,
    Remedy,
    ScriptAnswer,
    reason_of,
    remedy,
)


def raised_from(cause):
    try:
        raise RuntimeError("round failed") from cause
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "full"), DISK_FULL),
        (raised_from(OSError(errno.EDQUOT, "full")), DISK_FULL),
        (MemoryError(), MEMORY_FULL),
        (OSError(errno.ENOMEM, "memory"), MEMORY_FULL),
        (torch.OutOfMemoryError("CUDA out of memory"), GPU_FULL),
        (RuntimeError("CUDA error: out of memory"), GPU_FULL),
        (RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"), DISK_FULL),
        (raised_from(RuntimeError("unable to write to file </torch_1>: No space left on device (28)")), DISK_FULL),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."), MEMORY_FULL),
        (FileNotFoundError(errno.ENOENT, "gone"), UNREADABLE_FILE),
        (
            UnicodeDecodeError("utf-8", b"secret", 0, 1, "secret"),
            "failed with UnicodeDecodeError; the site's own log says more",
        ),
        (ScriptAnswer("secret"), SCRIPT_ANSWER),
        (
            RefusedByRules(["repeated_jobs", "studies", "studies"], "secret"),
            "refuses the job by its rules (repeated_jobs, studies); the site's own log says why",
        ),
        (Refused("asked too much", "for 7"), "asked too much"),
        (BadInput("secret.nii.gz is broken"), BAD_DATA),
        (KeyError("secret"), "failed with KeyError; the site's own log says more"),
    ],
)
def test_reason_of_an_error_is_of_the_list_and_quotes_nothing(error, reason):
    assert reason_of(error) == reason
    assert "secret" not in reason
    assert reason == "asked too much" or reason in LISTED or any(re.fullmatch(one, reason) for one in PATTERNS)


def test_remedy_of_several_sites_waits_for_hospitals_first():
    assert remedy(f"round 3: 1 of 3 (A: {DISK_FULL}; B: {REFUSED})") is Remedy.hospital
    assert remedy(f"round 3: 1 of 3 (B: {reason_of(RefusedByRules(['folds']))})") is Remedy.hospital
    assert remedy(f"round 3: 1 of 3 (A: {DATA_CHANGED})") is Remedy.hospital
    assert remedy(f"round 3: 1 of 3 (A: {DISK_FULL}; B: no reply)") is Remedy.room
    assert remedy("the server's network broke") is Remedy.again
