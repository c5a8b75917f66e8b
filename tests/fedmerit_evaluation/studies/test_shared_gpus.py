"""MPS with a program instead of NVIDIA's, which notes what it is asked."""

import os
from pathlib import Path

import pytest

from fedmerit_evaluation.studies import execution as module
from fedmerit_evaluation.studies.execution import CONTROL, LOGS, PIPES, shared_gpus


@pytest.fixture
def control(tmp_path, monkeypatch):
    """Replace NVIDIA's program; return the file of what it is asked. The probe computes nothing."""
    asked, folder = tmp_path / "asked", tmp_path / "bin"
    folder.mkdir()
    program = folder / CONTROL
    program.write_text(f'#!/bin/sh\necho "$1" "${PIPES}" >> {asked}\n[ -z "$1" ] && cat >> {asked}\nexit 0\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(module, "PROBE", "")
    for name in module.SERVICE:
        monkeypatch.delenv(name, raising=False)
    return asked


def test_the_service_runs_for_the_processes_that_begin_meanwhile(control):
    with shared_gpus() as shares:
        assert shares
        folder = os.environ[PIPES]
        assert Path(folder).is_dir()
        assert os.environ[LOGS] == folder
    assert control.read_text().splitlines() == [f"-d {folder}", f" {folder}", "quit"]
    assert PIPES not in os.environ
    assert not Path(folder).exists()


def test_a_service_of_the_user_stays(control, monkeypatch):
    monkeypatch.setenv(PIPES, "/theirs")
    with shared_gpus() as shares:
        assert shares
    assert os.environ[PIPES] == "/theirs"
    assert not control.exists()


def test_without_nvidias_program_gpus_are_shared_in_turn(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with shared_gpus() as shares:
        assert not shares
        assert PIPES not in os.environ


@pytest.mark.parametrize("probe", ["raise SystemExit('MPS client failed to connect')", "import sys; sys.exit(3)"])
def test_a_service_that_nothing_can_compute_by_is_ended_with_a_warning(control, monkeypatch, probe):
    warnings = []
    monkeypatch.setattr(module, "PROBE", probe)
    monkeypatch.setattr(module.log, "warning", lambda text, *more: warnings.append(text % more))
    with shared_gpus() as shares:
        assert not shares
        assert PIPES not in os.environ
    assert "quit" in control.read_text()
    assert len(warnings) == 1
    assert ("failed to connect" in warnings[0]) == ("SystemExit" in probe)
