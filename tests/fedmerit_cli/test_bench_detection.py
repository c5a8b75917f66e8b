"""`fedmerit lab bench detection`: the comparison of detectors on synthetic sites."""

import json

import pandas as pd
import pytest


@pytest.mark.slow
def test_detection_on_synthetic_sites(fedmerit, tmp_path, monkeypatch):
    asked = ("--methods", "fedavg", "--attacks", "zero update", "--seeds", "0")
    result = fedmerit("lab", "bench", "detection", "--out", tmp_path, *asked)
    assert result.exit_code == 0, result.output
    table = pd.read_csv(tmp_path / "detection.csv").set_index(["Attack", "Detector"])
    assert table.loc["zero update", "AUROC"]["guard"] == table.loc["zero update", "F1"]["guard"] == 1
    assert set(table["Seeds"]) == {1}
    written = json.loads((tmp_path / "detection.json").read_text())
    assert {row["Round"] for row in written["measured"]} == set(range(15))
    assert (tmp_path / "detection-fedavg.png").exists()
    assert (tmp_path / "tables" / "attack-rewards.csv").exists()
    trains = "fedmerit_lab.benchmarks.detection_benchmark.monitor"
    monkeypatch.setattr(trains, lambda *_: pytest.fail("trained again"))
    assert fedmerit("lab", "bench", "detection", "--out", tmp_path, *asked).exit_code == 0
    other = fedmerit("lab", "bench", "detection", "--out", tmp_path, *asked, "--on-verdict", "show")
    assert other.exit_code == 2
    assert "other on_verdict" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--attacks", "sleep"), "--attacks sleep: unknown; there are honest; zero update"),
        (("--attacker", "site9"), "holds no site site9; there are site1"),
        (("--guard", "maybe"), "expected one of on, off"),
        (("--sites", "S", "--generated", 16), "--sites, --generated: give one of both"),
        (("--on-verdict", "shrug"), "--on-verdict shrug: expected one of show, withhold, exclude"),
    ],
)
def test_bad_input(fedmerit, tmp_path, arguments, told):
    result = fedmerit("lab", "bench", "detection", *arguments, "--out", tmp_path)
    assert result.exit_code == 2, result.output
    assert told in result.stderr
