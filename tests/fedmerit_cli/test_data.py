"""`fedmerit data`: survey and plan."""

import json

import pandas as pd
import pytest

from fedmerit.schema import survey
from fedmerit_cli.data import FEWEST


@pytest.fixture(scope="module")
def surveyed(fedmerit, sites, tmp_path_factory):
    out = tmp_path_factory.mktemp("survey") / "out"
    result = fedmerit("data", "survey", "--sites", sites, "--floor", 2, "--out", out)
    assert result.exit_code == 0, result.output
    return out, result.output


def test_table_csv_and_page_say_the_same(surveyed):
    out, printed = surveyed
    content = json.loads((out / "survey.json").read_text())
    table = pd.read_csv(out / "survey.csv")
    for site, one in content["sites"].items():
        for name, tally in one["tallies"].items():
            rows = table[(table["site"] == site) & (table["quantity"] == name)]
            assert rows["patients"].tolist() == tally["patients"]
            assert rows["voxels"].dropna().tolist() == tally["voxels"]
    page = (out / "survey.html").read_text()
    total = sum(one["patients"] for one in content["sites"].values())
    for text in (printed, page):
        assert str(total) in text
        assert "all sites" in text
    assert "site1 has most voxels at" in page
    assert {path.name for path in (out / "figures").iterdir()} == {"intensity.png"}
    assert {"sites.csv", "volume-prostate.csv"} <= {path.name for path in (out / "tables").iterdir()}


def test_no_number_is_below_the_floor(fedmerit, sites, tmp_path):
    result = fedmerit("data", "survey", "--sites", sites, "--floor", 3, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    patients = pd.read_csv(tmp_path / "survey.csv")["patients"]
    assert patients[patients > 0].min() >= 3
    assert (patients == 0).any()
    assert "< 3" in result.output


def test_options_of_a_survey_that_do_not_fit(fedmerit, sites, tmp_path, monkeypatch):
    monkeypatch.delenv("FEDMERIT_KIT", raising=False)
    assert "--sites or --kit" in fedmerit("data", "survey", "--out", tmp_path).stderr
    assert "from 2 on" in fedmerit("data", "survey", "--sites", sites, "--floor", 1, "--out", tmp_path).stderr
    both = ("data", "survey", "--sites", sites, "--floor", 1, "--out", tmp_path)
    assert "--sites, --kit: give only one" in fedmerit(*both, "--kit", tmp_path).stderr
    of_jobs = ("--job", "id", "--min-sites", 2, "--wait", 5)
    assert "--sites, --job, --min-sites, --wait: give only one" in fedmerit(*both, *of_jobs).stderr
    monkeypatch.setenv("FEDMERIT_KIT", str(tmp_path))  # is in the environment for other commands
    assert "from 2 on" in fedmerit(*both).stderr


def test_the_floor_offered_is_the_one_of_the_list():
    assert FEWEST == survey.LEAST
