"""Worker processes: forked from one that has imported what they need, and ended with their parent."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker

from fedmerit.child_processes import safe_children


def begin_fork_server(modules: Sequence[str]) -> None:
    """Start the process that workers are forked from, if it is not running; it imports ``modules`` in parallel.

    Call it early, so workers need not wait for these imports. ``__main__`` may be among them, which otherwise each
    worker imports; then a script has to guard its start.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(modules))
    with safe_children(), _ignore_ctrl_c():
        forkserver.ensure_running()


@contextmanager
def _ignore_ctrl_c() -> Iterator[None]:
    """Have processes started in here ignore Ctrl-C, since they inherit the mask: this process ends them."""
    resource_tracker.ensure_running()  # its start would lift the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent() -> None:
    """End this process as soon as its parent has ended, for whatever reason."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
