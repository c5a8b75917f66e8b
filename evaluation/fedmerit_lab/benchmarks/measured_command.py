"""Seconds, CPU and memory of a command and all its processes, also those that leave its session."""

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psutil

from fedmerit.child_processes import child_environment
from fedmerit.errors import RunFailed

MARK = "FEDMERIT_BENCHMARK"  # environment variable that identifies the processes of a measurement
SAMPLE = 0.5  # seconds between two samples


@dataclass(frozen=True)
class Used:
    """A record of the resources of a command."""

    wall: float  # seconds
    cpu: float  # seconds of all processes, sampled every `SAMPLE` seconds
    memory: float  # bytes, the most of the sum of all processes' proportional set sizes (PSS)
    processes: int  # the most at a time
    ends: tuple[float, ...]  # seconds from the start to the end of every round

    @property
    def quantities(self) -> Mapping[str, float]:
        """The quantities of a benchmark's row: seconds of a round are the mean of all but the first."""
        rounds = len(self.ends) - 1
        return {
            "seconds per round": (self.ends[-1] - self.ends[0]) / rounds if rounds > 0 else float("nan"),
            "seconds to the first round's end": self.ends[0],
            "seconds after the last round": self.wall - self.ends[-1],
            "seconds": self.wall,
            "CPU seconds": self.cpu,
            "memory, PSS [GB]": self.memory / 1e9,
            "processes": self.processes,
        }


def measure(command: Sequence[str], ends: Path, environment: Mapping[str, str] | None = None) -> Used:
    """Run a command to its end.

    Args:
        command: what to run.
        ends: a file into which it writes a line with the time at the end of every round.
        environment: variables in addition to this process's.

    Raises:
        RunFailed: it failed or wrote no line; the message has the end of its output.
    """
    ends.unlink(missing_ok=True)
    mark, cpu, memory, most = uuid4().hex, dict[int, float](), 0.0, 0
    log = ends.with_suffix(".log")
    started = time.time()
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(command), env=child_environment({**(environment or {}), MARK: mark}), stdout=output, stderr=output
        )
    try:
        while process.poll() is None:
            taken, count = 0.0, 0
            for member in _family(mark):
                with suppress(psutil.Error):
                    times = member.cpu_times()
                    cpu[member.pid] = times.user + times.system
                    taken += member.memory_full_info().pss
                    count += 1
            memory, most = max(memory, taken), max(most, count)
            with suppress(subprocess.TimeoutExpired):
                process.wait(SAMPLE)
        wall = time.time() - started
    finally:
        left = list(_family(mark))
        for member in left:
            with suppress(psutil.Error):
                member.kill()
        psutil.wait_procs(left, timeout=10)
        process.wait()
    rounds = [float(line.split()[0]) - started for line in ends.read_text().splitlines()] if ends.exists() else []
    if process.returncode or not rounds:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise RunFailed(f"{' '.join(command)}: ended with {process.returncode} after {len(rounds)} rounds\n{last}")
    return Used(wall, sum(cpu.values()), memory, most, tuple(rounds))


def _family(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                yield process
