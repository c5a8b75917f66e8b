"""Growth benchmarks: memory of the local engine over rounds; seconds and memory of a round by the size of a run."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmerit.child_processes import python_command
from fedmerit.engines import runs
from fedmerit.errors import BadInput
from fedmerit.schema.run_info import read_run
from fedmerit_lab.benchmarks.benchmark import Benchmark, Measure, lines
from fedmerit_lab.benchmarks.generated_sites import generated_sites
from fedmerit_lab.benchmarks.measured_command import measure

WARM_UP = 0.2  # of the rounds, which the slope leaves out


def memory(
    out: Path, sites: Path, method: str, rounds: int, repetitions: int, settings: Mapping[str, str], on_case: Any
) -> Benchmark:
    """Measure the process of a run after every round.

    Raises:
        BadInput: there are too few rounds for a slope.
    """
    if rounds < 10:
        raise BadInput(f"--rounds {rounds}: expected 10 or more, to fit a slope")
    asked = {"sites": str(sites), "rounds": rounds, "method": method, "settings": dict(settings)}
    benchmark, seen = Benchmark("memory", asked), dict[str, tuple[list[float], list[float]]]()

    def measured() -> Mapping[str, float]:
        work = out / "work" / "memory"
        shutil.rmtree(work, ignore_errors=True)
        run, ends = work / "run", work / "ends.txt"
        runs.create(run, method, sites, rounds, engine="local", settings=settings)
        used = measure(python_command("-m", "fedmerit_lab.benchmarks.one_run", str(run), str(ends)), ends)
        words = [line.split() for line in ends.read_text().splitlines()]
        shared, own = ([float(line[column]) / 1e6 for line in words] for column in (1, 2))
        seen[f"repetition {len(seen)}"] = list(range(len(shared))), shared
        first = int(WARM_UP * len(own))
        slope = np.polyfit(np.arange(first, len(own)), own[first:], 1)[0]
        return {**used.quantities, "growth [MB a round]": float(slope)}

    benchmark.measure({method: measured}, repetitions, on_case)
    benchmark.write(out, {"memory": lines(seen, "round", "memory of the process, PSS [MB]", log=False)})
    return benchmark


QUANTITIES = {"seconds per round": "seconds", "memory, PSS [GB]": "memory"}


@dataclass(frozen=True)
class Work:
    """The size of a run."""

    sites: int = 4
    width: int = 8
    size: int = 64
    rounds: int = 4


def growth(
    out: Path,
    axes: Mapping[str, Sequence[int]],
    method: str,
    repetitions: int,
    settings: Mapping[str, str],
    on_case: Any,
    base: Work = Work(),
    engine: str = "local",
) -> Benchmark:
    """Measure `Work` with one of its numbers changed, for each of ``axes``.

    Args:
        out: folder of what is measured.
        axes: by name of a number of `Work`, its values.
        method: of the runs.
        repetitions: of every case.
        settings: of the method, the training or the network.
        on_case: called before every measurement.
        base: the other numbers.
        engine: local, sim or poc.

    Raises:
        BadInput: a number below 1, fewer than two rounds or sites.
    """
    for axis, values in axes.items():
        for value in values:
            if value < (2 if axis in ("sites", "rounds") else 1):
                raise BadInput(f"--{axis} {value}: too few")
    asked = {"axes": dict(axes), "base": vars(base), "method": method, "engine": engine, "settings": dict(settings)}
    benchmark = Benchmark("growth", asked)
    works = {f"{axis} {value}": replace(base, **{axis: value}) for axis, values in axes.items() for value in values}
    cases = {name: _case(out, name, work, method, settings, engine) for name, work in works.items()}
    benchmark.measure(cases, repetitions, on_case, out)
    benchmark.write(out, {f"growth-{axis}-{name}": figure for axis, name, figure in _figures(benchmark, axes)})
    return benchmark


def _case(out: Path, name: str, work: Work, method: str, settings: Mapping[str, str], engine: str) -> Measure:
    def measured() -> Mapping[str, float]:
        folder = out / "work" / name.replace(" ", "-")
        shutil.rmtree(folder, ignore_errors=True)
        run, ends = folder / "run", folder / "ends.txt"
        sites = generated_sites(out, work.size, work.sites)
        chosen = {**settings, "width": str(work.width)}
        runs.create(run, method, sites, work.rounds, engine=engine, settings=chosen)
        used = measure(python_command("-m", "fedmerit_lab.benchmarks.one_run", str(run), str(ends)), ends)
        files = [file for file in (folder / "run").rglob("*") if file.is_file()]
        assert read_run(run)["rounds"] == work.rounds
        return {**used.quantities, "run folder [MB]": sum(file.stat().st_size for file in files) / 1e6}

    return measured


def _figures(benchmark: Benchmark, axes: Mapping[str, Sequence[int]]) -> list[tuple[str, str, Any]]:
    medians = benchmark.table.set_index(["quantity", "case"])["median"]
    found = []
    for axis, values in axes.items():
        for quantity, name in QUANTITIES.items():
            heights = [float(medians[quantity, f"{axis} {value}"]) for value in values]
            found.append((axis, name, lines({quantity: (list(values), heights)}, axis, quantity, log=True)))
    return found
