"""`fedmerit value` and `fedmerit power`: what they print and write; the numbers are tested with what they call."""

import pandas as pd
import pytest
from run_factory import make_run

from fedmerit.configuration.run import make_configuration


@pytest.fixture
def runs(tmp_path):
    """Two made-up runs that differ in their seeds."""
    network = {"in_channels": 1, "labels": ["prostate"]}
    plan = make_configuration("fedce", "prostate", 2, 0, network, {}).to_dict()
    return [make_run(tmp_path / f"run{seed}", seed=seed, rounds=2, plan=plan) for seed in (0, 1)]


def test_value_prints_tables_and_writes_them_and_a_figure(fedmerit, runs):
    """Made-up sites train on 40, 50, 60 and 70 images, of 220."""
    result = fedmerit("value", *runs, "--estimators", "data_size,contribution", "--draws", 20)
    assert result.exit_code == 0, result.output
    folder = runs[0] / "values"
    assert f"tables and figure: {folder}" in result.output.replace("\n", " ")
    table = pd.read_csv(folder / "tables" / "values-data-size.csv").set_index("Site")
    expected = {"Alder": 400 / 22, "Birch": 500 / 22, "Cedar": 600 / 22, "Dogwood": 700 / 22}
    assert table["Share [%]"].to_dict() == pytest.approx(expected)
    assert (folder / "tables" / "values-contribution.csv").exists()
    assert (folder / "figures" / "values.png").read_bytes().startswith(b"\x89PNG")
    assert "Pairs of sites that two estimators put in another order" in " ".join(result.output.split())
    assert fedmerit("value", *runs, "--estimators", "data_size", "--draws", 20).exit_code == 0
    assert {file.stem for file in (folder / "tables").iterdir()} == {"values-data-size"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--estimators", "shap"), "--estimators 'shap': unknown"),
        (("--estimators", "data_size,data_size"), "name each once"),
        (("--estimators", "multi_round"), "was run without --values multi_round and kept no updates"),
    ],
)
def test_what_cannot_say_it_is_named(fedmerit, runs, tmp_path, given, told):
    result = fedmerit("value", *runs, *given, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert told in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_run_without_a_plan_is_named(fedmerit, tmp_path):
    run = make_run(tmp_path / "run", rounds=2)
    result = fedmerit("value", run)
    assert result.exit_code == 2, result.exception
    assert f"{run / 'run.json'}: lacks plan; expected what `fedmerit run` wrote" in " ".join(result.stderr.split())


def test_power_by_hand(fedmerit, tmp_path):
    """Of 9/S of seeds, by Student's t, and 64/P + 36/(4 S), by 2.8016, the sum of the quantiles of .975 and .8."""
    stated = ("--seed-sd", 3, "--patient-sd", 8, "--round-sd", 6, "--rounds", 4)
    result = fedmerit("power", *stated, "--patients", "16,4,4", "--seeds", "9,2,1", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    table = pd.read_csv(tmp_path / "power.csv").set_index("Test patients a site")
    assert table.loc[4, "2 seeds [points]"] == pytest.approx((16.334**2 * 4.5 + 2.8016**2 * 20.5) ** 0.5, rel=1e-4)
    assert table.loc[16, "9 seeds [points]"] == pytest.approx((3.2009**2 * 1 + 2.8016**2 * 5) ** 0.5, rel=1e-4)
    assert table["1 seed [points]"].isna().all()
    assert (table.index.to_list(), len(table.columns)) == ([4, 16], 3)
    assert "by one seed nothing is told of others" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--patient-sd", 8), "power: give --pilot DIR, or state --seed-sd and --patient-sd"),
        (("--seed-sd", -1, "--patient-sd", 8), "--seed-sd -1: expected a standard deviation in points, 0 or more"),
        (("--seed-sd", 3, "--patient-sd", "nan"), "--patient-sd nan: expected a standard deviation in points"),
        (("--seed-sd", 3, "--patient-sd", 8, "--round-sd", "inf"), "--round-sd inf: expected a standard deviation"),
        (("--seed-sd", 3, "--patient-sd", 8, "--seeds", "0"), "--seeds 0: expected whole numbers from 1 on"),
    ],
)
def test_power_without_variances_or_numbers(fedmerit, tmp_path, given, told):
    result = fedmerit("power", *given, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert told in result.stderr
    assert not (tmp_path / "out").exists()
