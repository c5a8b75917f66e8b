"""Every command of ``fedmerit``, as a user meets it."""

import json
import re
import shutil
import subprocess
import sys

import pandas as pd
import pytest

from cli.main import app
from fedmerit.methods.registry import METHODS
from fedmerit.records.results import read_results, read_run

COMMANDS = ["prepare", "check", "partition", "run", "compare", "demo", "evaluate", "report", "figure", "verify"]
COMMANDS += ["methods", "export", "loo", "shapley", "fairness", "attack", "freeriders", "paper"]
COMMANDS += ["deploy", "submit", "status", "fetch", "resume", "abort"]
GROUPS = {"deploy": ["init", "site", "server", "check"]}


def plain(text: str) -> str:
    """Without colours and line breaks."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())


def test_every_command_is_tested_here():
    names = [command.name or command.callback.__name__ for command in app.registered_commands]
    groups = {group.name: group.typer_instance for group in app.registered_groups}
    assert sorted([*names, *groups]) == sorted(COMMANDS)
    for name, group in groups.items():
        within = [command.name or command.callback.__name__ for command in group.registered_commands]
        assert sorted(within) == sorted(GROUPS[name])


def test_help_lists_the_commands(fedmerit):
    result = fedmerit("--help")
    assert result.exit_code == 0
    assert [name for name in COMMANDS if name not in result.output] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_command_explains_itself(fedmerit, command):
    result = fedmerit(command, "--help")
    assert result.exit_code == 0
    assert f"Usage: root {command}" in plain(result.output)


def test_unknown_command(fedmerit):
    result = fedmerit("trian")
    assert result.exit_code == 2
    assert "trian" in result.output


def test_installed_command(scripts):
    result = subprocess.run([scripts / "fedmerit", "--help"], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0
    assert "federated" in result.stdout


def test_nvflare_is_not_imported_for_help_and_local_runs():
    code = "import sys, cli.main, fedmerit.engines.runs; sys.exit('nvflare' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0


def test_methods_prints_the_table(fedmerit, monkeypatch):
    monkeypatch.setattr("cli.app.console.width", 400)
    result = fedmerit("methods")
    assert result.exit_code == 0
    for name, entry in METHODS.items():
        row = next(line for line in result.output.splitlines() if f" {name} " in line)
        for told in (entry.contribution, entry.weights, entry.download, entry.site_work, entry.paper):
            assert told in row
        for parameter, value in vars(entry.method()).items():
            shown = f"{value:g}" if isinstance(value, float) else value
            assert f"{parameter}={shown}" in result.output


# run


def test_run_says_what_it_did(fedmerit, options, tmp_path, monkeypatch):
    run = tmp_path / "run"
    arguments = ["run", "--out", str(run), *options(rounds=1)]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/fedmerit", *arguments])
    result = fedmerit(*arguments)
    assert result.exit_code == 0
    for word in ("site1", "site2", "site3", "Dice", str(run)):
        assert word in result.output
    assert read_run(run)["command"].startswith(f"fedmerit run --out {run} --method fedce --sites ")


@pytest.fixture
def config(tmp_path, sites):
    path = tmp_path / "run.toml"
    path.write_text(
        f"method = 'fedce'\nsites = '{sites}'\nrounds = 3\nengine = 'local'\nseed = 0\n[set]\nwidth = 4\ndepth = 3\n"
    )
    return path


def test_config_file_is_the_same_as_the_options(fedmerit, config, trained, tmp_path, assert_same_run):
    run = tmp_path / "run"
    result = fedmerit("run", "--config", config, "--out", run)
    assert result.exit_code == 0, result.output
    assert_same_run(trained(), run)
    theirs, ours = read_run(trained()), read_run(run)
    differ = {name for name in theirs if theirs[name] != ours[name]}
    assert differ <= {"started", "command"}


def test_command_line_goes_before_the_config_file(fedmerit, config, tmp_path):
    config.write_text(config.read_text().replace("rounds = 3", f"rounds = 3\nout = '{tmp_path / 'elsewhere'}'"))
    run = tmp_path / "run"
    options = ("--rounds", 1, "--method", "fedavg", "--seed", 5, "--set", "width=2")
    result = fedmerit("run", "--config", config, "--out", run, *options)
    assert result.exit_code == 0, result.output
    info = read_run(run)
    assert (info["rounds"], info["method"], info["seed"]) == (1, "fedavg", 5)
    assert (info["plan"]["network"]["width"], info["plan"]["network"]["depth"]) == (2, 3)
    assert not (tmp_path / "elsewhere").exists()


def test_resume_with_the_config_file(fedmerit, config, tmp_path):
    run = tmp_path / "run"
    fedmerit("run", "--config", config, "--out", run)
    result = fedmerit("run", "--config", config, "--out", run, "--resume")
    assert result.exit_code == 0, result.output


def test_relative_paths(fedmerit, options, sites, tmp_path, monkeypatch, trained, assert_same_run):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").symlink_to(sites)
    result = fedmerit("run", "--out", "runs/run", *options(sites="here"))
    assert result.exit_code == 0, result.output
    assert_same_run(trained(), tmp_path / "runs/run")


# prepare and check


def test_prepare_and_check(fedmerit, tmp_path):
    sites = tmp_path / "sites"
    arguments = ("--out", sites, "--size", 32, "--patients", 5, "--ratios", "0.4,0.3,0.3", "--seed", 1)
    result = fedmerit("prepare", "synthetic-fundus", *arguments)
    assert result.exit_code == 0, result.output
    assert "6 sites" in result.output
    result = fedmerit("check", sites)
    assert result.exit_code == 0
    assert "nothing wrong" in result.output
    (sites / "site2/datalist.json").unlink()
    result = fedmerit("check", sites)
    assert result.exit_code == 1
    assert "site2/datalist.json" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(("hearts",), "hearts"), (("synthetic-prostate", "--ratios", "half"), "half"), (("fundus-rois",), "--source")],
)
def test_prepare_of_what_is_none(fedmerit, tmp_path, arguments, word):
    result = fedmerit("prepare", *arguments, "--out", tmp_path / "sites")
    assert result.exit_code == 2
    assert word in result.stderr
    assert list(tmp_path.iterdir()) == []


# evaluate, report, verify


def test_evaluate_finds_the_dice_of_the_run(fedmerit, own_run, sites):
    result = fedmerit("evaluate", own_run, "--sites", sites)
    assert result.exit_code == 0, result.output
    tables = list((own_run / "evaluation").glob("*.csv"))
    assert len(tables) == 1
    key = ["site", "case", "label", "quantity"]
    found = pd.read_csv(tables[0], dtype={"case": str}).set_index(key)["value"]
    recorded = read_results(own_run).query("split == 'testing' and case != ''").set_index(key)["value"]
    assert sorted(found.index) == sorted(recorded.index)
    assert found.sort_index().to_list() == pytest.approx(recorded.sort_index().to_list(), nan_ok=True)


def test_evaluate_of_another_split(fedmerit, own_run, sites):
    result = fedmerit("evaluate", own_run, "--sites", sites, "--split", "validation")
    assert result.exit_code == 0, result.output
    assert [path.name.split("-")[0] for path in (own_run / "evaluation").glob("*.csv")] == ["validation"]


def test_report_of_one_run(fedmerit, own_run):
    result = fedmerit("report", own_run)
    assert result.exit_code == 0, result.output
    page = (own_run / "report.html").read_text()
    assert str(own_run / "report.html") in result.output
    for word in ("fedce", "site1", "site2", "site3"):
        assert word in page
    assert list((own_run / "tables").glob("*.csv"))
    assert list((own_run / "tables").glob("*.tex"))
    assert list((own_run / "figures").glob("*.png"))


def test_report_of_several_runs(fedmerit, trained, tmp_path):
    runs = [trained(), trained(method="fedavg"), trained(method="standalone")]
    result = fedmerit("report", *runs, "--out", tmp_path / "report.html", "--no-images")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "report.html").read_text()
    for word in ("fedce", "fedavg", "standalone"):
        assert word in page


@pytest.mark.parametrize("command", [("evaluate", "--sites"), ("report", "--sites"), ("verify",)])
def test_command_on_what_is_no_run(fedmerit, tmp_path, sites, command):
    name, *options = command
    result = fedmerit(name, tmp_path / "nothing", *options, *([sites] if options else []))
    assert result.exit_code == 2
    assert str(tmp_path / "nothing") in result.stderr
    assert not (tmp_path / "nothing").exists()


def test_verify_counts_the_records(fedmerit, trained):
    result = fedmerit("verify", trained())
    assert result.exit_code == 0
    assert "3 records" in result.output


def spoilings(text: str) -> dict[str, tuple[str, int]]:
    """Changed ledgers, each with the line that `verify` has to name."""
    lines = text.splitlines(keepends=True)
    record = json.loads(lines[1])
    weight = repr(record["weights"]["site2"])
    return {
        "a weight changed": (text.replace(weight, "0.5", 1), 2),
        "a digest changed": (text.replace(record["model"], "0" * 64, 1), 2),
        "a hash changed": (text.replace(record["hash"], "0" * 64, 1), 2),
        "a record left out": (lines[0] + lines[2], 2),
        "the first record left out": ("".join(lines[1:]), 1),
        "records in another order": (lines[1] + lines[0] + lines[2], 1),
        "a record twice": (lines[0] + lines[0] + lines[1] + lines[2], 2),
        "a line that is no record": (text + "1\n", 4),
        "a line cut": (text[:-20], 3),
    }


@pytest.mark.parametrize(
    "spoiled",
    [
        "a weight changed",
        "a digest changed",
        "a hash changed",
        "a record left out",
        "the first record left out",
        "records in another order",
        "a record twice",
        "a line that is no record",
        "a line cut",
    ],
)
def test_verify_names_the_line_that_was_changed(fedmerit, own_run, spoiled):
    ledger = own_run / "ledger.jsonl"
    text, line = spoilings(ledger.read_text())[spoiled]
    assert text != ledger.read_text()
    ledger.write_text(text)
    result = fedmerit("verify", own_run)
    assert result.exit_code == 2
    assert f"line {line}:" in result.stderr


def test_verify_finds_any_changed_byte(fedmerit, own_run):
    ledger = own_run / "ledger.jsonl"
    whole = ledger.read_bytes()
    for position in range(0, len(whole), 97):
        ledger.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert fedmerit("verify", own_run).exit_code == 2, position


def test_verify_names_a_ledger_that_is_no_text(fedmerit, own_run):
    ledger = own_run / "ledger.jsonl"
    ledger.write_bytes(b"\xff" + ledger.read_bytes()[1:])
    result = fedmerit("verify", own_run)
    assert result.exit_code == 2
    assert str(ledger) in result.stderr


# demo


@pytest.mark.slow
def test_demo(fedmerit, tmp_path):
    out = tmp_path / "demo"
    result = fedmerit("demo", "--out", out, "--rounds", 1)
    assert result.exit_code == 0, result.output
    assert (out / "report.html").stat().st_size > 10_000
    for method in ("fedavg", "fedce"):
        assert (out / method / "models/global.pt").is_file()
        assert fedmerit("verify", out / method).exit_code == 0
    shutil.rmtree(out / "fedavg/models")
    written = (out / "fedce/ledger.jsonl").stat().st_mtime_ns
    assert fedmerit("demo", "--out", out, "--rounds", 1).exit_code == 0  # what is done is not done again
    assert (out / "fedce/ledger.jsonl").stat().st_mtime_ns == written
