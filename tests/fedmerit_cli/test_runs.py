"""`fedmerit run`: what can be asked for; bad input is refused before anything is written."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from fedmerit.files import read_json, write_json
from fedmerit.schema.results import read_results
from fedmerit.schema.run_info import read_run
from fedmerit_cli import runs


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def asked(monkeypatch) -> list[tuple[Path, dict[str, Any]]]:
    """What `run` would create: every folder with its options. Nothing is created or executed."""
    found: list[tuple[Path, dict[str, Any]]] = []
    monkeypatch.setattr("fedmerit.engines.runs.create", lambda folder, **options: found.append((folder, options)))
    monkeypatch.setattr("fedmerit_cli.printing.run_with_progress", lambda folder: None)
    monkeypatch.setattr("fedmerit_cli.printing.print_cost", lambda folder: None)
    monkeypatch.setattr("fedmerit_cli.printing.print_runs", lambda folders: None)
    return found


@pytest.mark.slow
def test_local_runs_load_no_nvflare():
    code = "import sys, fedmerit.engines.runs; sys.exit('nvflare' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0


def test_a_run_says_what_it_did(fedmerit, options, sites, tmp_path, monkeypatch):
    """Paths may be relative, and links."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").symlink_to(sites)
    arguments = ["run", "--out", "runs/run", *options(sites="here", rounds=1)]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/fedmerit", *arguments])
    result = fedmerit(*arguments)
    assert result.exit_code == 0, result.output
    for word in ("site1", "site2", "site3", "Dice", "runs/run"):
        assert word in result.output
    info = read_run(tmp_path / "runs/run")
    assert info["command"].startswith("fedmerit run --out runs/run --method fedce --sites here ")
    assert info["sites_folder"] == str(sites)


@pytest.fixture
def config(tmp_path, sites):
    path = tmp_path / "run.toml"
    path.write_text(
        f"method = 'fedce'\nsites = '{sites}'\nrounds = 3\nengine = 'local'\nseed = 0\n"
        "[settings]\narchitecture = 'unet'\nwidth = 4\ndepth = 2\nresidual_units = 0\nlr = 0.1\n"
    )
    return path


def test_a_config_file_may_hold_every_option_of_settings(fedmerit, config, run, asked):
    """Beneath --set and the table of it, as on the command line; and a whole number for seconds."""
    top = "recipe = 'default'\npreset = 'fedce'\n"
    simulated = config.read_text().replace("'local'", "'sim'")
    config.write_text(f"{top}round_timeout = 60\n{simulated}on_verdict = 'exclude'\n")
    result = fedmerit("run", "--out", run, "--config", config, "--recipe", "quick")
    assert result.exit_code == 0, result.output
    expected = {"recipe": "quick", "on_verdict": "exclude", "preset": "fedce"}
    assert expected.items() <= asked[0][1]["settings"].items()
    assert not asked[0][1].keys() & expected.keys()
    assert asked[0][1]["round_timeout"] == 60


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rounds = ", ["TOML"]), ("round = 3", ["round", "rounds"]),
        ("[settings]\npatience = 3", ["'patience'", "did you mean patch?"]),
        ("[set]\nlr = 0.1", ["run.toml: unknown option set; did you mean settings?"]),
        ("settings = 3", ["run.toml: settings=3: expected a table"]), ("rounds = true", ["rounds"]),
        ("engine = 'cloud'", ["engine", "cloud"]), ("method = 3", ["method=3: expected a text"]),
        ("recipe = 'fast'", ["'fast'", "default, quick"]), ("method = 'fédavg'", ["run.toml", "TOML", "utf-8"])
    ],
)  # fmt: skip
def test_a_config_file_that_cannot_be_used(fedmerit, options, tmp_path, run, text, words):
    config = tmp_path / "run.toml"
    config.write_text(text, encoding="latin-1")
    name = text.split()[0]
    given = options(**({name: None} if name in ("rounds", "engine", "method", "sites") else {}))
    refused(fedmerit("run", "--out", run, "--config", config, *given), *words)
    assert not run.exists()


@pytest.mark.parametrize(
    ("settings", "changes", "words"),
    [
        ((), {"method": "fedavgg"}, ["'fedavgg'", "did you mean fedavg?", "cgsv"]),
        (("learning_rate=1",), {}, ["'learning_rate'", "did you mean lr?"]),
        (("zzz=3",), {}, ["'zzz'", "combine", "batch_size", "width"]),
        (("combine=plus",), {"method": "fedavg"}, ["'combine'", "fedavg"]),
        (("in_channels=3",), {}, ["'in_channels'"]), (("lr=fast",), {}, ["lr", "fast"]),
        (("lr",), {}, ["--set lr", "NAME=VALUE"]),
        ((), {"rounds": "many"}, ["--rounds many: expected a whole number, 1 or more"]),
        ((), {"device": "abacus"}, ["abacus", "site1", "cpu, cuda"]),
        ((), {"device": "site2="}, ["site2=", "SITE=DEVICE"]),
        ((), {"device": "site9=cpu", "only": "site1,site2"}, ["no site site9; there are site1, site2"]),
        ((), {"device": "cuda:77"}, ["cuda:77", "site1"]), (("depth=6",), {}, ["32x32", "depth 6", "--size"]),
        ((), {"method": None}, ["--method"]), ((), {"sites": None}, ["--sites"]),
        ((), {"sites": "nowhere"}, ["nowhere", "fedmerit prepare"]),
        ((), {"only": "site1,site9"}, ["holds no site site9; there are site1, site2, site3"]),
        ((), {"only": "site1,,site2"}, ["--only site1,,site2: expected names of sites"]),
        ((), {"only": "site1"}, ["needs at least 2"])
    ],
)  # fmt: skip
def test_an_option_that_cannot_be_used(fedmerit, options, run, settings, changes, words):
    refused(fedmerit("run", "--out", run, *options(*settings, **changes)), *words)
    assert not run.exists()


def spoil_site_json(**changes: Any) -> Callable[[Path], None]:
    return lambda site: write_json(site / "site.json", read_json(site / "site.json") | changes)


def first_array(site: Path) -> Path:
    return site / read_json(site / "datalist.json")["validation"][0]["image"]


def cut_array(site: Path) -> None:
    file = first_array(site)
    file.write_bytes(file.read_bytes()[:200])


SPOILED_SITES = {
    "site.json is not JSON": (lambda site: (site / "site.json").write_text("{"), ["site2/site.json"]),
    "another name than its folder": (spoil_site_json(name="elsewhere"), ["site2", "'elsewhere'"]),
    "an array is cut": (cut_array, ["site2", "_image.npy", "fedmerit prepare"]),
    "an array of another shape": (
        lambda site: np.save(first_array(site), np.zeros((10, 1, 16, 16), np.float32)),
        ["site2", "_image.npy", "(10, 1, 16, 16)"],
    ),
}


@pytest.mark.parametrize("spoiled", SPOILED_SITES)
def test_a_site_that_cannot_be_used(fedmerit, options, own_sites, run, spoiled):
    spoil, words = SPOILED_SITES[spoiled]
    spoil(own_sites / "site2")
    refused(fedmerit("run", "--out", run, *options(sites=own_sites)), *words)
    assert not run.exists()


@pytest.mark.parametrize("method", ["fedavg", "fedce"])
def test_a_single_site_is_pointed_to_standalone(fedmerit, options, own_sites, run, method):
    for name in ("site2", "site3"):
        shutil.rmtree(own_sites / name)
    refused(fedmerit("run", "--out", run, *options(sites=own_sites, method=method)), "site1", "--method standalone")
    assert not run.exists()


def spoil_images(site: Path) -> None:
    """NaN in every training image."""
    for entry in read_json(site / "datalist.json")["training"]:
        image = np.load(site / entry["image"])
        image[:, :, 0, 0] = np.nan
        np.save(site / entry["image"], image)


@pytest.mark.parametrize("engine", ["local", pytest.param("sim", marks=pytest.mark.slow)])
def test_a_site_whose_images_are_nan_is_rejected_in_every_round(
    own_sites, options, small, fedmerit, tmp_path, assert_same_model, engine
):
    spoil_images(own_sites / "site2")
    tiny = partial(options, *small[1::2], method="fedavg", sites=own_sites, rounds=2)
    run = tmp_path / "spoiled/run"
    result = fedmerit("run", "--out", run, *tiny(engine=engine))
    assert result.exit_code == 0, result.output
    records = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    assert [list(record["rejected"]) for record in records] == [["site2"]] * 2
    assert all("NaN" in record["rejected"]["site2"] for record in records)
    assert "site2 rejected: " in result.output

    shutil.rmtree(own_sites / "site2")
    without = tmp_path / "without/run"
    fedmerit("run", "--out", without, *tiny())
    assert_same_model(run / "models/global.pt", without / "models/global.pt")
    tested = read_results(run).query("split == 'testing' and quantity == 'dice'")
    assert set(tested["site"]) == {"site1", "site3"}  # who has no part in the model does not get it


def test_ctrl_c_says_how_to_resume(fedmerit, options, run, monkeypatch):
    def execute(folder, on_round):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedmerit.engines.runs.execute", execute)
    result = fedmerit("run", "--out", run, *options())
    assert result.exit_code == 130
    assert f"resume with: fedmerit run --resume --out {run}" in result.stderr


@pytest.mark.parametrize(
    ("spec", "engine", "place"),
    [
        ("tensorboard", "sim", f"tensorboard --logdir {Path('run/nvflare')}"),
        ("tensorboard", "local", f"tensorboard --logdir {Path('run/tensorboard')}"),
        ("mlflow:uri=http://server:5000", "sim", "http://server:5000, experiment FedMerit"),
        ("mlflow", "sim", f"with the mlflow.db below {Path('run/nvflare')}"),
        ("mlflow", "local", f"sqlite:///{Path('run/mlflow.db').resolve()}"),
    ],
)
def test_tracker_says_where_to_look(spec, engine, place):
    assert place in runs._where_to_look(spec, Path("run"), engine)
