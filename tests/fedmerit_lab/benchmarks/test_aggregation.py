"""A server's work on a round's updates: which cases are measured, and of which methods there are any."""

import json

import pytest
import torch

from fedmerit.errors import BadInput
from fedmerit_lab.benchmarks.aggregation import aggregation


def test_every_method_is_measured_beside_what_the_server_does_with_one_thread(tmp_path, undrawn):
    threads, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        benchmark = aggregation(
            tmp_path, ["fedavg", "cgsv"], 3, 1000, 2,
            lambda case, repetition: seen.append((case, repetition, torch.get_num_threads())),
        )  # fmt: skip
        assert torch.get_num_threads() == 2  # as it was
    finally:
        torch.set_num_threads(threads)
    cases = ["read once", "stack", "Gram matrix", "evidence", "digests", "fedavg.round", "cgsv.round"]
    cases.append("NVFlare's FedCE aggregator")
    assert seen == [(case, repetition, 1) for repetition in range(2) for case in cases]
    assert [row["case"] for row in benchmark.rows] == 2 * cases
    settings = json.loads((tmp_path / "aggregation.json").read_text())["settings"]
    assert settings == {"methods": ["fedavg", "cgsv"], "sites": 3, "parameters": 1000}
    assert (tmp_path / "aggregation.png").exists()


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("fedprix", "--methods fedprix: unknown; there are .*fedavg"),
        ("fedci", "needs more than updates"),  # candidates
        ("cycle", "needs more than updates"),  # peers
        ("fedsac", "needs more than updates"),  # neurons
    ],
)
def test_a_method_that_needs_more_than_updates_is_refused_before_anything_is_measured(tmp_path, method, told):
    with pytest.raises(BadInput, match=told):
        aggregation(tmp_path, ["fedavg", method], 3, 10, 1, lambda *_: pytest.fail("measured"))
    assert not list(tmp_path.iterdir())
