"""A benchmark: interleaved repetitions, medians, ratios, files, resumption."""

import json

import pandas as pd
import pytest

from fedmerit.errors import BadInput
from fedmerit_lab.benchmarks.benchmark import Benchmark


@pytest.fixture
def measured():
    order, times = [], iter([1.0, 4.0, 2.0, 6.0, 3.0, 5.0])

    def case(name):
        def measure():
            order.append(name)
            return {"seconds": next(times), "memory": 1.0}

        return measure

    benchmark = Benchmark("example", {"sites": "S"})
    benchmark.measure({"a": case("a"), "b": case("b")}, 3)
    return benchmark, order


def test_repetitions_are_interleaved(measured):
    assert measured[1] == ["a", "b"] * 3


def test_ratios_are_of_one_repetition(measured):
    table = measured[0].ratios("seconds", "a").set_index("case")
    assert table.loc["a"].to_list() == [1, 1, 1]
    assert table.loc["b"].to_list() == [3.0, pytest.approx(5 / 3), 4.0]


def test_files(measured, tmp_path):
    benchmark, _ = measured
    benchmark.write(tmp_path)
    written = json.loads((tmp_path / "example.json").read_text())
    assert len(written["measured"]) == 6
    assert written["machine"]["cores"] >= 1
    assert written["machine"]["packages"]["torch"]
    assert set(pd.read_csv(tmp_path / "example.csv")["case"]) == {"a", "b"}


def test_an_interrupted_benchmark_resumes(tmp_path):
    order = []

    def case(name, broken=False):
        def measure():
            if broken:
                raise KeyboardInterrupt
            order.append(name)
            return {"seconds": float(len(order))}

        return measure

    first = Benchmark("example", {"sites": [2, 4]})
    with pytest.raises(KeyboardInterrupt):
        first.measure({"a": case("a"), "b": case("b", broken=True)}, 2, out=tmp_path / "out")
    other = Benchmark("example", {"sites": [2, 8]})
    with pytest.raises(BadInput, match=r"example-unfinished.json: begun with other settings.* another --out"):
        other.measure({"a": case("a")}, 2, out=tmp_path / "out")
    again = Benchmark("example", {"sites": [2, 4]})
    again.measure({"a": case("a"), "b": case("b")}, 2, out=tmp_path / "out")
    assert order == ["a", "b", "a", "b"]
    assert [(row["case"], row["repetition"], row["seconds"]) for row in again.rows] == [
        ("a", 0, 1.0), ("b", 0, 2.0), ("a", 1, 3.0), ("b", 1, 4.0),
    ]  # fmt: skip
    again.write(tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"example.json", "example.csv"}


def test_no_repetition():
    with pytest.raises(BadInput, match="--repetitions 0"):
        Benchmark("example", {}).measure({}, 0)
