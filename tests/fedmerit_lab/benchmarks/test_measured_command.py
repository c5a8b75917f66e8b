"""Commands measured with what they begin."""

import sys

import pytest

from fedmerit.errors import RunFailed
from fedmerit_lab.benchmarks.measured_command import measure

PROGRAM = """
import subprocess, sys, time
busy = (
    "import time\\ndata = bytearray(80_000_000)\\nwhile time.process_time() < 0.3: pass\\n"
    "print('worked', flush=True)\\nwhile True: pass"
)
child = subprocess.Popen([sys.executable, "-c", busy], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
with open(sys.argv[1], "a") as file:
    for _ in range(3):
        print(time.time(), file=file)
        time.sleep(0.2)
"""


def test_processes_in_a_session_of_their_own_count_and_end(tmp_path):
    used = measure([sys.executable, "-c", PROGRAM, str(tmp_path / "ends.txt")], tmp_path / "ends.txt")
    assert used.processes == 2
    assert used.memory > 80e6
    assert used.cpu > 0.1  # the child's, which nobody waits for
    assert len(used.ends) == 3
    quantities = used.quantities
    assert quantities["seconds per round"] > 0.15
    assert quantities["seconds to the first round's end"] >= 0.3
    assert used.wall >= used.ends[-1]


def test_a_command_that_fails_says_why(tmp_path):
    with pytest.raises(RunFailed, match=r"(?s)ended with 1 after 0 rounds.*ZeroDivisionError"):
        measure([sys.executable, "-c", "1 / 0"], tmp_path / "ends.txt")
