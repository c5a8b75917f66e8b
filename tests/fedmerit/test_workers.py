"""Processes that workers are forked from."""

import subprocess
import sys

PROGRAM = """
import signal, sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from fedmerit.workers import begin_fork_server

def seen():
    return "colorsys" in sys.modules, signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])

if __name__ == "__main__":
    begin_fork_server(["colorsys"])
    with ProcessPoolExecutor(1, get_context("forkserver")) as pool:
        print(*pool.submit(seen).result(), *seen())
"""


def test_workers_begin_with_what_was_imported_and_deaf_to_ctrl_c(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    told = subprocess.run(
        [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=300, check=True
    )
    assert told.stdout.split() == ["True", "True", "False", "False"]
