"""`fedmerit lab bench aggregation`: what it measures is written; timings themselves are not tested."""

import json

import pytest


def test_aggregation(fedmerit, tmp_path):
    result = fedmerit(
        "lab", "bench", "aggregation", "--out", tmp_path, "--sites", 3, "--parameters", 50_000, "--repetitions", 2
    )
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "aggregation.json").read_text())
    assert {row["case"] for row in written["measured"]} >= {"read once", "fedce.round", "NVFlare's FedCE aggregator"}
    assert all(row["seconds"] > 0 for row in written["measured"])
    assert "ratio to read once" in result.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--methods", "fedci"), "needs more than updates"),
        (("--methods", "fedprix"), "unknown"),
    ],
)
def test_bad_input(fedmerit, tmp_path, arguments, told):
    result = fedmerit("lab", "bench", "aggregation", *arguments, "--out", tmp_path)
    assert result.exit_code == 2, result.output
    assert told in result.stderr
