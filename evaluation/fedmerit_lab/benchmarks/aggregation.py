"""Seconds of a server's work on a round's updates, of only reading them, and of NVFlare's aggregator; one thread."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fedmerit.contract.capabilities import capabilities
from fedmerit.contract.method import Layout, Method, Reports
from fedmerit.contract.vectors import gram
from fedmerit.errors import BadInput
from fedmerit.evidence.digests import digest
from fedmerit.methods.registry import METHODS
from fedmerit.server.round_updates import measure_updates, rows
from fedmerit_lab.benchmarks.benchmark import Benchmark, Measure, bars, timed
from fedmerit_lab.benchmarks.nvflare_peer import aggregate

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
