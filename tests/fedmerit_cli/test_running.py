"""`fedmerit run` and `fedmerit demo`: what can be asked for; what cannot is refused before anything is written."""

import fcntl
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

from fedmerit.files import read_json, write_json
from fedmerit.records.results import read_results, read_run


def refused(result, *words):
    """Exit code 2, and a message that names the culprit."""
    assert result.exit_code == 2, result.output
    assert [word for word in words if word not in " ".join(result.stderr.split())] == [], result.stderr
    assert "Traceback" not in result.output


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def asked(monkeypatch) -> list[tuple[Path, dict[str, Any]]]:
    """What `run` would create: every folder with its options. Nothing is created or executed."""
    found: list[tuple[Path, dict[str, Any]]] = []
    monkeypatch.setattr("fedmerit.engines.runs.create", lambda folder, **options: found.append((folder, options)))
    monkeypatch.setattr("fedmerit_cli.progress.run_with_progress", lambda folder: None)
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


# Options in a file


@pytest.fixture
def config(tmp_path, sites):
    path = tmp_path / "run.toml"
    path.write_text(
        f"method = 'fedce'\nsites = '{sites}'\nrounds = 3\nengine = 'local'\nseed = 0\n"
        "[set]\narchitecture = 'unet'\nwidth = 4\ndepth = 3\nlr = 0.1\n"
    )
    return path


def test_a_config_file_is_the_same_as_the_options(fedmerit, options, config, run, asked):
    for given in (("--config", config), (*options(seed=0), "--set", "lr=0.1")):
        result = fedmerit("run", "--out", run, *given)
        assert result.exit_code == 0, result.output
    (_, by_file), (_, by_options) = asked
    written = {name: str(value) for name, value in by_file.pop("settings").items()}
    expected = {"guard": "on", "architecture": "unet", "width": "4", "depth": "3", "lr": "0.1"}
    assert written == by_options.pop("settings") == expected
    assert {name: str(value) for name, value in by_options.items()} == {
        name: str(value) for name, value in by_file.items()
    }


def test_resume_with_the_config_file(fedmerit, config, own_run):
    config.write_text(config.read_text().replace("lr = 0.1\n", ""))
    before = contents(own_run)
    result = fedmerit("run", "--config", config, "--out", own_run, "--resume")
    assert result.exit_code == 0, result.output
    assert contents(own_run) == before


def test_the_command_line_goes_before_the_config_file(fedmerit, config, sites, tmp_path, asked):
    config.write_text(f"out = '{tmp_path / 'elsewhere'}'\n" + config.read_text())
    options = ("--rounds", 1, "--method", "fedavg", "--set", "width=2", "--set", "norm=batch")
    result = fedmerit("run", "--config", config, "--out", "here", *options)
    assert result.exit_code == 0, result.output
    settings = {"guard": "on", "architecture": "unet", "width": "2", "depth": 3, "lr": 0.1, "norm": "batch"}
    told = {"method": "fedavg", "sites": str(sites), "rounds": 1, "engine": "local", "seed": 0, "settings": settings}
    assert asked == [(Path("here"), told)]


def test_a_config_file_may_hold_every_option_of_settings(fedmerit, config, run, asked):
    """Beneath --set and the table of it, as on the command line; and a whole number for seconds."""
    top = "recipe = 'default'\nfinish = 'selected'\nguard = 'off'\non_verdict = 'show'\npreset = 'fedce'\n"
    config.write_text(f"{top}round_timeout = 60\n{config.read_text()}on_verdict = 'exclude'\n")
    result = fedmerit("run", "--out", run, "--config", config, "--recipe", "quick")
    assert result.exit_code == 0, result.output
    expected = {
        "recipe": "quick",
        "final_model": "selected",
        "guard": "off",
        "on_verdict": "exclude",
        "preset": "fedce",
    }
    assert expected.items() <= asked[0][1]["settings"].items()
    assert not asked[0][1].keys() & expected.keys()
    assert asked[0][1]["round_timeout"] == 60


@pytest.mark.parametrize("name", ["attacks", "behaviours"])
def test_a_config_file_may_hold_attacks(fedmerit, config, run, asked, name):
    """By their earlier name too."""
    config.write_text(config.read_text() + f"[{name}]\nsite2 = 'zero'\n")
    assert fedmerit("run", "--out", run, "--config", config).exit_code == 0
    assert asked[0][1]["attacks"] == {"site2": "zero"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rounds = ", ["TOML"]),
        ("round = 3", ["round", "rounds"]),
        ("[set]\npatience = 3", ["'patience'"]),
        ("[set]\nlr = 'fast'", ["lr", "fast"]),
        ("set = 3", ["set"]),
        ("rounds = 'many'", ["rounds", "many"]),
        ("rounds = 2.5", ["rounds", "2.5"]),
        ("rounds = true", ["rounds"]),
        ("engine = 'cloud'", ["engine", "cloud"]),
        ("method = 3", ["method", "3"]),
        ("attacks = 'zero'", ["attacks", "zero", "dict"]),
        ("recipe = 3", ["recipe", "3", "str"]),
        ("privacy = [3]", ["privacy", "[3]", "list of texts"]),
        ("values = [['multi_round']]", ["values", "list of texts"]),
        ("method = 'fédavg'", ["run.toml", "TOML", "utf-8"]),
    ],
)
def test_a_config_file_that_cannot_be_used(fedmerit, options, tmp_path, run, text, words):
    config = tmp_path / "run.toml"
    config.write_text(text, encoding="latin-1")
    name = text.split()[0]
    given = options(**({name: None} if name in ("rounds", "engine", "method", "sites") else {}))
    refused(fedmerit("run", "--out", run, "--config", config, *given), *words)
    assert not run.exists()


def test_a_config_file_that_is_not_there(fedmerit, options, tmp_path, run):
    refused(fedmerit("run", "--out", run, "--config", tmp_path / "no.toml", *options()), str(tmp_path / "no.toml"))
    assert not run.exists()


# Options that cannot be used


@pytest.mark.parametrize(
    ("settings", "changes", "words"),
    [
        ((), {"method": "fedbest"}, ["'fedbest'", "standalone, pooled, fedavg, fedce"]),
        (("patience=3",), {}, ["'patience'", "combine", "batch_size", "width"]),
        (("combine=plus",), {"method": "fedavg"}, ["'combine'", "fedavg"]),
        (("in_channels=3",), {}, ["'in_channels'"]),
        (("combine=minus",), {}, ["combine", "minus", "times", "plus"]),
        (("lr=fast",), {}, ["lr", "fast"]),
        (("lr=-1",), {}, ["lr", "above 0"]),
        (("lr=nan",), {}, ["lr", "above 0"]),
        (("epochs=0",), {}, ["epochs", "1 to 1000"]),
        (("epochs=1.5",), {}, ["epochs", "1.5"]),
        (("augment=perhaps",), {}, ["augment", "perhaps"]),
        (("norm=layer",), {}, ["norm", "batch, instance, group"]),
        (("lr",), {}, ["--set lr", "NAME=VALUE"]),
        (("=3",), {}, ["--set", "NAME=VALUE"]),
        ((), {"rounds": 0}, ["rounds", "1 or more"]),
        ((), {"rounds": "many"}, ["--rounds", "integer"]),
        ((), {"threads": 0}, ["threads", "1 or more"]),
        ((), {"engine": "cloud"}, ["--engine", "cloud"]),
        ((), {"device": "abacus"}, ["abacus", "site1", "cpu, cuda"]),
        ((), {"device": "site2=abacus"}, ["abacus", "site2"]),
        ((), {"device": "site2="}, ["site2=", "SITE=DEVICE"]),
        ((), {"device": "site9=cpu"}, ["no site site9", "site1, site2, site3"]),
        ((), {"device": "site9=cpu", "only": "site1,site2"}, ["no site site9; there are site1, site2"]),
        ((), {"seed": -5}, ["seed=-5", "0 or more"]),
        (("width=99999999999",), {}, ["width=99999999999", "1 to 512"]),
        ((), {"device": "cuda:77"}, ["cuda:77", "site1"]),
        (("depth=6",), {}, ["32x32", "depth 6", "--size"]),
        ((), {"method": None}, ["--method"]),
        ((), {"sites": None}, ["--sites"]),
        ((), {"sites": "nowhere"}, ["nowhere", "fedmerit prepare"]),
        ((), {"only": "site1,site9"}, ["holds no site site9; there are site1, site2, site3"]),
        ((), {"only": "site1,,site2"}, ["--only site1,,site2: expected names of sites"]),
        ((), {"only": "site1,site1"}, ["each once"]),
        ((), {"only": "site1"}, ["needs at least 2"]),
        ((), {"only": ""}, ["expected names of sites"]),
        ((), {"attack": "site9=zero"}, ["no site site9; there are site1, site2, site3"]),
        ((), {"attack": "site1=lazy"}, ["'lazy': unknown; expected one of repeat"]),
        ((), {"attack": "zero"}, ["--attack zero: expected NAME=VALUE"]),
        ((), {"attack": "site1=shifted:share=2"}, ["share=2"]),
    ],
)
def test_an_option_that_cannot_be_used(fedmerit, options, run, settings, changes, words):
    refused(fedmerit("run", "--out", run, *options(*settings, **changes)), *words)
    assert not run.exists()


def test_a_run_without_out(fedmerit, options):
    refused(fedmerit("run", *options()), "--out")


# Sites that cannot be used


def spoil_site_json(**changes: Any) -> Callable[[Path], None]:
    return lambda site: write_json(site / "site.json", read_json(site / "site.json") | changes)


def empty_training(site: Path) -> None:
    write_json(site / "datalist.json", read_json(site / "datalist.json") | {"training": []})


def first_array(site: Path) -> Path:
    return site / read_json(site / "datalist.json")["validation"][0]["image"]


def cut_array(site: Path) -> None:
    file = first_array(site)
    file.write_bytes(file.read_bytes()[:200])


SPOILED_SITES = {
    "site.json is not JSON": (lambda site: (site / "site.json").write_text("{"), ["site2/site.json"]),
    "site.json lacks a field": (lambda site: write_json(site / "site.json", {"name": "site2"}), ["site2", "'task'"]),
    "no datalist.json": (lambda site: (site / "datalist.json").unlink(), ["site2/datalist.json"]),
    "datalist.json lacks a split": (lambda site: write_json(site / "datalist.json", {}), ["site2", "'training'"]),
    "another name than its folder": (spoil_site_json(name="elsewhere"), ["site2", "'elsewhere'"]),
    "another image size": (spoil_site_json(image_size=[64, 64]), ["site2", "(64, 64)", "(32, 32)"]),
    "other labels": (spoil_site_json(labels=["prostate", "bladder"]), ["site2", "bladder"]),
    "another task": (spoil_site_json(task="fundus"), ["site2", "fundus"]),
    "no training case": (empty_training, ["site2", "training split is empty"]),
    "an array is cut": (cut_array, ["site2", "_image.npy", "fedmerit prepare"]),
    "an array is missing": (lambda site: first_array(site).unlink(), ["site2", "_image.npy", "not found"]),
    "an array is text": (lambda site: first_array(site).write_text("pixels"), ["site2", "_image.npy"]),
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


def test_a_folder_without_sites(fedmerit, options, tmp_path, run):
    (tmp_path / "bare").mkdir()
    refused(fedmerit("run", "--out", run, *options(sites=tmp_path / "bare")), str(tmp_path / "bare"), "no site folders")
    assert not run.exists()


@pytest.mark.parametrize("method", ["fedavg", "fedce"])
def test_a_single_site_is_told_of_standalone(fedmerit, options, own_sites, run, method):
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
    assert "site2 rejected: update with NaN" in result.output

    shutil.rmtree(own_sites / "site2")
    without = tmp_path / "without/run"
    fedmerit("run", "--out", without, *tiny())
    assert_same_model(run / "models/global.pt", without / "models/global.pt")
    tested = read_results(run).query("split == 'testing' and quantity == 'dice'")
    assert set(tested["site"]) == {"site1", "site2", "site3"}


# Folders that are not free


def test_a_run_that_exists_is_left_alone(fedmerit, options, own_run):
    before = contents(own_run)
    refused(fedmerit("run", "--out", own_run, *options()), str(own_run), "--resume")
    assert contents(own_run) == before


def test_a_folder_of_something_else_is_left_alone(fedmerit, options, run):
    run.mkdir()
    (run / "thesis.txt").write_text("all of it")
    refused(fedmerit("run", "--out", run, *options()), str(run))
    assert contents(run) == {"thesis.txt": b"all of it"}


@pytest.mark.parametrize("out", ["thesis.txt", "thesis.txt/run"])
def test_a_file_in_the_way_of_the_run_folder(fedmerit, options, tmp_path, out):
    (tmp_path / "thesis.txt").write_text("all of it")
    refused(fedmerit("run", "--out", tmp_path / out, *options()), str(tmp_path / out))
    assert (tmp_path / "thesis.txt").read_text() == "all of it"


# --resume


@pytest.mark.parametrize("out", ["nothing", "bare"])
def test_resume_of_what_is_no_run(fedmerit, tmp_path, out):
    (tmp_path / "bare").mkdir()
    refused(fedmerit("run", "--resume", "--out", tmp_path / out), "run.json")
    assert not (tmp_path / "nothing").exists()
    assert list((tmp_path / "bare").iterdir()) == []


@pytest.mark.parametrize(
    ("file", "content"),
    [("run.json", b"{}"), ("checkpoint.pt", b"half of it"), ("checkpoint.pt", b""), ("ledger.jsonl", b"\xff\n" * 3)],
    ids=["run.json lacks everything", "checkpoint is none", "checkpoint is empty", "ledger is no text"],
)
def test_resume_of_a_spoiled_run_names_the_file(fedmerit, own_run, file, content):
    (own_run / file).write_bytes(content)
    before = contents(own_run)
    refused(fedmerit("run", "--resume", "--out", own_run), str(own_run / file))
    assert contents(own_run) == before


@pytest.mark.parametrize(
    ("settings", "changes", "word"),
    [
        ((), {"method": "fedavg"}, "method"),
        ((), {"rounds": 4}, "rounds"),
        ((), {"seed": 1}, "seed"),
        ((), {"engine": "sim"}, "engine"),
        ((), {"threads": 2}, "threads"),
        ((), {"device": "cpu"}, "device"),
        ((), {"sites": "elsewhere"}, "sites"),
        ((), {"attack": "site1=zero"}, "attacks"),
        (("combine=plus",), {}, "combine"),
        (("lr=0.01",), {}, "lr"),
    ],
)
def test_resume_with_another_option(fedmerit, options, own_run, settings, changes, word):
    before = contents(own_run)
    refused(fedmerit("run", "--resume", "--out", own_run, *options(*settings, **changes)), str(own_run), word)
    assert contents(own_run) == before


def test_resume_on_other_sites(fedmerit, own_sites, own_run):
    shutil.rmtree(own_sites / "site3")
    write_json(own_run / "run.json", read_run(own_run) | {"sites_folder": str(own_sites)})
    refused(fedmerit("run", "--resume", "--out", own_run), "site1, site2", "site1, site2, site3")


@pytest.mark.parametrize("engine", ["local", pytest.param("sim", marks=pytest.mark.slow)])
def test_a_second_process_on_one_run(fedmerit, trained, tmp_path, engine):
    whole = trained(engine=engine, threads=3) if engine == "sim" else trained()
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (run / "checkpoint.pt").unlink()
    before = contents(run)
    with (run / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused(fedmerit("run", "--resume", "--out", run), str(run), "another process")
    assert contents(run) == before


def test_a_run_that_has_ended_needs_no_sites_that_were_moved(fedmerit, own_sites, own_run, tmp_path):
    write_json(own_run / "run.json", read_run(own_run) | {"sites_folder": str(own_sites)})
    moved = shutil.move(own_sites, tmp_path / "moved")
    before = contents(own_run)
    for places in ((), ("--sites", moved)):
        result = fedmerit("run", "--resume", "--out", own_run, *places)
        assert result.exit_code == 0, result.output
        assert f"{own_run} has ended: there is nothing to go on with." in result.output
        assert f"run folder: {own_run}" in result.output
    refused(fedmerit("run", "--resume", "--out", own_run, "--seed", "1"), "was started with seed 0, not 1")
    assert contents(own_run) == before
    (own_run / "checkpoint.pt").unlink()
    refused(fedmerit("run", "--resume", "--out", own_run), "no such folder", "--resume --sites PLACE says where they")


# --only


def test_only_some_sites_take_part(fedmerit, options, small, sites, tmp_path, assert_same_run):
    """As a run of a folder of these alone; and it can be resumed."""
    two = tmp_path / "two"
    for name in ("site1", "site3"):
        shutil.copytree(sites / name, two / name)
    (tmp_path / "run.toml").write_text('only = "site3,site1"\n')
    for folder, changes, more in (
        ("expected", {"sites": two}, ()),
        ("only", {}, ("--config", tmp_path / "run.toml")),
    ):
        result = fedmerit("run", "--out", tmp_path / folder, *options(*small[1::2], rounds=1, **changes), *more)
        assert result.exit_code == 0, result.output
    assert_same_run(tmp_path / "expected", tmp_path / "only")
    assert (read_run(tmp_path / "only")["only"], read_run(tmp_path / "only")["sites"]) == (["site1", "site3"],) * 2
    assert fedmerit("verify", tmp_path / "only").exit_code == 0
    for again in ((), ("--only", "site1,site3")):
        result = fedmerit("run", "--resume", "--out", tmp_path / "only", *again)
        assert result.exit_code == 0, result.output
    result = fedmerit("run", "--resume", "--out", tmp_path / "only", "--only", "site1,site2")
    refused(result, "only ['site1', 'site3'], not ['site1', 'site2']")
    assert_same_run(tmp_path / "expected", tmp_path / "only")


def test_only_on_the_command_line(fedmerit, options, run, asked):
    assert fedmerit("run", "--out", run, *options(only="site3, site1")).exit_code == 0
    assert asked[0][1]["only"] == ["site3", "site1"]


@pytest.mark.slow
def test_only_on_both_engines(fedmerit, options, tmp_path, assert_same_run):
    for engine in ("local", "sim"):
        result = fedmerit("run", "--out", tmp_path / engine, *options(rounds=1, engine=engine, only="site1,site3"))
        assert result.exit_code == 0, result.output
    assert_same_run(tmp_path / "local", tmp_path / "sim")


# --attack


def test_a_run_says_who_attacks(fedmerit, sites, small, run):
    steady = ("--set", "schedule=constant")
    given = ("--method", "fedavg", "--sites", sites, "--rounds", 2, "--engine", "local", *small, *steady)
    result = fedmerit("run", "--out", run, *given, "--attack", "site2=scaled:from=1:by=3")
    assert result.exit_code == 0, result.output
    assert read_run(run)["behaviours"] == {"site2": "scaled:from=1:by=3.0"}
    norms = read_results(run).query("quantity == 'norm' and site == 'site2'")["value"].to_list()
    assert norms[1] > 2 * norms[0]
    assert fedmerit("run", "--resume", "--out", run, "--attack", "site2=scaled:by=3:from=1").exit_code == 0
    refused(fedmerit("run", "--resume", "--out", run, "--attack", "site2=zero"), "attacks")


def test_attacks_by_the_earlier_name_of_the_option(fedmerit, options, run, asked):
    result = fedmerit("run", "--out", run, *options(behave="site1=zero", attack="site2=noise"))
    assert result.exit_code == 0, result.output
    assert asked[0][1]["attacks"] == {"site1": "zero", "site2": "noise"}
    assert "--behave" not in fedmerit("run", "--help").output
