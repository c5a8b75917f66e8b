"""What benchmarks share: where their sites come from, and how they show what they measured."""

import pytest
from fedmerit_cli.bench_options import show_benchmark, sites_of, tell_case

from fedmerit_cli.terminal import console
from fedmerit_lab.benchmarks.benchmark import Benchmark

ROWS = [
    {"case": case, "repetition": repetition, "seconds": seconds, "MB": megabytes}
    for case, measured in {"base": ((2.0, 10.0), (4.0, 30.0)), "ours": ((3.0, 50.0), (10.0, 70.0))}.items()
    for repetition, (seconds, megabytes) in enumerate(measured)
]


@pytest.fixture
def told(tmp_path, capsys):
    """What is shown of two cases, measured twice, line by line, each space one."""

    def show(*given):
        show_benchmark(Benchmark("made up", {}, {"processor": "Abacus", "cores": 3}, ROWS), tmp_path, *given)
        return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line.strip()]

    return show


def test_sites_are_those_asked_for_or_generated_below_out(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "fedmerit_lab.benchmarks.generated_sites.generated_sites",
        lambda *given, **options: asked.append((given, options)) or tmp_path / "made",
    )
    assert sites_of(tmp_path / "own", tmp_path / "out", 64) == tmp_path / "own"
    assert asked == []
    assert sites_of(None, tmp_path / "out", 32, 0.2) == tmp_path / "made"
    assert asked == [((tmp_path / "out", 32), {"server_share": 0.2})]


def test_a_case_is_told_before_it_is_measured():
    with console.capture() as shown:
        tell_case(5)("local", 1)
    assert shown.get() == "2 of 5: local\n"


def test_one_quantity_and_its_ratios_within_each_repetition(told, tmp_path):
    """Medians (2 + 4) / 2 and (3 + 10) / 2; ratios 3 / 2 and 10 / 4, of which the median is 2."""
    lines = told("seconds", "base")
    assert lines[0] == "Abacus, 3 cores"
    assert "base seconds 3.000 2.000 4.000 2.000" in lines
    assert "ours seconds 6.500 3.000 10.000 2.000" in lines
    heading = lines.index("seconds, ratio to base within each repetition")
    assert "base 1.000 1.000 1.000" in lines[heading:]
    assert "ours 2.000 1.500 2.500" in lines[heading:]
    assert not any("MB" in line for line in lines)
    assert str(tmp_path) in lines[-1]


def test_all_quantities_and_no_ratio_to_a_case_that_was_not_measured(told):
    everything = told()
    assert "ours MB 60.000 50.000 70.000 2.000" in everything
    assert "ours seconds 6.500 3.000 10.000 2.000" in everything
    for lines in (everything, told("seconds"), told("seconds", "peer-1")):
        assert not any("ratio" in line for line in lines)
