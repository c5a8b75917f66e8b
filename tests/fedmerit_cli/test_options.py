"""Options: those of a run in one model, and what commands share."""

import inspect
import subprocess
from pathlib import Path

import pytest
import typer.main

import fedmerit
from fedmerit.errors import BadInput
from fedmerit.schema.configuration.options import RunOptions, Waiting
from fedmerit.schema.declarations import parameters as declared
from fedmerit_cli.main import app
from fedmerit_cli.options import given

ROOT = Path(__file__).resolve().parents[2]


def test_command_line_and_python_have_the_options_of_the_model():
    options = declared(RunOptions)
    flags = {option.flag for option in options.values()}
    command = typer.main.get_group(app).commands["run"]
    assert {option.opts[0] for option in command.params} == flags | {"--config", "--resume", "--trust"}
    parameters = inspect.signature(fedmerit.run).parameters
    assert {*RunOptions.model_fields} == {*parameters} - {"on_round", "resume"}
    assert {*inspect.signature(fedmerit.rounds).parameters} == {*RunOptions.model_fields}
    for name, option in options.items():
        assert name in ("out", "method", "sites") or parameters[name].default == option.default
        assert f"{name}: " in fedmerit.run.__doc__
        assert option.text


@pytest.mark.parametrize("name", ["round_timeout", "min_sites"])
def test_an_option_is_declared_in_one_place(name):
    """Besides, only the engines, which wait for sites, know it."""
    found = subprocess.run(
        ["grep", "-rlw", name, "--include=*.py", "custom", "deploy", "cli", "evaluation", "data_prep"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    engines = ("custom/fedmerit/server/", "custom/fedmerit/engines/", "deploy/")
    assert [file for file in found if not file.startswith(engines)] == [
        "custom/fedmerit/schema/configuration/options.py"
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rounds": 0}, "rounds=0: expected a whole number, 1 or more"),
        ({"settings": "zero"}, "settings='zero': expected a table of names and values"),
        ({"privacy": [3]}, r"privacy\.0=3: expected a text"),
        ({"only": "a,,b"}, "only='a,,b': expected names of sites such as A,B, each once"),
        ({"set": {}}, "unknown option set; did you mean settings?"),
        ({"round": 3}, "unknown option round; did you mean rounds?"),
    ],
)
def test_options_that_cannot_be_used(values, message):
    with pytest.raises(BadInput, match=message.replace("?", r"\?")):
        RunOptions.read(values)


def test_given_options_and_settings():
    options = RunOptions.read({"recipe": "quick", "rounds": 3, "settings": {"lr": 0.1}, "only": "A, B"})
    assert options.given() == {"rounds": 3, "only": ("A", "B"), "settings": {"recipe": "quick", "lr": 0.1}}
    both = options.with_given(RunOptions.read({"recipe": "quick", "seed": 4, "min_sites": 2}))
    assert both.given() == {
        "rounds": 3, "seed": 4, "only": ("A", "B"), "min_sites": 2, "settings": {"recipe": "quick", "lr": 0.1},
    }  # fmt: skip
    assert both.for_study("engine") == {
        "rounds": 3, "engine": "sim", "only": ("A", "B"), "min_sites": 2,
    }  # fmt: skip
    assert Waiting.of_record(both.recorded()) == both.waiting == (2, 0.0)


def test_options_with_a_value():
    assert given(rounds=0, device=None, only="") == {"rounds": 0, "only": ""}
