"""`fedmerit lab bench prepare`: what it measures is written; timings themselves are not tested."""

import json

import pandas as pd
import pytest


@pytest.mark.slow
def test_prepare(fedmerit, tmp_path):
    result = fedmerit(
        "lab", "bench", "prepare", "--out", tmp_path, "--patients", 1, "--size", 16, "--jobs", 1, "--repetitions", 2
    )
    assert result.exit_code == 0, result.output
    table = pd.read_csv(tmp_path / "preparation.csv").set_index(["case", "quantity"])["median"]
    assert list(table[:, "seconds"].index) == ["read", "decode", "reader", "prepare", "prepare, pictures"]
    assert (table > 0).all()
    assert json.loads((tmp_path / "preparation.json").read_text())["settings"]["files"] == 2 * 6
    assert "ratio to decode" in result.output
    assert not (tmp_path / "work").exists()


def test_bad_input(fedmerit, tmp_path):
    result = fedmerit("lab", "bench", "prepare", "--kind", "synthetic-fundus", "--source", "S", "--out", tmp_path)
    assert result.exit_code == 2, result.output
    assert "generates its files" in result.stderr
