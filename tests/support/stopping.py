"""Runs that end in the middle: what SIGKILL leaves behind, without a process of its own."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedmerit.engines import runs
from fedmerit.schema.run_info import read_run
from fedmerit.server.checkpoint import is_finished


class Stop(BaseException):
    """The process ends here."""


def stop_at(run: Path, owner: Any, name: str, count: int, instead: Callable[..., object] = lambda *_: None) -> None:
    """Execute a run on the local engine up to the ``count``-th call of a function: ``stop_at(run, Site, "train", 2)``.

    ``instead`` is done instead of that call, with its arguments.
    """
    original, calls = getattr(owner, name), 0

    def stopping(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            instead(*arguments)
            raise Stop
        return original(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, stopping)
        with pytest.raises(Stop):
            runs.execute(run, lambda record: None)
    gc.collect()  # file descriptors, and with them the hold on the run folder
    assert not is_finished(run, read_run(run)["rounds"])
