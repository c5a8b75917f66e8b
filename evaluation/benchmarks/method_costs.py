"""CPU seconds of a round by method, beside FedAvg's: what a method costs, whatever else the machine does."""

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from evaluation.benchmarks.benchmark import Benchmark, Measure, bars
from fedmerit.engines import runs
from fedmerit.errors import BadInput
from fedmerit.methods.registry import METHODS

BASE = "fedavg"
SECONDS = "CPU seconds per round"
SETTINGS: Mapping[str, Mapping[str, Any]] = {  # so that the rounds after the first are those of the method proper
    "fedsac": {"importance": "taylor", "standalone_rounds": 1},
    "cycle": {"warmup": 0},
}


def method_costs(
    out: Path, sites: Path, methods: Sequence[str], rounds: int, repetitions: int, settings: Mapping[str, Any], on: Any
) -> Benchmark:
    """Measure short trainings in this process, one site at a time; a round's is the mean of all but the first.

    Args:
        out: folder of what was measured.
        sites: folder of site folders, with images set aside for the server where a method needs them.
        methods: beside `BASE`, which always is among them.
        rounds: of each training.
        repetitions: of every method, interleaved.
        settings: of all of them, beneath `SETTINGS`.
        on: called before every measurement.

    Raises:
        BadInput: an unknown method, or fewer than two rounds.
    """
    if unknown := [name for name in methods if name not in METHODS]:
        raise BadInput(f"--methods {unknown[0]}: unknown; there are {', '.join(METHODS)}")
    if rounds < 2:
        raise BadInput(f"--rounds {rounds}: expected 2 or more, as the first is not counted")
    names = list(dict.fromkeys([BASE, *methods]))
    asked = {"sites": str(sites), "methods": names, "rounds": rounds, "settings": dict(settings), "of": SETTINGS}
    benchmark = Benchmark("methods", asked)
    cases = {
        name: rounds_of(out / "work" / name, name, sites, rounds, {**settings, **SETTINGS.get(name, {})})
        for name in names
    }
    benchmark.measure(cases, repetitions, on, out)
    benchmark.write(out, {"methods": bars(benchmark.table, SECONDS, SECONDS)})
    return benchmark


class _RoundsDone(Exception):
    """What a run does after its last round is not measured, and not done."""


def rounds_of(
    work: Path, method: str, sites: Path, rounds: int, settings: Mapping[str, Any], values: Sequence[str] = ()
) -> Measure:
    """CPU seconds of a round of a training in this process, the mean of all but the first; ``values`` are observed."""

    def measured() -> Mapping[str, float]:
        shutil.rmtree(work, ignore_errors=True)
        runs.create(work, method, sites, rounds, engine="local", threads=1, settings=settings, values=values)
        ends: list[float] = []

        def note(record: Mapping[str, Any]) -> None:
            ends.append(time.process_time())
            if len(ends) == rounds:
                raise _RoundsDone

        with suppress(_RoundsDone):
            runs.execute(work, note)
        return {SECONDS: (ends[-1] - ends[0]) / (len(ends) - 1)}

    return measured
