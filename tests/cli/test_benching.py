"""`fedmerit bench`: what it measures is written; timings themselves are not tested."""

import json

import pandas as pd
import pytest


def test_aggregation(fedmerit, tmp_path):
    result = fedmerit(
        "bench", "aggregation", "--out", tmp_path, "--sites", 3, "--parameters", 50_000, "--repetitions", 2
    )
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "aggregation.json").read_text())
    assert {row["case"] for row in written["measured"]} >= {"read once", "fedce.round", "NVFlare's FedCE aggregator"}
    assert all(row["seconds"] > 0 for row in written["measured"])
    assert "ratio to read once" in result.output


@pytest.mark.slow
def test_prepare(fedmerit, tmp_path):
    result = fedmerit(
        "bench", "prepare", "--out", tmp_path, "--patients", 1, "--size", 16, "--jobs", 1, "--repetitions", 2
    )
    assert result.exit_code == 0, result.output
    table = pd.read_csv(tmp_path / "preparation.csv").set_index(["case", "quantity"])["median"]
    assert list(table[:, "seconds"].index) == ["read", "decode", "reader", "prepare", "prepare, pictures"]
    assert (table > 0).all()
    assert json.loads((tmp_path / "preparation.json").read_text())["settings"]["files"] == 2 * 6
    assert "ratio to decode" in result.output
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("aggregation", "--methods", "fedci"), "needs more than updates"),
        (("aggregation", "--methods", "fedprix"), "unknown"),
        (("speed", "--sites", "S", "--cases", "fast"), "there are steps, local"),
        (("speed", "--sites", "S", "--rounds", 1), "the first is not counted"),
        (("memory", "--sites", "S", "--rounds", 3), "--rounds 3"),
        (("methods", "--sites", "S", "--methods", "fedprix"), "--methods fedprix: unknown"),
        (("methods", "--sites", "S", "--rounds", 1), "the first is not counted"),
        (("prepare", "--kind", "synthetic-fundus", "--source", "S"), "generates its files"),
        (("growth", "--sites", "1"), "--sites 1: too few"),
        (("detection", "--attacks", "sleep"), "--attacks sleep: unknown for made-up sites"),
        (("detection", "--rounds", 5), "made-up sites have 15"),
        (("detection", "--set", "lr=1", "--recipe", "unet"), "--set, --recipe: no network is trained on made-up sites"),
        (("detection", "--attacker", "site1", "--outlier", "site2"), "--attacker, --outlier: no network"),
        (("detection", "--guard", "maybe"), "expected one of on, off"),
        (("growth", "--width", "many"), "--width many: expected whole numbers"),
    ],
)
def test_bad_input(fedmerit, tmp_path, arguments, told):
    result = fedmerit("bench", *arguments, "--out", tmp_path)
    assert result.exit_code == 2, result.output
    assert told in result.stderr


@pytest.mark.slow
def test_speed_memory_and_growth(fedmerit, sites, tmp_path):
    tiny = ("--set", "architecture=unet", "--set", "depth=2", "--repetitions", 1)
    narrow = ("--set", "width=4")
    result = fedmerit(
        "bench", "speed", "--sites", sites, "--out", tmp_path, "--rounds", 2, "--cases", "steps,local,peer-1", *tiny,
        *narrow,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    table = pd.read_csv(tmp_path / "speed.csv").set_index(["case", "quantity"])["median"]
    assert (table[:, "seconds per round"] > 0).all()
    assert table["peer-1", "processes"] > 3
    result = fedmerit("bench", "memory", "--sites", sites, "--out", tmp_path, "--rounds", 10, *tiny, *narrow)
    assert result.exit_code == 0, result.output
    assert "growth [MB a round]" in set(pd.read_csv(tmp_path / "memory.csv")["quantity"])
    result = fedmerit(
        "bench", "growth", "--out", tmp_path, "--sites", "2,3", "--width", "", "--size", "", "--rounds", "", *tiny
    )
    assert result.exit_code == 0, result.output
    assert (tmp_path / "growth-sites-seconds.png").exists()


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
    played = "evaluation.benchmarks.detection_benchmark._played"
    monkeypatch.setattr(played, lambda *_: pytest.fail("played again"))
    assert fedmerit("bench", "detection", "--out", tmp_path, *asked).exit_code == 0
    other = fedmerit("bench", "detection", "--out", tmp_path, *asked, "--on-verdict", "show")
    assert other.exit_code == 2
    assert "other on_verdict" in other.stderr


@pytest.mark.slow
def test_methods(fedmerit, server_sites_data, tmp_path):
    tiny = ("--set", "architecture=unet", "--set", "width=2", "--set", "depth=2", "--repetitions", 1, "--rounds", 2)
    result = fedmerit(
        "bench", "methods", "--sites", server_sites_data, "--out", tmp_path, "--methods", "cffl,fedsac,cycle", *tiny
    )
    assert result.exit_code == 0, result.output
    table = pd.read_csv(tmp_path / "methods.csv").set_index(["case", "quantity"])["median"]
    seconds = table[:, "CPU seconds per round"]
    assert list(seconds.index) == ["fedavg", "cffl", "fedsac", "cycle"]
    assert (seconds > 0).all()
    assert "ratio to fedavg" in result.output
    assert (tmp_path / "methods.png").exists()
