"""`fedmerit lab bench`: what is asked for and written. Timings themselves are not tested."""

import json
from pathlib import Path

import pandas as pd
import pytest
from tiny import flags

from fedmerit_lab.benchmarks import value_benchmark

TINY = (*flags(), "--repetitions", 1)


@pytest.fixture
def bench(fedmerit, tmp_path):
    """A benchmark into ``out``, and what it printed."""

    def run(name, *given):
        result = fedmerit("lab", "bench", name, "--out", tmp_path / "out", *given)
        assert result.exit_code == 0, result.output
        return " ".join(result.output.split())

    return run


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.mark.slow
def test_speed(bench, sites, out):
    bench("speed", "--sites", sites, "--rounds", 2, "--cases", "steps,local,peer-1", *TINY)
    table = pd.read_csv(out / "speed.csv").set_index(["case", "quantity"])["median"]
    assert (table[:, "seconds per round"] > 0).all()
    assert table["peer-1", "processes"] > 3


@pytest.mark.slow
def test_memory(bench, sites, out):
    bench("memory", "--sites", sites, "--rounds", 10, *TINY)
    assert "growth [MB a round]" in set(pd.read_csv(out / "memory.csv")["quantity"])


@pytest.mark.slow
def test_growth(bench, out):
    bench("growth", "--sites", "2,3", "--width", "", "--size", "", "--rounds", "", *TINY[:2], *TINY[4:])
    assert set(pd.read_csv(out / "growth.csv")["case"]) == {"sites 2", "sites 3"}


@pytest.mark.slow
def test_methods(bench, server_sites_data, out):
    printed = bench("methods", "--sites", server_sites_data, "--methods", "cffl,fedsac,cycle", "--rounds", 2, *TINY)
    table = pd.read_csv(out / "methods.csv").set_index(["case", "quantity"])["median"]
    seconds = table[:, "CPU seconds per round"]
    assert list(seconds.index) == ["fedavg", "cffl", "fedsac", "cycle"]
    assert (seconds > 0).all()
    assert "ratio to fedavg" in printed


@pytest.mark.slow
def test_prepare(bench, out):
    printed = bench("prepare", "--patients", 1, "--size", 16, "--jobs", 1, "--repetitions", 2)
    table = pd.read_csv(out / "preparation.csv").set_index(["case", "quantity"])["median"]
    assert list(table[:, "seconds"].index) == ["read", "decode", "reader", "prepare", "prepare, pictures"]
    assert (table > 0).all()
    assert json.loads((out / "preparation.json").read_text())["settings"]["files"] == 2 * 6
    assert "ratio to decode" in printed
    assert not (out / "work").exists()


@pytest.fixture
def asked(monkeypatch):
    """What would be trained, and what the tables would show; nothing is trained."""
    found = {"judged": [], "shown": []}

    def judge(wanted, scenario, on_done):
        found["judged"].append((wanted, scenario))
        on_done(scenario, 5)(Path("run"), None)
        return scenario

    changes = {
        "scenarios.generate": lambda *given: found.update(generated=given) or given[0],
        "value_benchmark.judge": judge,
        "leaderboard.make_entries": lambda scenario: [],
        "value_benchmark.bench_tables": lambda judged: found["shown"].append(list(judged)) or [],
    }
    for name, function in changes.items():
        monkeypatch.setattr(f"fedmerit_lab.benchmarks.{name}", function)
    monkeypatch.setattr("fedmerit_cli.printing.read_run", lambda folder: {"script": {}})  # whose steps are not known
    return found


OPTIONS = ("--estimators", "data_size", "--seeds", "4,7", "--rounds", 2, "--jobs", 1, "--set", "lr=0.1")


def test_scenarios_are_judged_in_turn_and_tables_shown_after_each(bench, out, tmp_path, asked):
    scenarios = ["noise:sites=3", "asis"]
    given = ("--scenarios", ",".join(scenarios), "--pool", tmp_path / "pool", "--draws", 30)
    assert "asis: 1 of 5 done" in bench("values", *given, *OPTIONS)
    assert [scenario for _, scenario in asked["judged"]] == scenarios
    assert asked["shown"] == [scenarios[:1], scenarios]
    assert {path.parent.name for path in out.rglob("entries.csv")} == {"noise-sites-3", "asis"}
    wanted = asked["judged"][0][0]
    assert (wanted.out, wanted.pool, wanted.rounds, wanted.draws) == (out, tmp_path / "pool", 2, 30)
    assert (list(wanted.estimators), list(wanted.seeds), wanted.settings) == (["data_size"], [4, 7], {"lr": "0.1"})
    assert "generated" not in asked


def test_without_a_pool_hospitals_are_generated_and_all_estimators_asked(bench, out, asked):
    bench("values", "--size", 32, "--patients", 9)
    assert asked["generated"] == (out / "pool", 32, 9)
    assert [scenario for _, scenario in asked["judged"]] == ["sizes:sites=4", "noise:sites=4", "duplicate:sites=4"]
    assert list(asked["judged"][0][0].estimators) == list(value_benchmark.ESTIMATORS)


@pytest.mark.slow
def test_detection_in_small_trainings(fedmerit, bench, out):
    given = ("--methods", "fedavg", "--attacks", "zero update", "--seeds", "0", "--sizes", "3", "--rounds", "4")
    bench("detection", *given)
    table = pd.read_csv(out / "tables" / "arena-detected.csv").set_index("Attack")
    assert table.loc["zero update", "3 sites [%]"] == 100
    assert (out / "tables" / "arena-rewards.csv").exists()
    other = fedmerit("lab", "bench", "detection", "--out", out, *given, "--set", "on_verdict=show")
    assert other.exit_code == 2
    assert "results with other guard;" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("speed", "--sites", "S", "--cases", "fast"), "--cases 'fast': unknown; expected one of steps, local"),
        (("memory", "--sites", "S", "--rounds", 3), "--rounds 3"),
        (("growth", "--sites", "1"), "--sites 1: too few"),
        (("growth", "--width", "many"), "--width many: expected whole numbers"),
        (("methods", "--sites", "S", "--methods", "fedprix"), "--methods 'fedprix': unknown"),
        (("prepare", "--kind", "synthetic-fundus", "--source", "S"), "generates its files"),
        (("values", "--seeds", "one"), "--seeds one: expected whole numbers"),
        (("values", "--estimators", "shap"), "--estimators 'shap': unknown"),
        (("values", "--scenarios", "noisy:sites=4"), "noisy"),
        (("detection", "--attacks", "sleep"), "--attacks sleep: unknown; there are zero update"),
        (("detection", "--sizes", "2,many"), "--sizes 2,many: expected whole numbers"),
    ],
)
def test_bad_input_before_anything_is_measured(fedmerit, out, asked, arguments, message):
    result = fedmerit("lab", "bench", *arguments, "--out", out)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())
    assert asked["judged"] == []
