"""Worker processes: forked from one that has imported what they need, and gone with the one that began them."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker


def begin_fork_server(modules: Sequence[str]) -> None:
    """Let the process that workers are forked from begin, if it has not, and import ``modules`` while this one goes on.

    The sooner, the better: what it imports, on a core of its own, workers need not wait for. ``__main__`` may be among
    them, which each worker would import by itself; a script has to guard its start then.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(modules))
    with _ignore_ctrl_c():
        forkserver.ensure_running()


@contextmanager
def _ignore_ctrl_c() -> Iterator[None]:
    """What is begun in here never hears Ctrl-C, since it inherits the mask: this process decides when it ends."""
    resource_tracker.ensure_running()  # its start would lift the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent() -> None:
    """End this process as soon as the one that began it is gone, however it ended."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
