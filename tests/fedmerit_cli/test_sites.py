"""`fedmerit prepare` and `fedmerit check`."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedmerit.files import read_json
from fedmerit_data.synthetic import fundus

JOBS = Path(__file__).resolve().parents[2] / "jobs"


def test_prepare_and_check(fedmerit, tmp_path, monkeypatch):
    monkeypatch.setattr(fundus, "PIXELS", fundus.PIXELS // 4)  # drawn in a fraction of the time
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


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A copy of the default job, with changes to its plan; what else it holds can be spoiled."""
    monkeypatch.setattr("fedmerit_cli.terminal.console.width", 200)

    def write(name="fedce_prostate", network=(), training=(), **plan):
        folder = shutil.copytree(JOBS / name, tmp_path / "job")
        path = folder / "app/config/config_fed_client.json"
        content = read_json(path)
        asked = content["executors"][0]["executor"]["args"]["plan"]
        asked |= plan
        asked["network"] |= dict(network)
        asked["training"] |= dict(training)
        path.write_text(json.dumps(content))
        return folder

    return write


def test_page_by_the_rules_of_a_site(fedmerit, job, sites, tmp_path):
    kit = tmp_path / "site1"
    (kit / "startup").mkdir(parents=True)
    (kit / "startup/fed_client.json").write_text("{}")
    (kit / "local").mkdir()
    manifest = {"site": "site1", "site_folder": str(sites / "site1"), "jobs": {"least_images": 16}}
    (kit / "local/fedmerit.json").write_text(json.dumps(manifest))
    result = fedmerit("check", "--plan", job(), "--kit", kit)
    assert result.exit_code == 1
    assert "least_images: the job asks for 15 different images a round; allowed here: 16 or more" in result.output


def test_page_of_a_run(fedmerit, trained):
    run = trained("batch_size=2", rounds=1)
    for path in (run, run / "run.json"):
        result = fedmerit("check", "--plan", path)
        assert result.exit_code == 1, result.output  # steps of two images, as on one machine
        refused = [line.split(": ")[1] for line in result.output.splitlines() if line.startswith("refused: ")]
        assert refused == ["least_batch"]
        assert "site1, site2, site3" in result.output


SPOILS = {
    "no such job": lambda job: shutil.rmtree(job),
    "no object": lambda job: (job / "meta.json").write_text("[]"),
    "too large": lambda job: (job / "meta.json").write_text(" " * 2**21),
    "deep": lambda job: (job / "meta.json").write_text("[" * 10**6),
    "no number": lambda job: (job / "meta.json").write_text(
        '{"name": "a", "deploy_map": {"app": []}, "min_clients": NaN}'
    ),
    "two apps": lambda job: (job / "meta.json").write_text('{"name": "a", "deploy_map": {"app": [], "app2": []}}'),
    "outside": lambda job: (job / "meta.json").write_text('{"name": "a", "deploy_map": {"../x": []}}'),
    "map of a number": lambda job: (job / "meta.json").write_text('{"name": "a", "deploy_map": 3}'),
    "other form": lambda job: (job / "app/config/config_fed_client.conf").write_text("a = 1"),
    "no training": lambda job: (job / "app/config/config_fed_client.json").write_text('{"executors": []}'),
    "no JSON": lambda job: (job / "app/config/config_fed_client.json").write_bytes(b"\xff\x00"),
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_broken_job_is_one_line(fedmerit, job, spoil):
    folder = job()
    SPOILS[spoil](folder)
    result = fedmerit("check", "--plan", folder)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "plan",
    [
        {"method": "nothing"}, {"method": []}, {"rounds": "many"}, {"rounds": 10**400}, {"network": []},
        {"training": 3}, {"parameters": None}, {"values": [["x"]]}, {"preprocessing": [1]},
        {"guard": {"guard": "\x1b[2J"}}, {"surprise": 1}
    ],
)  # fmt: skip
def test_broken_plan_is_one_line(fedmerit, job, plan):
    folder = job()
    path = folder / "app/config/config_fed_client.json"
    content = read_json(path)
    content["executors"][0]["executor"]["args"]["plan"] |= plan
    path.write_text(json.dumps(content))
    result = fedmerit("check", "--plan", folder)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert len(result.stderr.strip().splitlines()) == 1
    assert "\x1b" not in result.stderr


@pytest.mark.parametrize("where", ["method", "network", "training"])
def test_nothing_is_imported_because_a_plan_says_so(fedmerit, job, tmp_path, monkeypatch, where):
    (tmp_path / "evil_part.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Thing: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    name = "evil_part:Thing"
    changes = {"method": name} if where == "method" else {}
    parts = {"network": {"architecture": name}, "training": {"optimizer": name}}
    result = fedmerit("check", "--plan", job(**{where: parts[where]} if where in parts else {}, **changes))
    assert result.exit_code in (1, 2)
    assert "approve" in result.output or "not installed" in result.output or "no installed" in result.output
    assert not os.path.exists(tmp_path / "ran")


def test_code_that_a_job_brings_is_refused(fedmerit, job):
    folder = job()
    (folder / "app/custom").mkdir()
    result = fedmerit("check", "--plan", folder)
    assert result.exit_code == 1
    assert "code: the job asks for app/custom" in result.output


def test_check_takes_site_folders_or_a_plan(fedmerit, sites, tmp_path):
    for arguments in ((), (sites, "--plan", tmp_path), (sites, "--kit", tmp_path)):
        assert fedmerit("check", *arguments).exit_code == 2
