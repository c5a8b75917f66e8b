"""Seconds of a FedCE round on FedMerit's engines, beside NVFlare's own FedCE."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmerit.child_processes import python_command
from fedmerit.engines import runs
from fedmerit.errors import BadInput
from fedmerit.schema.site_folder import open_sites
from fedmerit_lab.benchmarks.benchmark import Benchmark, Measure
from fedmerit_lab.benchmarks.measured_command import measure

CASES: Mapping[str, str] = {
    "steps": "forward, backward, optimiser and two validations of the same work, nothing else",
    "local": "FedMerit, local engine",
    "sim": "FedMerit on NVFlare's simulator, all sites concurrent",
    "sim-2": "the same with --threads 2",
    "peer": "NVFlare's FedCERecipe with a client after its documentation, torch's default threads",
    "peer-1": "the same with torch.set_num_threads(1)",
}


def speed(
    out: Path,
    sites: Path,
    rounds: int,
    repetitions: int,
    cases: Sequence[str],
    settings: Mapping[str, str],
    on_case: Any,
) -> Benchmark:
    """Measure `CASES`, each as a process with its child processes, for the same network, loss, optimiser and batches.

    Raises:
        BadInput: an unknown case, or fewer than two rounds.
    """
    if unknown := [case for case in cases if case not in CASES]:
        raise BadInput(f"--cases {unknown[0]}: unknown; there are {', '.join(CASES)}")
    if rounds < 2:
        raise BadInput(f"--rounds {rounds}: expected 2 or more, as the first is not counted")
    asked = {"sites": str(sites), "rounds": rounds, "cases": list(cases), "settings": dict(settings)}
    benchmark = Benchmark("speed", asked)
    measures = {case: _case(case, out, sites, rounds, settings) for case in cases}
    benchmark.measure(measures, repetitions, on_case, out)
    benchmark.write(out)
    return benchmark


def _case(case: str, out: Path, sites: Path, rounds: int, settings: Mapping[str, str]) -> Measure:
    def measured() -> Mapping[str, float]:
        work = out / "work" / case
        shutil.rmtree(work, ignore_errors=True)
        run, ends = work / "run", work / "ends.txt"
        engine = "sim" if case.startswith("sim") else "local"
        threads = {"sim": len(open_sites(sites)), "sim-2": 2}.get(case)
        chosen = {"augmentation": "none", **settings}
        runs.create(run, "fedce", sites, rounds, engine=engine, threads=threads, settings=chosen)
        if case.startswith("peer"):
            module, more = "nvflare_peer", [str(work / "nvflare"), "1" if case == "peer-1" else "0"]
        else:
            module, more = "bare_steps" if case == "steps" else "one_run", []
        command = python_command("-m", f"fedmerit_lab.benchmarks.{module}", str(run), str(ends), *more)
        return measure(command, ends).quantities

    return measured
