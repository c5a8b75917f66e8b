"""The command as a whole: what there is, how it explains itself."""

import os
import re
import subprocess
import sys
from unittest.mock import patch

import pytest
import typer.main

from fedmerit_cli.main import app

COMMANDS = [
    "prepare", "check", "partition", "shrink", "survey", "run", "compare", "demo", "evaluate", "report", "dossier",
    "figure", "verify", "predict", "export-model", "fairness", "loo", "generalise", "shapley", "value", "power",
    "attack", "freeriders", "paper", "methods", "export", "submit", "status", "fetch", "abort", "resume", "deploy",
    "bench",
]  # fmt: skip
BENCH = [
    "speed",
    "memory",
    "growth",
    "aggregation",
    "methods",
    "prepare",
    "values",
    "estimators",
    "planted",
    "detection",
]
DEPLOY = ["init", "renew", "site", "server", "approve", "check"]


def plain(text: str) -> str:
    """Without colours and line breaks."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())


def test_help_lists_every_command_in_this_order(fedmerit):
    group = typer.main.get_group(app)
    assert list(group.commands) == COMMANDS
    assert list(group.commands["deploy"].commands) == DEPLOY
    assert list(group.commands["bench"].commands) == BENCH
    result = fedmerit("--help")
    assert result.exit_code == 0
    assert re.findall(r"^│ ([a-z][a-z-]*) ", result.output, re.MULTILINE) == COMMANDS


@pytest.mark.parametrize(
    "command",
    [*([name] for name in COMMANDS), *(["deploy", name] for name in DEPLOY), *(["bench", name] for name in BENCH)],
)
def test_command_explains_itself(fedmerit, command):
    result = fedmerit(*command, "--help")
    assert result.exit_code == 0
    assert f"Usage: root {' '.join(command)}" in plain(result.output)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("fedmerit sur", "survey"),
        ("fedmerit data survey --fl", "--floor"),
        ("fedmerit run --method fedc", "fedce\nfedci"),
    ],
)
def test_a_shell_completes_commands_options_and_methods(scripts, typed, offered):
    asked = {"_FEDMERIT_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    result = subprocess.run(
        [scripts / "fedmerit"], capture_output=True, text=True, timeout=300, env={**os.environ, **asked}
    )
    assert result.stdout.strip() == offered


def test_completion_is_installed_where_the_shell_looks_for_it(fedmerit, tmp_path, monkeypatch):
    monkeypatch.setenv("RECEIVED", str(tmp_path))
    with patch("shellingham.detect_shell", return_value=("bash", "/bin/bash")):
        shown, installed = fedmerit("--show-completion"), fedmerit("--install-completion")
    assert (shown.exit_code, installed.exit_code) == (0, 0)
    assert "COMPLETE=complete_bash" in shown.output
    assert "bash_completions" in (tmp_path / ".bashrc").read_text()


def test_unknown_command(fedmerit):
    result = fedmerit("trian")
    assert result.exit_code == 2
    assert "trian" in result.output


@pytest.mark.parametrize("as_module", [False, True])
def test_installed_command(scripts, as_module):
    command = [sys.executable, "-m", "fedmerit_cli.main"] if as_module else [scripts / "fedmerit"]
    result = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0
    assert "federated" in result.stdout
