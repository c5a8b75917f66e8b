"""What commands print, and where they write it down."""

import logging
from importlib.metadata import version
from unittest import TestCase

import pytest
from rich.cells import cell_len
from run_factory import make_run

from cli.app import console, last_round
from cli.progress import RunBars, progress


def test_version(fedmerit):
    result = fedmerit("--version")
    assert (result.exit_code, result.stdout) == (0, f"fedmerit {version('fedmerit')}\n")


@pytest.mark.slow
def test_quiet_prints_errors_alone(fedmerit, tmp_path):
    run = make_run(tmp_path / "run", rounds=2)
    result = fedmerit("--quiet", "report", run, "--no-images")
    assert (result.exit_code, result.output) == (0, "")
    assert (run / "report.html").exists()
    assert not console.quiet  # only for that command
    assert "no such run folder" in fedmerit("--quiet", "report", tmp_path / "none").stderr
    refused = fedmerit("--quiet", "--verbose", "report", run)
    assert refused.exit_code == 2
    assert "--quiet, --verbose" in refused.stderr


def test_the_log_holds_the_command_and_what_went_wrong(fedmerit, tmp_path):
    log = tmp_path / "logs" / "today.log"
    for _ in range(2):
        assert fedmerit("--log", log, "report", tmp_path / "none").exit_code == 2
    lines = log.read_text().splitlines()
    assert len(lines) == 4  # the second command adds to what the first wrote
    assert "INFO fedmerit.cli: fedmerit" in lines[0]
    assert f"ERROR fedmerit.cli: {tmp_path / 'none'}: no such run folder" in lines[1]
    refused = fedmerit("--log", tmp_path, "report", tmp_path / "none")
    assert refused.exit_code == 2
    assert f"--log {tmp_path}: cannot be written" in " ".join(refused.stderr.split())


def record(number):
    return {
        "round": number, "validation_dice": {"A": 0.5, "B": 0.6}, "weights": dict.fromkeys("ABCDEFGH", 1.0),
        "rejected": {"A": "no answer"}, "flagged": [],
    }  # fmt: skip


def test_every_round_is_logged(tmp_path):
    folder = make_run(tmp_path / "run")
    with TestCase().assertLogs("fedmerit", logging.INFO) as logged, progress() as bars:
        RunBars(bars).on_round(folder, record(3))
    assert [entry.getMessage() for entry in logged.records] == [
        "run, round 3: Dice 55.0%, weights 100-100%", "round 3: A rejected: no answer",
    ]  # fmt: skip
    assert len(last_round(record(3))) <= 28


@pytest.mark.parametrize("rounds", [12, 400])
def test_bars_with_the_time_left_fit_80_columns(tmp_path, rounds):
    folder = make_run(tmp_path / "run", rounds=rounds, done=1)
    bars = progress()
    each = RunBars(bars)
    each.begin(folder, "fedce (combine=plus, estimate=server), seed 12")
    each.on_round(folder, record(rounds // 2))
    with console.capture() as shown:
        previous, console.width = console.width, 80
        console.print(bars.get_renderable())
        console.width = previous
    text = shown.get()
    assert max(map(cell_len, text.splitlines())) <= 80
    assert text.count("\n") == 1
    assert "Dice 55.0%, weights 100-100%" in text
    assert "-:--" in text or "0:" in text
