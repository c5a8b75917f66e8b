"""What sites contribute, taken from a finished run: by the commands run, export and compare."""

import re

import pytest

from fedmerit.engines.given_contributions import read_contributions
from fedmerit.errors import BadInput
from fedmerit.schema.results import read_results
from fedmerit.schema.run_info import read_run
from fedmerit.server.checkpoint import is_finished

NAMES = ["site1", "site2", "site3"]


@pytest.fixture(scope="module")
def alone(trained, server_sites_data):
    """Each site on its own, for two rounds: never change it."""
    return trained(method="standalone", sites=server_sites_data, rounds=2)


@pytest.fixture(scope="module")
def dice(alone):
    """Mean validation Dice of the final models by site."""
    rows = read_results(alone).query("split == 'validation' and quantity == 'dice' and round == 2")  # the final models'
    return {site: float(rows.loc[rows["site"] == site, "value"].mean()) for site in NAMES}


def test_of_a_standalone_run_it_is_the_last_validation_dice(alone, dice):
    assert read_contributions(alone, NAMES) == dice
    assert read_contributions(alone, ["site3", "site1"]) == {site: dice[site] for site in ("site3", "site1")}


def test_of_another_run_it_is_the_last_reputation(trained):
    run = trained(method="cgsv", rounds=2)
    rows = read_results(run).query("quantity == 'reputation' and round == 1")
    assert read_contributions(run, NAMES) == dict(zip(rows["site"], rows["value"], strict=True))


@pytest.mark.parametrize(
    ("changes", "names", "told"),
    [
        ({}, ["site1", "site9"], "no validation Dice of site9; it has that of site1"),
        ({"method": "rr", "rounds": 1}, NAMES, "method rr says nothing of contributions"),
        (None, NAMES, "not finished"),
    ],
)
def test_a_run_that_does_not_say_is_refused(trained, alone, tmp_path, changes, names, told):
    """An empty dict: `alone`; None: a run that is not finished."""
    run = trained(**changes) if changes else alone if changes == {} else tmp_path
    if changes is None:
        (tmp_path / "run.json").write_text('{"method": "standalone", "rounds": 3}')
    with pytest.raises(BadInput, match=re.escape(told)):
        read_contributions(run, names)


@pytest.mark.slow
def test_run_takes_them_and_can_be_resumed_with_them(
    fedmerit, options, alone, dice, server_sites_data, tmp_path, monkeypatch
):
    given = ("--contributions", alone)
    run = tmp_path / "run"
    result = fedmerit("run", "--out", run, *options(method="fedsac", sites=server_sites_data, rounds=1), *given)
    assert result.exit_code == 0, result.output
    assert read_run(run)["parameters"]["contributions"] == list(dice.values())
    rows = read_results(run).query("quantity == 'contribution'")
    assert dict(zip(rows["site"], rows["value"], strict=True)) == dice
    result = fedmerit(
        "run", "--resume", "--out", run, *given, "--set", "architecture=unet", "--set", "width=4", "--set", "depth=3"
    )
    assert result.exit_code == 0, result.output
    result = fedmerit("run", "--resume", "--out", run, *given, "--set", "contributions=1,1,1")
    assert result.exit_code == 2
    assert "give them once" in result.stderr
    monkeypatch.setattr("fedmerit_cli.printing.run_with_progress", lambda folder: None)  # what is created is enough
    monkeypatch.setattr("fedmerit_cli.printing.print_runs", lambda folders: None)
    only = options(method="fedsac", sites=server_sites_data, rounds=1, only="site1,site3")
    result = fedmerit("run", "--out", tmp_path / "only", *only, *given)
    assert result.exit_code == 0, result.output
    assert read_run(tmp_path / "only")["parameters"]["contributions"] == [dice["site1"], dice["site3"]]


@pytest.mark.slow
def test_compare_takes_them_from_training_alone(fedmerit, server_sites_data, tmp_path):
    """Which is trained first, wherever it is named; a second time nothing is left to do."""
    out = tmp_path / "out"
    settings = [word for one in ("architecture=unet", "width=4", "depth=3") for word in ("--set", one)]
    given = ("--sites", server_sites_data, "--rounds", 2, "--engine", "local", *settings)
    methods = "fedsac,fedsac:standalone_rounds=1,standalone"
    command = ("compare", "--out", out, "--methods", methods, *given)
    result = fedmerit(*command)
    assert result.exit_code == 0, result.output
    assert all(is_finished(out / name, 2) for name in ("standalone_seed0", "fedsac_seed0"))
    expected = read_contributions(out / "standalone_seed0", NAMES)
    assert read_run(out / "fedsac_seed0")["parameters"]["contributions"] == list(expected.values())
    own = next(path for path in out.glob("fedsac*standalone*") if path.is_dir())
    assert read_run(own)["parameters"]["contributions"] == []
    rows = [
        line.split()[0] for line in result.output.partition("Dice [%]")[2].splitlines() if " ± " in line or "." in line
    ]
    assert rows.index("fedsac") < rows.index("standalone")
    before = (out / "fedsac_seed0/results.csv").read_bytes()
    assert fedmerit(*command).exit_code == 0
    assert (out / "fedsac_seed0/results.csv").read_bytes() == before
