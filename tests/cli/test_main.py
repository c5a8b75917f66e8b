"""The command as a whole: what there is, how it explains itself."""

import re
import subprocess

import pytest
import typer.main

from cli.main import app

COMMANDS = [
    "prepare", "check", "partition", "shrink", "run", "compare", "demo", "evaluate", "report", "dossier", "figure",
    "verify", "predict", "export-model", "fairness", "loo", "generalise", "shapley", "value", "power", "attack",
    "freeriders", "paper", "methods", "export", "submit", "status", "fetch", "abort", "resume", "deploy", "bench",
]  # fmt: skip
BENCH = ["speed", "memory", "growth", "aggregation", "values"]
DEPLOY = ["init", "site", "server", "approve", "check"]


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


def test_unknown_command(fedmerit):
    result = fedmerit("trian")
    assert result.exit_code == 2
    assert "trian" in result.output


def test_installed_command(scripts):
    result = subprocess.run([scripts / "fedmerit", "--help"], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0
    assert "federated" in result.stdout
