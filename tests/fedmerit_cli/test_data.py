"""`fedmerit data`: partition, shrink, survey; the partitions themselves are tested with what it calls."""

import json
from typing import get_args

import numpy as np
import pandas as pd
import pytest

from fedmerit.files import sha256
from fedmerit.trainers.monai_trainer.data import open_sites
from fedmerit.wire import survey
from fedmerit_cli.data import FEWEST, By, Classes, NoiseRule
from fedmerit_data.downsampling import block_means
from fedmerit_data.partition import partition
from fedmerit_data.partitioning import scheme
from fedmerit_data.partitioning.label_noise import RULES
from fedmerit_data.partitioning.scheme import Scheme


def checksums(folder):
    return {path.relative_to(folder): sha256(path) for path in folder.rglob("*") if path.is_file()}


def test_help_offers_the_schemes_classes_and_rules_that_there_are():
    assert get_args(By) == tuple(scheme.SCHEMES)
    assert get_args(Classes) == tuple(scheme.CLASSES)
    assert get_args(NoiseRule) == tuple(RULES)


def test_the_command(fedmerit, sites, tmp_path):
    options = ("--by", "powerlaw", "--exponent", 1, "--seed", 2, "--label-noise", "site-1=0.5,site-3=1")
    given = ("--out", tmp_path / "out", "--into", 3, *options, "--noise-rule", "invert")
    result = fedmerit("data", "partition", sites, *given)
    assert result.exit_code == 0, result.output
    assert f"3 sites in {tmp_path / 'out'}" in result.output
    scheme = Scheme("powerlaw", 3, exponent=1, seed=2)
    partition(sites, tmp_path / "same", scheme, label_noise={"site-1": 0.5, "site-3": 1}, noise_rule="invert")
    assert checksums(tmp_path / "out") == checksums(tmp_path / "same")


@pytest.mark.parametrize(
    ("given", "scheme", "options"),
    [
        (("--by", "dirichlet", "--alpha", 3, "--classes", "size"), {"alpha": 3.0, "classes": "size"}, {}),
        (("--by", "imbalanced", "--kappa", 0.3, "--holders", 2), {"kappa": 0.3, "holders": 2}, {}),
        (
            ("--by", "uniform", "--outlier", "site2", "--outlier", "site3", "--inverted", "site3"),
            {"outlier": ("site2", "site3")},
            {"inverted": ["site3"]},
        ),
        (
            ("--by", "uniform", "--duplicate", "site-1", "--duplicate", "site-2", "--split-site", "site-3"),
            {},
            {"duplicate": ["site-1", "site-2"], "split_site": ["site-3"]},
        ),
    ],
)
def test_every_option_reaches_the_partition(fedmerit, sites, tmp_path, monkeypatch, given, scheme, options):
    asked = []
    monkeypatch.setattr(
        "fedmerit_data.partition.partition", lambda *given, **more: asked.append((given, more)) or [sites]
    )
    monkeypatch.setattr("fedmerit_cli.printing.print_sites", lambda root, count: None)
    result = fedmerit("data", "partition", sites, "--out", tmp_path / "out", "--into", 4, *given)
    assert result.exit_code == 0, result.output
    ((called, more),) = asked
    assert called == (sites, tmp_path / "out", Scheme(given[1], 4, **scheme))
    lists: dict[str, list[str]] = {"duplicate": [], "split_site": [], "inverted": []}
    more |= {name: list(more[name]) for name in lists}
    assert more == {"label_noise": {}, "noise_rule": "shift", **lists} | options


@pytest.mark.parametrize("noise", ["site-1", "=0.5", "site-1=2", "site-1=nan", "site-1=0.5,site-1=0.2"])
def test_the_command_refuses_other_noise(fedmerit, sites, tmp_path, noise):
    given = ("--out", tmp_path / "out", "--into", 2, "--by", "uniform", "--label-noise", noise)
    result = fedmerit("data", "partition", sites, *given)
    assert result.exit_code == 2
    assert "expected SITE=LEVEL" in result.output
    assert not (tmp_path / "out").exists()


def test_the_command_refuses_a_rule_without_noise(fedmerit, sites, tmp_path):
    given = ("--out", tmp_path / "out", "--into", 2, "--by", "uniform", "--noise-rule", "invert")
    result = fedmerit("data", "partition", sites, *given)
    assert result.exit_code == 2
    assert "--noise-rule invert: belongs to --label-noise; give that too" in result.output
    assert not (tmp_path / "out").exists()


def test_shrink_writes_copies_of_half_the_side(fedmerit, sites, tmp_path):
    result = fedmerit("data", "shrink", sites, "--out", tmp_path / "small")
    assert result.exit_code == 0, result.output
    assert f"3 sites in {tmp_path / 'small'}" in result.output
    for site, small in zip(open_sites(sites), open_sites(tmp_path / "small"), strict=True):
        assert small.image_size == (16, 16)
        image = np.array(small.cases("testing")[0].image)
        np.testing.assert_array_equal(image, block_means(site.cases("testing")[0].image, 2).astype(np.float32))
    refused = fedmerit("data", "shrink", sites, "--out", tmp_path / "other", "--by", 3)
    assert refused.exit_code == 2
    assert "cannot be downsampled by 3" in " ".join(refused.stderr.split())
    assert not (tmp_path / "other").exists()


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
