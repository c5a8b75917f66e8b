"""`fedmerit methods` and `fedmerit export`; the jobs themselves are tested with `fedmerit.flare`."""

import json
import re
from pathlib import Path

import pytest
from made_photographs import write_photographs

from fedmerit.configuration.recipes import PRESETS
from fedmerit.configuration.run import Network, Training
from fedmerit.guard.settings import GuardSettings
from fedmerit.methods.registry import METHODS
from fedmerit.parameters import rules

FIXED = ("in_channels", "labels")  # by the sites


def test_methods_prints_the_table(fedmerit, monkeypatch):
    monkeypatch.setattr("fedmerit_cli.app.console.width", 400)
    result = fedmerit("methods")
    assert result.exit_code == 0
    for name, kind in METHODS.items():
        row = next(line for line in result.output.splitlines() if f" {name} " in line)
        for told in vars(kind.about).values():
            assert told in row
        for parameter, value in vars(kind()).items():
            shown = f"{value:g}" if isinstance(value, float) else value
            assert f"{parameter}={shown}" in result.output


@pytest.mark.parametrize("method", ["standalone", "cffl", "fedsac"])
def test_methods_says_what_each_parameter_of_one_is_and_may_be(fedmerit, monkeypatch, method):
    monkeypatch.setattr("fedmerit_cli.app.console.width", 400)
    result = fedmerit("methods", method)
    assert result.exit_code == 0
    for name, rule in rules(METHODS[method]).items():
        row = next(line for line in result.output.splitlines() if f" {name} " in line)
        assert rule.text in row
    for kind in (Training, Network, GuardSettings):  # --set takes these too
        for name, rule in rules(kind).items():
            assert (f" {name} " in result.output and rule.text in result.output) == (name not in FIXED)
    assert "(1 - t/T)^0.9" in result.output
    assert re.search(r" guard +│ on ", result.output)  # as of new runs
    assert re.search(r" lr +│ 0.001 +│ above 0 ", result.output)
    shown = {"cffl": ("above 0, at most 1", "one of sparse, global", "true or false", "0.166667")}
    assert all(told in result.output for told in shown.get(method, ()))


@pytest.mark.parametrize("method", ["qfedavg", "rr", "fedavg"])
def test_methods_tells_how_the_paper_of_one_trains_it(fedmerit, monkeypatch, method):
    monkeypatch.setattr("fedmerit_cli.app.console.width", 400)
    result = fedmerit("methods", method)
    preset = PRESETS.get(method)
    assert ("--preset paper" in result.output) == bool(preset)
    if preset:
        assert preset.source in result.output
        assert f"--rounds {preset.rounds}" in result.output
        said = result.output.split("--preset paper")[1]
        for name, value in {**preset.training, **preset.parameters}.items():
            shown = f"{value:g}" if isinstance(value, float) else value
            assert re.search(rf" {name} +│ {re.escape(str(shown))} ", said)


def test_methods_of_an_unknown_one_lists_them(fedmerit):
    result = fedmerit("methods", "fedec")
    assert result.exit_code == 2
    assert all(name in result.stderr for name in ("fedec", *METHODS))


def test_methods_prints_the_table_of_the_documentation(fedmerit):
    page = (Path(__file__).resolve().parents[2] / "docs" / "methods.md").read_text()
    assert fedmerit("methods", "--markdown").output.strip() in page


def test_export_takes_what_run_takes_by_options_of_their_own(fedmerit, tmp_path):
    options = ("--preset", "paper", "--finish", "selected")
    told = fedmerit("export", "--method", "cgsv", "--task", "prostate", "--out", tmp_path / "job", *options)
    assert told.exit_code == 0, told.output
    config = json.loads((tmp_path / "job" / "app" / "config" / "config_fed_server.json").read_text())
    (plan,) = [part["args"]["plan"] for part in config["components"] if part["id"] == "aggregator"]
    training = plan["training"]
    assert (training["optimizer"], training["lr"], training["final_model"]) == ("sgd", 0.015, "selected")
    assert plan["parameters"]["gamma"] == 0.15


@pytest.mark.parametrize("options", [("--min-sites", 0), ("--rounds", 0), ("--set", "depth=1")])
def test_export_with_a_parameter_that_cannot_be_used(fedmerit, tmp_path, options):
    job = tmp_path / "job"
    result = fedmerit("export", "--method", "fedce", "--task", "prostate", "--out", job, *options)
    assert result.exit_code == 2
    assert "=" in result.stderr
    assert "expected" in result.stderr
    assert not job.exists()


@pytest.mark.parametrize("options", [("--set", "last_round=own"), ("--set", "statistics=own", "--privacy", "he")])
def test_export_with_what_run_would_refuse(fedmerit, tmp_path, options):
    method = "fedavg" if "he" in options else "cgsv"
    result = fedmerit("export", "--method", method, "--task", "prostate", "--out", tmp_path / "job", *options)
    assert result.exit_code == 2
    assert "=own: " in result.stderr
    assert "leave it out" in result.stderr
    assert not (tmp_path / "job").exists()


def test_export_for_sites_of_a_task_of_ones_own(fedmerit, tmp_path):
    source = write_photographs(tmp_path / "raw")
    given = ("--labels", "disc=1+2", "--task", "eyes", "--size", 32, "--jobs", 1, "--no-pictures")
    told = fedmerit("prepare", "generic", "--source", source, "--out", tmp_path / "sites", *given)
    assert told.exit_code == 0, told.output
    told = fedmerit("export", "--method", "fedavg", "--sites", tmp_path / "sites", "--out", tmp_path / "job")
    assert told.exit_code == 0, told.output
    config = json.loads((tmp_path / "job" / "app" / "config" / "config_fed_server.json").read_text())
    (plan,) = [part["args"]["plan"] for part in config["components"] if part["id"] == "aggregator"]
    assert (plan["task"], plan["network"]["labels"], plan["network"]["in_channels"]) == ("eyes", ["disc"], 3)
    assert plan["preprocessing"]["size"] == [32, 32]
    for options in ((), ("--task", "prostate", "--sites", tmp_path / "sites"), ("--task", "eyes")):
        told = fedmerit("export", "--method", "fedavg", "--out", tmp_path / "other", *options)
        assert told.exit_code == 2
        assert "--sites" in told.output
