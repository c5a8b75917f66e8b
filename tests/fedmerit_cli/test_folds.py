"""Cross-validation from prepared folds to a report, with tiny real runs."""

import re

import numpy as np
import pandas as pd
import pytest
from refusals import broken_rules

from fedmerit.errors import BadInput
from fedmerit.files import read_json
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.results import read_results, read_table
from fedmerit.schema.site_folder import open_sites
from fedmerit.site.policy import JobRules, Manifest
from fedmerit_evaluation.studies import study
from fedmerit_evaluation.studies.study import find_folds

FOLDS = 3


def arguments(out, sites):
    return ("compare", "--out", out, "--sites", sites, "--folds", "--methods", "standalone,fedavg,ensemble",
            "--rounds", 1, "--engine", "local", "--jobs", 1)  # fmt: skip


@pytest.fixture(scope="module")
def compared(fedmerit, folded_sites, small, tmp_path_factory):
    """A comparison over all folds, and what it printed."""
    out = tmp_path_factory.mktemp("compared") / "out"
    result = fedmerit(*arguments(out, folded_sites), *small)
    assert result.exit_code == 0, result.output
    return out, result.output


def config_of(run):
    return RunConfiguration.from_dict(read_json(run / "run.json")["plan"])


@pytest.mark.slow
def test_every_patient_is_tested_once_by_each_method(compared, folded_sites, fedmerit):
    out, printed = compared
    reported = (
        r"3 folds, 1 seed: every patient is tested\. 95 % CI of the gain over local training .*: about \d+ points"
    )
    assert re.search(reported, " ".join(printed.split()))
    assert "6 of 6 trainings to do" in printed
    everyone = {site.name: len(site.patients_by_fold()) for site in open_sites(folded_sites)}
    for method in ("standalone", "fedavg", "ensemble"):
        tested = {name: set() for name in everyone}
        for fold in range(FOLDS):
            run = out / f"{method}_seed0_fold{fold}"
            rows = read_results(run)
            assert set(rows["fold"]) == {str(fold)}
            own = rows[(rows["split"] == "testing") & (rows["quantity"] == "dice")]
            for site, patient in zip(own["site"], own["patient"], strict=True):
                assert patient not in tested[site]
                tested[site].add(patient)
            if method != "ensemble":
                assert config_of(run).fold == fold
                assert fedmerit("verify", run).exit_code == 3
        assert {site: len(patients) for site, patients in tested.items()} == everyone
    assert read_json(out / "compare.json")["folds"] == [0, 1, 2]


@pytest.mark.slow
def test_the_report_has_intervals_over_folds(compared, fedmerit, tmp_path):
    out, _ = compared
    runs = sorted(path.parent for path in out.glob("*/run.json"))
    result = fedmerit("report", *runs, "--out", tmp_path / "report.html", "--no-images")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "report.html").read_text()
    assert "over 3 folds" in page
    assert "only one seed" not in page
    assert "run incomplete" not in page
    assert "One seed:" not in page
    assert "seeds 0, 0" not in page


@pytest.mark.slow
def test_the_same_command_resumes(compared, folded_sites, small, fedmerit):
    out, printed = compared
    again = fedmerit(*arguments(out, folded_sites), *small)
    assert again.exit_code == 0, again.output
    assert "trainings to do" not in again.output
    assert again.output.partition("Table 1")[2] == printed.partition("Table 1")[2]


@pytest.mark.slow
def test_engines_train_the_same_fold(compared, folded_sites, small, fedmerit, assert_same_run, tmp_path):
    out, _ = compared
    result = fedmerit("run", "--out", tmp_path / "sim", "--sites", folded_sites, "--fold", 2, "--method", "fedavg",
                      "--rounds", 1, "--engine", "sim", "--threads", 2, "--set", "guard=off", *small)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert_same_run(out / "fedavg_seed0_fold2", tmp_path / "sim")


@pytest.mark.slow
def test_values_over_folds(folded_sites, small, fedmerit, tmp_path):
    result = fedmerit("value", "leave-one-out", "--out", tmp_path, "--sites", folded_sites, "--folds", "--rounds", 1,
                      "--jobs", 1, *small)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert len(list((tmp_path / "runs").iterdir())) == 3 * FOLDS
    assert "9 of 9 trainings to do" in result.output
    assert "confidence interval over 3 folds" in " ".join(result.output.split())
    # by default over folds, since patients are few
    again = fedmerit("value", "unseen", "--out", tmp_path, "--sites", folded_sites, "--rounds", 1,
                     "--jobs", 1, *small)  # fmt: skip
    assert again.exit_code == 0, again.output
    assert "trainings to do" not in again.output
    table = pd.read_csv(tmp_path / "tables" / "unseen.csv").set_index("Site")
    for site, other in zip(table.index[:2], table.index[1::-1], strict=True):
        single = [read_table(run / "evaluation" / "testing-everywhere.csv")
                 for run in sorted((tmp_path / "runs").glob(f"{other}_seed0_fold*"))]  # fmt: skip
        dice = [rows[(rows["site"] == site) & (rows["quantity"] == "dice")]["value"].mean() for rows in single]
        assert table.loc[site, "Unseen [%]"] == pytest.approx(100 * np.mean(dice), abs=0.06)


def test_few_test_patients_are_cross_validated_by_default(sites, folded_sites, monkeypatch):
    assert find_folds(folded_sites, None) == find_folds(folded_sites, requested=True) == list(range(FOLDS))
    assert find_folds(folded_sites, requested=False) == find_folds(sites, None) == find_folds(None, None) == []
    monkeypatch.setattr(study, "ENOUGH", 1)
    assert find_folds(folded_sites, None) == []


def test_sites_without_folds(sites, fedmerit, tmp_path):
    result = fedmerit("compare", "--out", tmp_path, "--sites", sites, "--folds", "--methods", "fedavg")
    assert result.exit_code != 0
    assert "has no fold 0; its folds are none: `fedmerit prepare --folds 5` makes some" in result.output


@pytest.mark.parametrize(("rules", "allowed"), [({}, True), ({"folds": (1,)}, True), ({"folds": (0, 2)}, False)])
def test_a_manifest_bounds_the_folds(rules, allowed):
    network = {"in_channels": 1, "labels": ["prostate"]}
    plan = {"method": "fedavg", "task": "prostate", "rounds": 1, "seed": 0, "network": network, "fold": 1}
    manifest = Manifest(site="A", jobs=JobRules(least_images=0, **rules))
    refused = broken_rules(manifest, RunConfiguration.from_dict(plan), 2)
    assert (not refused) == allowed
    assert broken_rules(manifest, RunConfiguration.from_dict({**plan, "fold": None}), 2) == []
    with pytest.raises(BadInput, match=r"fold=-1: expected a whole number, 0 or more"):
        RunConfiguration.from_dict({**plan, "fold": -1})
