"""Memory of the local engine round by round: the most it takes, and what a round leaves behind."""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.benchmarks.benchmark import Benchmark, lines
from evaluation.benchmarks.measured_command import measure
from fedmerit.engines import runs
from fedmerit.errors import BadInput

SETTLED = 0.2  # of the rounds, which are left out of the slope


def memory(
    out: Path, sites: Path, method: str, rounds: int, repetitions: int, settings: Mapping[str, str], on_case: Any
) -> Benchmark:
    """Measure the process of a run after every round.

    Raises:
        BadInput: fewer rounds than a slope can be seen in.
    """
    if rounds < 10:
        raise BadInput(f"--rounds {rounds}: expected 10 or more, for a slope to be seen")
    asked = {"sites": str(sites), "rounds": rounds, "method": method, "settings": dict(settings)}
    benchmark, seen = Benchmark("memory", asked), dict[str, tuple[list[float], list[float]]]()

    def measured() -> Mapping[str, float]:
        work = out / "work" / "memory"
        shutil.rmtree(work, ignore_errors=True)
        run, ends = work / "run", work / "ends.txt"
        runs.create(run, method, sites, rounds, engine="local", settings=settings)
        used = measure([sys.executable, "-m", "evaluation.benchmarks.one_run", str(run), str(ends)], ends)
        told = [line.split() for line in ends.read_text().splitlines()]
        taken, own = ([float(words[column]) / 1e6 for words in told] for column in (1, 2))
        seen[f"repetition {len(seen)}"] = list(range(len(taken))), taken
        first = int(SETTLED * len(own))
        slope = np.polyfit(np.arange(first, len(own)), own[first:], 1)[0]
        return {**used.quantities, "growth [MB a round]": float(slope)}

    benchmark.measure({method: measured}, repetitions, on_case)
    benchmark.write(out, {"memory": lines(seen, "round", "memory of the process, PSS [MB]", log=False)})
    return benchmark
