"""`fedmerit bench estimators`: what it measures is written; timings themselves are not tested."""

import pandas as pd
import pytest


@pytest.mark.slow
def test_estimators(fedmerit, tmp_path):
    tiny = ("--set", "architecture=unet", "--set", "width=2", "--set", "depth=2", "--size", 32)
    few = ("--sites", "2,3", "--values", "multi_round,leave_one_out_loss", "--repetitions", 1, "--rounds", 2)
    result = fedmerit("bench", "estimators", "--out", tmp_path, *few, *tiny)
    assert result.exit_code == 0, result.output
    table = pd.read_csv(tmp_path / "estimators.csv")
    assert list(zip(table["Sites"], table["Observed"], strict=True)) == [
        (sites, observed) for sites in (2, 3) for observed in ("nothing", "multi_round", "leave_one_out_loss")
    ]
    assert (table["CPU seconds per round"] > 0).all()


def test_bad_input(fedmerit, tmp_path):
    result = fedmerit("bench", "estimators", "--out", tmp_path, "--sites", "1,4")
    assert result.exit_code == 2, result.output
    assert "--sites" in result.stderr
