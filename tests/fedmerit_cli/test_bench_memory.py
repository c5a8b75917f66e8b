"""`fedmerit lab bench memory`: what it measures is written; bytes themselves are not tested."""

import pandas as pd
import pytest


@pytest.mark.slow
def test_memory(fedmerit, sites, tmp_path):
    tiny = ("--set", "architecture=unet", "--set", "depth=2", "--set", "width=4", "--repetitions", 1)
    result = fedmerit("lab", "bench", "memory", "--sites", sites, "--out", tmp_path, "--rounds", 10, *tiny)
    assert result.exit_code == 0, result.output
    assert "growth [MB a round]" in set(pd.read_csv(tmp_path / "memory.csv")["quantity"])


def test_bad_input(fedmerit, tmp_path):
    result = fedmerit("lab", "bench", "memory", "--sites", "S", "--rounds", 3, "--out", tmp_path)
    assert result.exit_code == 2, result.output
    assert "--rounds 3" in result.stderr
