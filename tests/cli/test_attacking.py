"""`fedmerit attack` and `fedmerit freeriders` with tiny real runs."""

import re

import pytest

SMALL = ("--set", "width=2", "--set", "depth=2", "--set", "residual_units=0", "--set", "augment=false")


def plain(text):
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())


def test_attack_prints_the_run_beside_the_honest_one(fedmerit, sites, tmp_path):
    given = ("--method", "fedavg", "--sites", sites, "--rounds", 2, "--jobs", 1, "--out", tmp_path, *SMALL)
    result = fedmerit("attack", "--kind", "zero", "--site", "site2", *given)
    assert result.exit_code == 0, result.output
    told = plain(result.output)
    assert "site2 beside the run in which all are honest" in told
    assert "small norm (0)" in told
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"fedavg_honest_seed0", "fedavg_zero_site2_seed0"}
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {"attack.csv", "attack.tex"}
    refused = fedmerit("attack", "--kind", "all", "--site", "site2", *given)
    assert refused.exit_code == 2
    assert "freeriders" in refused.output


def test_freeriders_prints_the_matrix_and_goes_on(fedmerit, sites, tmp_path):
    given = ("--sites", sites, "--rounds", 2, "--jobs", 1, "--out", tmp_path, "--methods", "fedavg", *SMALL)
    result = fedmerit("freeriders", "--kinds", "zero", "--riding", "site1", *given)
    assert result.exit_code == 0, result.output
    assert "2 runs, 2 to do" in plain(result.output)
    result = fedmerit("freeriders", "--kinds", "zero,duplicate", "--riding", "site1", *given)
    assert result.exit_code == 0, result.output
    told = plain(result.output)
    assert "3 runs, 1 to do" in told
    for heading in ("What riding for free gives", "AUROC", "Honest sites flagged in honest runs"):
        assert heading in told
    tables = {path.name for path in (tmp_path / "tables").glob("*.csv")}
    assert tables == {f"{name}.csv" for name in ("freeriders", "flagged", "auroc", "false-flags", "runs", "roc")}
    figures = {path.name for path in (tmp_path / "figures").iterdir()}
    assert figures == {"figure4_fedavg_zero.png", "figure7_fedavg_zero.png"}
    assert not list((tmp_path / "runs").glob("*/sites"))


@pytest.mark.parametrize(
    "command", [("attack", "--kind", "zero", "--site", "site1"), ("freeriders", "--kinds", "zero")]
)
def test_a_number_of_runs_at_a_time_is_checked_first(fedmerit, sites, tmp_path, command):
    result = fedmerit(*command, "--sites", sites, "--out", tmp_path / "out", "--jobs", -1)
    assert result.exit_code == 2
    assert "--jobs -1: expected 1 or more" in plain(result.output)
    assert not (tmp_path / "out").exists()
