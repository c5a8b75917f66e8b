"""`fedmerit bench detection`: detectors beside each other on made-up sites."""

import json

import pandas as pd
import pytest


@pytest.mark.slow
def test_detection_on_made_up_sites(fedmerit, tmp_path, monkeypatch):
    asked = ("--methods", "fedavg", "--attacks", "zero update", "--seeds", "0")
    result = fedmerit("bench", "detection", "--out", tmp_path, *asked)
    assert result.exit_code == 0, result.output
    table = pd.read_csv(tmp_path / "detection.csv").set_index(["Attack", "Detector"])
    assert table.loc["zero update", "AUROC"]["guard"] == table.loc["zero update", "F1"]["guard"] == 1
    assert set(table["Seeds"]) == {1}
    written = json.loads((tmp_path / "detection.json").read_text())
    assert {row["Round"] for row in written["measured"]} == set(range(15))
    assert (tmp_path / "detection-fedavg.png").exists()
    assert (tmp_path / "tables" / "paid.csv").exists()
    played = "fedmerit_lab.benchmarks.detection_benchmark._played"
    monkeypatch.setattr(played, lambda *_: pytest.fail("played again"))
    assert fedmerit("bench", "detection", "--out", tmp_path, *asked).exit_code == 0
    other = fedmerit("bench", "detection", "--out", tmp_path, *asked, "--on-verdict", "show")
    assert other.exit_code == 2
    assert "other on_verdict" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--attacks", "sleep"), "--attacks sleep: unknown for made-up sites"),
        (("--rounds", 5), "made-up sites have 15"),
        (("--set", "lr=1", "--recipe", "quick"), "--set, --recipe: no network is trained on made-up sites"),
        (("--attacker", "site1", "--outlier", "site2"), "--attacker, --outlier: no network"),
        (("--guard", "maybe"), "expected one of on, off"),
        (("--sites", "S", "--generated", 16), "--sites, --generated: give one of both"),
        (("--on-verdict", "shrug"), "--on-verdict shrug: expected one of show, withhold, exclude"),
    ],
)
def test_bad_input(fedmerit, tmp_path, arguments, told):
    result = fedmerit("bench", "detection", *arguments, "--out", tmp_path)
    assert result.exit_code == 2, result.output
    assert told in result.stderr
