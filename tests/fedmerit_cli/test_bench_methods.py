"""`fedmerit lab bench methods`: what it measures is written; timings themselves are not tested."""

import pandas as pd
import pytest


@pytest.mark.slow
def test_methods(fedmerit, server_sites_data, tmp_path):
    tiny = ("--set", "architecture=unet", "--set", "width=2", "--set", "depth=2", "--repetitions", 1, "--rounds", 2)
    result = fedmerit(
        "lab",
        "bench",
        "methods",
        "--sites",
        server_sites_data,
        "--out",
        tmp_path,
        "--methods",
        "cffl,fedsac,cycle",
        *tiny,
    )
    assert result.exit_code == 0, result.output
    table = pd.read_csv(tmp_path / "methods.csv").set_index(["case", "quantity"])["median"]
    seconds = table[:, "CPU seconds per round"]
    assert list(seconds.index) == ["fedavg", "cffl", "fedsac", "cycle"]
    assert (seconds > 0).all()
    assert "ratio to fedavg" in result.output
    assert (tmp_path / "methods.png").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--sites", "S", "--methods", "fedprix"), "--methods fedprix: unknown"),
        (("--sites", "S", "--rounds", 1), "the first is not counted"),
    ],
)
def test_bad_input(fedmerit, tmp_path, arguments, told):
    result = fedmerit("lab", "bench", "methods", *arguments, "--out", tmp_path)
    assert result.exit_code == 2, result.output
    assert told in result.stderr
