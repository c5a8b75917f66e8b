"""Verbosity and log files."""

from importlib.metadata import version

import pytest
from run_factory import make_run

from fedmerit_cli.terminal import console


def test_version(fedmerit):
    result = fedmerit("--version")
    assert (result.exit_code, result.stdout) == (0, f"fedmerit {version('fedmerit')}\n")


@pytest.mark.slow
def test_quiet_prints_only_errors(fedmerit, tmp_path):
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
