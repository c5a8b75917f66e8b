"""Worker processes that do not outlive the one that began them."""

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """End this process as soon as the one that began it is gone, however it ended."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
