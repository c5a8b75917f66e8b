"""The command as a whole: what there is, how it explains itself."""

import os
import subprocess
import sys
from unittest.mock import patch

import pytest
import typer.main

from fedmerit_cli.main import app
from fedmerit_cli.terminal import console

TOP = [
    "demo", "new", "prepare", "check", "run", "compare", "fairness", "report", "verify", "evaluate", "predict",
    "methods", "dossier",
]  # fmt: skip
GROUPS = {
    "data": ["survey", "plan", "partition"],
    "value": ["leave-one-out", "shapley", "estimate", "replay", "payout", "power", "unseen"],
    "job": ["export", "submit", "status", "fetch", "abort", "resume", "remove", "watch"],
    "deploy": [
        *("init", "renew", "request", "revoke", "site", "site allow", "server", "rules", "approve", "prune", "check"),
        "audit",
    ],
    "model": ["export"],
    "lab": ["paper", "run", "attacks", "protocols", "contrasts", "leaderboard", "inversion", "bench"],
}
MOST_LINES, WIDTH = 50, 100  # of a help text


def commands(group=None, path=()):
    """Every command with the words that call it."""
    for name, command in (group or typer.main.get_group(app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def test_everyday_commands_come_first_and_groups_below(fedmerit):
    group = typer.main.get_group(app)
    assert list(group.commands) == [*TOP, *GROUPS]
    assert {name: list(group.commands[name].commands) for name in GROUPS} == GROUPS
    printed = fedmerit("--help").output
    assert printed.index("Commands\n") < printed.index("  demo ") < printed.index("Groups\n") < printed.index("  lab ")


@pytest.mark.parametrize("words", [words for words, _ in commands()], ids=" ".join)
def test_help_fits_a_screen_and_ends_with_an_example(fedmerit, monkeypatch, words):
    monkeypatch.setattr(console, "width", WIDTH)
    result = fedmerit(*words, "--help")
    assert result.exit_code == 0
    lines = result.output.strip().splitlines()
    assert len(lines) <= MOST_LINES
    assert lines[0].startswith(f"Usage: root {' '.join(words)} ")
    assert "<" not in result.output  # PATH, not the types of Python
    assert lines[-1].startswith(f"Example: fedmerit {' '.join(words)} ") or lines[-1] == f"Example: fedmerit {words[0]}"


@pytest.mark.parametrize("command", [command for _, command in commands()], ids=lambda command: command.name)
def test_examples_have_only_options_that_exist(command):
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    required = {option.opts[0] for option in command.params if option.required and option.opts[0].startswith("--")}
    named = {word for word in command.epilog.split() if word.startswith("--")}
    assert required <= named <= known


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("fedmerit data sur", "survey"),
        ("fedmerit data survey --fl", "--floor"),
        ("fedmerit run --method fedc", "fedce\nfedce_nvflare\nfedci"),
    ],
)
def test_a_shell_completes_commands_options_and_methods(scripts, typed, offered):
    asked = {"_FEDMERIT_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    result = subprocess.run(
        [scripts / "fedmerit"], capture_output=True, text=True, timeout=300, env={**os.environ, **asked}
    )
    assert result.stdout.strip() == offered


def test_completion_is_installed_where_the_shell_looks_for_it(fedmerit, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
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
