"""What a method costs beside FedAvg: which runs are measured, and how."""

import pytest
from run_factory import make_sites

from fedmerit.errors import BadInput
from fedmerit.methods.registry import METHODS
from fedmerit.records.results import read_run
from fedmerit_lab.benchmarks import round_costs as module
from fedmerit_lab.benchmarks.round_costs import SETTINGS, method_costs

TINY = {"architecture": "unet", "width": "2", "depth": "2"}


def test_a_rounds_cost_is_the_mean_of_all_but_the_first(tmp_path, monkeypatch, undrawn):
    """The first round ends at 10 seconds of the process, the others 2 and 4 later: 3 a round. Then nothing is done."""
    sites, executed = make_sites(tmp_path / "sites", ("Alder", "Birch"), size=16), []

    def execute(run, on_round):
        executed.append(read_run(run))
        for end in (10.0, 12.0, 16.0, 99.0):
            monkeypatch.setattr(module.time, "process_time", lambda end=end: end)
            on_round({})
        pytest.fail("what comes after the last round was done")

    monkeypatch.setattr(module.runs, "execute", execute)
    benchmark = method_costs(tmp_path / "out", sites, ["cycle", "fedavg"], 3, 2, TINY, lambda *_: None)
    assert [run["method"] for run in executed] == ["fedavg", "cycle"] * 2  # FedAvg first, and once
    assert [run["parameters"].get("warmup") for run in executed[:2]] == [None, SETTINGS["cycle"]["warmup"]]
    assert {run["rounds"] for run in executed} == {3}
    table = benchmark.table.set_index(["case", "quantity"])["median"]
    assert table[:, "CPU seconds per round"].to_dict() == {"fedavg": 3, "cycle": 3}
    assert (tmp_path / "out" / "methods.png").exists()


def test_settings_are_of_methods_that_there_are():
    assert SETTINGS.keys() <= METHODS.keys()
    for name, settings in SETTINGS.items():
        METHODS[name](**settings)  # which refuses what it does not know


@pytest.mark.parametrize(
    ("methods", "rounds", "told"),
    [(["fedprix"], 3, "--methods fedprix: unknown"), (["fedce"], 1, "--rounds 1: expected 2 or more")],
)
def test_what_cannot_be_measured_is_refused(tmp_path, methods, rounds, told):
    with pytest.raises(BadInput, match=told):
        method_costs(tmp_path / "out", tmp_path, methods, rounds, 1, {}, lambda *_: pytest.fail("measured"))
