"""`fedmerit prepare` and `fedmerit check`."""

import numpy as np
import pytest
from PIL import Image

from fedmerit.files import read_json


def test_prepare_and_check(fedmerit, tmp_path):
    sites = tmp_path / "sites"
    arguments = ("--out", sites, "--size", 32, "--patients", 5, "--ratios", "0.4,0.3,0.3", "--seed", 1, "--jobs", 1)
    result = fedmerit("prepare", "synthetic-fundus", *arguments, "--no-pictures")
    assert result.exit_code == 0, result.output
    assert "6 sites" in result.output
    result = fedmerit("check", sites)
    assert result.exit_code == 0
    assert "nothing wrong" in result.output
    (sites / "site2/datalist.json").unlink()
    result = fedmerit("check", sites)
    assert result.exit_code == 1
    assert "site2/datalist.json" in result.stderr


def test_prepare_names_the_site_of_a_folder_of_one_site(fedmerit, tmp_path):
    for part in ("images", "masks"):
        (tmp_path / "raw" / part).mkdir(parents=True)
        for number in range(5):
            pixels = np.random.default_rng(number).integers(0, 2, (20, 20, 3), np.uint8) * 255
            Image.fromarray(pixels if part == "images" else pixels[..., 0]).save(tmp_path / f"raw/{part}/{number}.png")
    options = ("--source", tmp_path / "raw", "--size", 16, "--jobs", 1, "--no-pictures")
    result = fedmerit("prepare", "generic", "--out", tmp_path / "sites", *options, "--site", "north")
    assert result.exit_code == 0, result.output
    assert read_json(tmp_path / "sites/north/site.json")["name"] == "north"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(("hearts",), "hearts"), (("synthetic-prostate", "--ratios", "half"), "half"), (("fundus-rois",), "--source")],
)
def test_bad_input_of_prepare(fedmerit, tmp_path, arguments, word):
    result = fedmerit("prepare", *arguments, "--out", tmp_path / "sites", "--jobs", 1)
    assert result.exit_code == 2
    assert word in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "begun"), [(("--jobs", 2), [["__main__"]]), (("--jobs", 1), []), (("--jobs", 2, "--describe"), [])]
)
def test_processes_begin_with_the_command_if_there_are_several(fedmerit, monkeypatch, tmp_path, arguments, begun):
    asked = []
    monkeypatch.setattr("fedmerit_data.preparing.case_processes.begin_processes", asked.append)
    assert fedmerit("prepare", "hearts", "--out", tmp_path / "sites", *arguments).exit_code == 2
    assert asked == begun
