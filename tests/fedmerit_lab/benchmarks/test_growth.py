"""How a round grows: one number of the work is changed at a time."""

from dataclasses import dataclass

import pytest
from run_factory import make_sites

from fedmerit.errors import BadInput
from fedmerit.records.results import read_run
from fedmerit_lab.benchmarks import growth as module
from fedmerit_lab.benchmarks.growth import Work, growth

TINY = {"architecture": "unet", "depth": "2", "width": "16"}


@dataclass(frozen=True)
class Used:
    """In the place of what a command took."""

    quantities: dict


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """The commands that would be measured, with the runs that they would execute; each takes as long as its number."""
    found = []

    def measure(command, ends):
        found.append((command[1:3], read_run(ends.parent / "run"), ends))
        return Used({"seconds per round": float(len(found)), "memory, PSS [GB]": 0.5})

    def generated(out, size, number):
        names = [f"site{place:03d}" for place in range(number)]
        return make_sites(tmp_path / f"{size}px-{number}", names, size=size)

    monkeypatch.setattr(module, "measure", measure)
    monkeypatch.setattr(module, "generated_sites", generated)
    return found


def test_one_number_is_changed_at_a_time(commands, undrawn, tmp_path):
    base = Work(sites=2, width=4, size=16, rounds=2)
    axes = {"sites": [3], "width": [2, 6], "size": [32], "rounds": [5]}
    benchmark = growth(tmp_path / "out", axes, "fedavg", 1, TINY, lambda *_: None, base, "sim")
    made = [
        (len(run["sites"]), run["plan"]["network"]["width"], run["sites_folder"].split("/")[-1], run["rounds"])
        for _, run, _ in commands
    ]
    assert made == [(3, 4, "16px-3", 2), (2, 2, "16px-2", 2), (2, 6, "16px-2", 2), (2, 4, "32px-2", 2),
                    (2, 4, "16px-2", 5)]  # fmt: skip
    assert {run["engine"] for _, run, _ in commands} == {"sim"}
    assert all(command == ["-m", "fedmerit_lab.benchmarks.one_run"] for command, _, _ in commands)
    table = benchmark.table.set_index(["case", "quantity"])["median"]
    assert table["width 6", "seconds per round"] == 3
    size = sum(file.stat().st_size for file in commands[2][2].parent.joinpath("run").rglob("*") if file.is_file())
    assert table["width 6", "run folder [MB]"] == pytest.approx(size / 1e6)
    drawn = {file.stem for file in (tmp_path / "out").glob("*.png")}
    assert drawn == {f"growth-{axis}-{what}" for axis in axes for what in ("seconds", "memory")}


@pytest.mark.parametrize(("axis", "number"), [("sites", 1), ("rounds", 1), ("width", 0), ("size", 0)])
def test_too_little_work_is_refused_before_any_is_done(commands, tmp_path, axis, number):
    with pytest.raises(BadInput, match=f"--{axis} {number}: too few"):
        growth(tmp_path / "out", {axis: [4, number]}, "fedavg", 1, TINY, lambda *_: None)
    assert not commands
