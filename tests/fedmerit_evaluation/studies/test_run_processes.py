"""What runs side by side are forked from."""

import subprocess
import sys

PROGRAM = """
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from fedmerit_evaluation.studies.run_processes import PRELOADED, begin_processes

def lacking():
    return [name for name in PRELOADED if name not in sys.modules]

if __name__ == "__main__":
    begin_processes()
    here = len(lacking())
    with ProcessPoolExecutor(1, get_context("forkserver")) as pool:
        print(here == len(PRELOADED), pool.submit(lacking).result())
"""


def test_workers_begin_with_all_that_runs_need_and_this_process_imports_none_of_it(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    told = subprocess.run(
        [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=120, check=True
    )
    assert told.stdout.split(maxsplit=1) == ["True", "[]\n"]
