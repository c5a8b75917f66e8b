"""`fedmerit attack` and `fedmerit lab attacks` with tiny real runs."""

import re
import shutil

import pytest

from fedmerit.errors import BadInput


def plain(text):
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())


@pytest.fixture(scope="module")
def study(fedmerit, sites, small, tmp_path_factory):
    """One free rider and the honest run beside it: the folder, the options, what was printed. Never change it."""
    out = tmp_path_factory.mktemp("attacked") / "out"
    options = ("--sites", sites, "--rounds", 2, "--jobs", 1, *small)
    given = ("--kinds", "zero", "--riding", "site1", "--methods", "fedavg")
    result = fedmerit("lab", "attacks", *given, "--out", out, *options)
    assert result.exit_code == 0, result.output
    return out, options, plain(result.output)


@pytest.mark.slow
def test_freeriders_prints_the_matrix(study):
    out, _, told = study
    assert "2 runs, 2 to do" in told
    for heading in ("What riding for free gives", "AUROC", "Honest sites flagged in honest runs", "Rider named alone"):
        assert heading in told
    tables = {path.name for path in (out / "tables").glob("*.csv")}
    assert tables == {
        f"{name}.csv" for name in ("freeriders", "flagged", "auroc", "false-flags", "naming", "runs", "roc")
    }
    figures = {path.name for path in (out / "figures").iterdir()}
    assert figures == {"figure4_fedavg_zero.png", "figure7_fedavg_zero.png", "naming_zero.png"}


@pytest.mark.slow
def test_freeriders_goes_on(study, fedmerit, tmp_path):
    out, (done, options, _) = tmp_path / "out", study
    shutil.copytree(done, out)
    given = ("--kinds", "zero,duplicate", "--riding", "site1", "--methods", "fedavg")
    result = fedmerit("lab", "attacks", *given, "--out", out, *options)
    assert result.exit_code == 0, result.output
    assert "3 runs, 1 to do" in plain(result.output)
    assert len(list((out / "runs").iterdir())) == 3
    assert not list((out / "runs").glob("*/sites"))


def test_attack_prints_the_run_beside_the_honest_one(study, fedmerit, tmp_path):
    """Of the same runs, so that none is trained again."""
    out, (done, options, _) = tmp_path / "out", study
    shutil.copytree(done / "runs", out / "runs")
    given = ("--method", "fedavg", "--site", "site1", "--out", out, *options)
    result = fedmerit("attack", "--kind", "zero", *given)
    assert result.exit_code == 0, result.output
    told = plain(result.output)
    assert "2 runs, 0 to do" in told
    assert "site1 beside the run in which all are honest" in told
    assert "small norm (1)" in told
    assert {path.name for path in (out / "runs").iterdir()} == {"fedavg_honest_seed0", "fedavg_zero_site1_seed0"}
    assert {path.name for path in (out / "tables").iterdir()} == {"attack.csv", "attack.tex"}
    refused = fedmerit("attack", "--kind", "all", *given)
    assert refused.exit_code == 2
    assert "freeriders" in refused.output


@pytest.mark.parametrize("riding", ["site1,site1", "site1,", "site1, site1"])
def test_riders_are_named_once_each(fedmerit, sites, tmp_path, riding):
    result = fedmerit("lab", "attacks", "--riding", riding, "--sites", sites, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert f"--riding {riding}: expected names of sites such as A,B, each once" in plain(result.output)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "command", [("attack", "--kind", "zero", "--site", "site1"), ("freeriders", "--kinds", "zero")]
)
def test_a_number_of_runs_at_a_time_is_checked_first(fedmerit, sites, tmp_path, command):
    result = fedmerit(*command, "--sites", sites, "--out", tmp_path / "out", "--jobs", -1)
    assert result.exit_code == 2
    assert "--jobs -1: expected 1 or more" in plain(result.output)
    assert not (tmp_path / "out").exists()


def test_all_methods_are_those_in_which_so_many_sites_can_attack(fedmerit, own_sites, tmp_path, monkeypatch):
    shutil.rmtree(own_sites / "site3")
    asked = []

    def prepare(out, items, *further):
        asked.extend(item.method for item in items)
        raise BadInput("that is all")

    monkeypatch.setattr("fedmerit_lab.attacks.attacked_runs.prepare", prepare)
    fedmerit("lab", "attacks", "--methods", "all", "--kinds", "zero", "--sites", own_sites, "--out", tmp_path / "out")
    assert "fedavg" in asked
    assert not {"pooled", "krum"} & set(asked)
