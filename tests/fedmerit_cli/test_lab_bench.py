"""`fedmerit lab bench speed`: what it measures is written; timings themselves are not tested."""

import pandas as pd
import pytest


@pytest.mark.slow
def test_speed(fedmerit, sites, tmp_path):
    tiny = ("--set", "architecture=unet", "--set", "depth=2", "--set", "width=4", "--repetitions", 1)
    cases = ("--cases", "steps,local,peer-1")
    result = fedmerit("lab", "bench", "speed", "--sites", sites, "--out", tmp_path, "--rounds", 2, *cases, *tiny)
    assert result.exit_code == 0, result.output
    table = pd.read_csv(tmp_path / "speed.csv").set_index(["case", "quantity"])["median"]
    assert (table[:, "seconds per round"] > 0).all()
    assert table["peer-1", "processes"] > 3


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--sites", "S", "--cases", "fast"), "there are steps, local"),
        (("--sites", "S", "--rounds", 1), "the first is not counted"),
    ],
)
def test_bad_input(fedmerit, tmp_path, arguments, told):
    result = fedmerit("lab", "bench", "speed", *arguments, "--out", tmp_path)
    assert result.exit_code == 2, result.output
    assert told in result.stderr
