"""Seconds of FedMerit beside NVFlare: a FedCE round on the engines, and a server's work on a round's updates."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedmerit.child_processes import python_command
from fedmerit.contract.capabilities import capabilities
from fedmerit.contract.method import Layout, Method, Reports
from fedmerit.contract.vectors import gram
from fedmerit.engines import runs
from fedmerit.errors import BadInput
from fedmerit.evidence.digests import digest
from fedmerit.methods.registry import METHODS
from fedmerit.schema.site_folder import open_sites
from fedmerit.server.round_updates import measure_updates, rows
from fedmerit_lab.benchmarks.benchmark import Benchmark, Measure, bars, timed
from fedmerit_lab.benchmarks.measured_command import measure
from fedmerit_lab.benchmarks.nvflare_peer import aggregate

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
    figures = {
        f"speed-{name}": bars(benchmark.table, quantity, title)
        for name, quantity, title in (
            ("seconds", "seconds per round", "seconds per round"),
            ("memory", "memory, PSS [GB]", "memory of all processes, PSS [GB]"),
        )
    }
    benchmark.write(out, figures)
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


OUTPUT_LAYER = 100  # parameters of a network's last layer, about


def aggregation(
    out: Path, methods: Sequence[str], sites: int, parameters: int, repetitions: int, on_case: Any
) -> Benchmark:
    """Measure each method's round and the server's other work on random updates.

    Raises:
        BadInput: an unknown method, or one that needs more than updates.
    """
    chosen = {name: _method(name) for name in methods}
    updates = torch.randn(sites, parameters, generator=torch.Generator().manual_seed(0))
    model = torch.zeros(parameters)
    by_name = [{"weight": update} for update in updates.unbind()]
    products, present = gram(updates), torch.ones(sites, dtype=torch.bool)
    shares = torch.full((sites,), 1 / sites, dtype=torch.float64)
    last = min(OUTPUT_LAYER, parameters)
    layout = Layout.of(parameters - last, last)
    cases: dict[str, Measure] = {
        "read once": timed(lambda: updates.sum()),
        "stack": timed(lambda: rows(updates.unbind(), parameters)),
        "Gram matrix": timed(lambda: gram(updates)),
        "evidence": timed(lambda: measure_updates(updates, products, shares, present, model)),
        "digests": timed(lambda: [digest(update) for update in updates]),
    }
    for name, method in chosen.items():
        values = {asked: torch.full((sites,), 0.5, dtype=torch.float64) for asked in method.asks}
        reports = Reports(torch.ones(sites, dtype=torch.float64), present, values, products=products)
        state = method.start(model, sites, layout)
        state, _ = method.round(state, updates, reports)  # the second round: in the first there is less to do
        cases[f"{name}.round"] = timed(
            lambda method=method, state=state, reports=reports: method.round(  # type: ignore[misc]
                state, updates, reports
            )
        )
    cases["NVFlare's FedCE aggregator"] = timed(lambda: aggregate(by_name))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        benchmark = Benchmark("aggregation", {"methods": list(methods), "sites": sites, "parameters": parameters})
        benchmark.measure(cases, repetitions, on_case)
    finally:
        torch.set_num_threads(threads)
    benchmark.write(out, {"aggregation": bars(benchmark.table, "seconds", "seconds, one thread")})
    return benchmark


def _method(name: str) -> Method:
    if name not in METHODS:
        raise BadInput(f"--methods {name}: unknown; there are {', '.join(METHODS)}")
    method = METHODS[name]()
    can = capabilities(method)
    if can.candidates or can.peers or can.neurons:
        raise BadInput(
            f"--methods {name}: needs more than updates for a round; measure it with `fedmerit lab bench speed`"
        )
    return method
