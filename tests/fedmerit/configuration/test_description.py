"""What run.json says of a run."""

import json
import platform
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError

import numpy as np
import pytest
import torch

import fedmerit.version
from fedmerit.configuration.description import describe, read_plan
from fedmerit.configuration.run import TASKS, RunConfiguration, make_configuration
from fedmerit.errors import BadInput
from fedmerit.files import write_json
from fedmerit.version import code_commit

CONFIG = make_configuration("fedce", "fundus", 7, 3, TASKS["fundus"], {"combine": "plus", "lr": "0.1"})


def test_it_says_what_was_run_and_a_run_can_be_made_of_it_again():
    told = json.loads(json.dumps(describe("mine", CONFIG, ("B", "A"), "sim")))
    expected = {
        **{"run": "mine", "method": "fedce", "seed": 3, "sites": ["B", "A"], "task": "fundus", "rounds": 7},
        **{"engine": "sim", "labels": ["disc", "cup"]},
        "parameters": {"combine": "plus", "error": "absolute"},
    }
    assert {name: told[name] for name in expected} == expected
    assert told["training"]["lr"] == 0.1
    assert RunConfiguration.from_dict(told["plan"]) == CONFIG


def test_it_says_when_and_by_which_command_and_versions(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/opt/bin/fedmerit", "run", "--out", "my run", "--set", "lr=0.1"])
    told = describe("mine", CONFIG, ("A",), "local")
    assert told["command"] == "fedmerit run --out 'my run' --set lr=0.1"
    age = datetime.now(UTC) - datetime.fromisoformat(told["started"])
    assert timedelta(seconds=-1) < age < timedelta(minutes=1)
    assert told["packages"]["numpy"] == np.__version__
    assert told["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert told["packages"]["python"] == platform.python_version()
    assert told["fedmerit_version"] == told["packages"]["fedmerit"]
    assert told["commit"] == code_commit()


def test_what_came_with_a_job_has_no_version(monkeypatch):
    def version(package):
        if package == "fedmerit":
            raise PackageNotFoundError
        return "1.0"

    monkeypatch.setattr(fedmerit.version, "version", version)
    told = describe("mine", CONFIG, ("A",), "prod")
    assert told["fedmerit_version"] == told["packages"]["fedmerit"] == "not installed"
    assert told["packages"]["nvflare"] == "1.0"


def test_the_plan_of_a_run_folder_is_read_back(tmp_path):
    write_json(tmp_path / "run.json", describe("mine", CONFIG, ("B", "A"), "sim"))
    assert read_plan(tmp_path) == CONFIG


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"method": "fedavg"}, "lacks plan; expected what `fedmerit run` wrote"),
        ({"plan": {}}, "plan: method: Field required"),
        ({"plan": CONFIG.to_dict() | {"method": "magic"}}, "method 'magic': unknown"),
    ],
)
def test_a_plan_that_is_none_is_told_with_its_file(tmp_path, content, told):
    write_json(tmp_path / "run.json", content)
    with pytest.raises(BadInput) as error:
        read_plan(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'run.json'}: {told}")
