"""Seconds of a round: which command each case is, on which run."""

import sys
from types import SimpleNamespace

import pytest
from run_factory import make_sites

from fedmerit.errors import BadInput
from fedmerit.records.results import read_run
from fedmerit_lab.benchmarks import speed as module
from fedmerit_lab.benchmarks.speed import CASES, speed

TINY = {"architecture": "unet", "width": "2", "depth": "2"}


def test_every_case_is_a_command_of_its_own_on_the_same_work(tmp_path, monkeypatch, undrawn):
    sites = make_sites(tmp_path / "sites", ("Alder", "Birch", "Cedar"), size=16)
    found = {}

    def measure(command, ends):
        assert command[:2] == [sys.executable, "-m"]
        found[ends.parent.name] = (command, read_run(ends.parent / "run"))
        return SimpleNamespace(quantities={"seconds per round": float(len(found)), "memory, PSS [GB]": 0.5})

    monkeypatch.setattr(module, "measure", measure)
    benchmark = speed(tmp_path / "out", sites, 3, 1, list(CASES), TINY, lambda *_: None)
    modules = {case: command[2].removeprefix("fedmerit_lab.benchmarks.") for case, (command, _) in found.items()}
    assert modules == {"steps": "bare_steps", "local": "one_run", "sim": "one_run", "sim-2": "one_run",
                       "peer": "nvflare_peer", "peer-1": "nvflare_peer"}  # fmt: skip
    for case, (command, run) in found.items():
        work = tmp_path / "out" / "work" / case
        threads = {"peer": ["0"], "peer-1": ["1"]}.get(case)
        more = [str(work / "nvflare"), *threads] if threads else []
        assert command[3:] == [str(work / "run"), str(work / "ends.txt"), *more]
        assert (run["method"], run["rounds"], run["engine"]) == ("fedce", 3, "sim" if "sim" in case else "local")
        assert run["plan"]["training"]["augment"] is False
    assert (found["sim"][1]["threads"], found["sim-2"][1]["threads"]) == (3, 2)
    table = benchmark.table.set_index(["case", "quantity"])["median"]
    assert table[:, "seconds per round"].to_dict() == {case: place + 1 for place, case in enumerate(CASES)}
    assert {file.stem for file in (tmp_path / "out").glob("*.png")} == {"speed-seconds", "speed-memory"}


@pytest.mark.parametrize(
    ("cases", "rounds", "told"),
    [
        (["local", "fast"], 3, "--cases fast: unknown; there are steps"),
        (["local"], 1, "--rounds 1: expected 2 or more"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path, cases, rounds, told):
    with pytest.raises(BadInput, match=told):
        speed(tmp_path / "out", tmp_path, rounds, 1, cases, TINY, lambda *_: pytest.fail("measured"))
