"""The form of every benchmark: cases measured in turn, repeatedly; one JSON with all measurements, one table.

Repetitions are interleaved, a, b, a, b, since a machine's speed varies; ratios are within a repetition.
"""

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pandas as pd
import psutil
import torch

from fedmerit.child_processes import child_environment
from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import read_json, write_json
from fedmerit.machine import cores
from fedmerit.version import PACKAGES, package_version
from fedmerit_data.tables import write_csv
from fedmerit_evaluation.figures.tables import file_name

LEAST = 5  # repetitions of which a median is worth printing
MARK = "FEDMERIT_BENCHMARK"  # environment variable that identifies the processes of a measurement
SAMPLE = 0.5  # seconds between two samples
Measure = Callable[[], Mapping[str, float]]


@dataclass
class Benchmark:
    """A benchmark's name and options, and one row for each case and repetition.

    Args:
        name: of the files.
        settings: the options.
    """

    name: str
    settings: Mapping[str, Any]
    machine: Mapping[str, Any] = field(default_factory=lambda: describe_machine())
    rows: list[dict[str, Any]] = field(default_factory=list)

    def measure(
        self,
        cases: Mapping[str, Measure],
        repetitions: int,
        on_case: Callable[[str, int], None] = lambda *_: None,
        out: Path | None = None,
    ) -> None:
        """Measure every case once, then every case again: ``repetitions`` times.

        Args:
            cases: by name.
            repetitions: of each.
            on_case: called before every measurement.
            out: folder of the measurements until `write`, so that an interrupted benchmark resumes; None: none.

        Raises:
            BadInput: no repetition, or an unfinished benchmark there has other options or another machine.
        """
        if repetitions < 1:
            raise BadInput(f"--repetitions {repetitions}: expected 1 or more, {LEAST} for medians to print")
        if out and self._unfinished(out).exists():
            self._resume(self._unfinished(out))
        done = {(row["case"], row["repetition"]) for row in self.rows}
        for repetition in range(repetitions):
            for case, measured in cases.items():
                if (case, repetition) in done:
                    continue
                on_case(case, repetition)
                load = os.getloadavg()[0]
                self.rows.append({"case": case, "repetition": repetition, "load": load, **measured()})
                if out:
                    out.mkdir(parents=True, exist_ok=True)
                    write_json(self._unfinished(out), self._content)

    def _unfinished(self, out: Path) -> Path:
        return out / f"{self.name}-unfinished.json"

    @property
    def _content(self) -> dict[str, Any]:
        content = {"benchmark": self.name, "settings": dict(self.settings), "machine": dict(self.machine)}
        return content | {"measured": self.rows}

    def _resume(self, begun: Path) -> None:
        """Read the measurements of an interrupted command."""
        earlier = read_json(begun)
        same = ("processor", "cores", "packages", "threads")
        if earlier["settings"] != json.loads(json.dumps(dict(self.settings))) or any(
            earlier["machine"][name] != self.machine[name] for name in same
        ):
            raise BadInput(
                f"{begun}: begun with other settings, on another machine or with other versions; "
                "give the same, another --out, or delete this file to start again"
            )
        self.machine, self.rows = earlier["machine"], earlier["measured"]

    @property
    def table(self) -> pd.DataFrame:
        """The table by case and quantity: median, lowest and highest of the repetitions, and their number."""
        long = self._long
        grouped = long.groupby(["case", "quantity"], sort=False)["value"]
        return grouped.agg(median="median", least="min", most="max", repetitions="count").reset_index()

    def ratios(self, quantity: str, to: str) -> pd.DataFrame:
        """Return by case the median, lowest and highest ratio of ``quantity`` to that of case ``to``."""
        wide = pd.DataFrame(self.rows).pivot(index="repetition", columns="case", values=quantity)
        ratios = wide.div(wide[to], axis=0)
        order = list(dict.fromkeys(row["case"] for row in self.rows))
        table = pd.DataFrame({"median": ratios.median(), "least": ratios.min(), "most": ratios.max()})
        return table.loc[order].rename_axis("case").reset_index()

    @property
    def _long(self) -> pd.DataFrame:
        frame = pd.DataFrame(self.rows)
        long = frame.melt(id_vars=["case", "repetition"], var_name="quantity").dropna(subset=["value"])
        long["place"] = long["case"].map({case: place for place, case in enumerate(frame["case"].unique())})
        return long.sort_values("place", kind="stable").drop(columns="place")

    def write(self, out: Path) -> None:
        """Write ``<name>.json`` with all, and ``<name>.csv`` with `table`."""
        write_json(out / f"{self.name}.json", self._content)
        write_csv(out / f"{self.name}.csv", self.table)
        self._unfinished(out).unlink(missing_ok=True)


def play_cases(
    folder: Path,
    cases: Mapping[str, Callable[[], Any]],
    options: Mapping[str, Any],
    on_case: Callable[[str, int, int], None] = lambda case, done, total: None,
) -> list[Any]:
    """Return the result of each case as JSON holds it; those of an earlier call are read from ``folder``.

    Args:
        folder: has a file for each case, and the options.
        cases: by a description, what plays the case.
        options: all that the results depend on, except what the descriptions say.
        on_case: called before each case that is played with its description, how many are done, how many there are.

    Raises:
        BadInput: ``folder`` holds results of other options.
    """
    record, stated = folder / "options.json", json.loads(json.dumps(options))
    if record.exists() and (before := read_json(record)) != stated:
        changed = [name for name in stated if before.get(name) != stated[name]]
        raise BadInput(f"{folder}: holds results with other {', '.join(changed)}; choose another --out")
    write_json(record, stated)
    results = []
    for number, (case, play) in enumerate(cases.items()):
        file = folder / f"{file_name(case)}.json"
        if not file.exists():
            on_case(case, number, len(cases))
            write_json(file, play())
        results.append(read_json(file))
    return results


def timed(work: Callable[[], Any]) -> Measure:
    """Return seconds and CPU seconds that ``work`` takes in this process."""

    def measured() -> Mapping[str, float]:
        cpu, wall = time.process_time(), time.perf_counter()
        work()
        return {"seconds": time.perf_counter() - wall, "CPU seconds": time.process_time() - cpu}

    return measured


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


def measure_command(command: Sequence[str], ends: Path, environment: Mapping[str, str] | None = None) -> Used:
    """Run a command to its end, and measure it with all its processes, also those that leave its session.

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


def describe_machine() -> dict[str, Any]:
    """Return processor, cores, memory, GPUs, system, versions, time, and load."""
    return {
        "processor": _processor(),
        "cores": cores(),
        "memory": psutil.virtual_memory().total,
        "GPUs": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: package_version(name) for name in PACKAGES},
        "threads": os.environ.get("OMP_NUM_THREADS", "torch's default"),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "load": os.getloadavg()[0],
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
