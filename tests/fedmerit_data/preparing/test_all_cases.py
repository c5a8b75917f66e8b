import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from layouts import prepare, prostate_site, snapshot

from fedmerit.errors import BadInput
from fedmerit_data.kinds import KINDS
from fedmerit_data.preparing.resumption import count_finished_cases

KIND = "prostate-multisite"


FIELD = {"size": 16, "field_of_view": 24.0}


@pytest.fixture
def source(tmp_path):
    prostate_site(tmp_path / "raw" / "UCL", cases=4, seed=1)
    prostate_site(tmp_path / "raw" / "ISBI", cases=3, seed=2)
    return tmp_path / "raw"


@pytest.mark.slow
def test_the_number_of_processes_changes_no_byte(source, tmp_path):
    for jobs in (1, 2):
        prepare(KIND, tmp_path / f"{jobs}", source=source, jobs=jobs, pictures=True, **FIELD)
    assert snapshot(tmp_path / "1") == snapshot(tmp_path / "2")
    assert (tmp_path / "1" / "overview" / "montage.png").is_file()
    assert not (tmp_path / "1" / "RUNMC" / "overview").exists()


def dies(case):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_dies_names_its_case(source, tmp_path, monkeypatch):
    monkeypatch.setitem(KINDS, KIND, replace(KINDS[KIND], decode=dies))
    with pytest.raises(BadInput, match=r"died at one of .*Case00.nii.gz.*use fewer jobs"):
        prepare(KIND, tmp_path / "sites", source=source, jobs=2, **FIELD)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
def test_processes_end_with_the_command_and_the_next_goes_on(source, tmp_path):
    out = tmp_path / "sites"
    prostate_site(source / "UCL", cases=40, seed=1)
    arguments = ["prepare", KIND, "--source", str(source), "--out", str(out), "--jobs", "2"]
    arguments += ["--size", "16", "--field-of-view", "24", "--no-pictures"]
    code = "from fedmerit_cli.main import app; app()"
    command = subprocess.Popen([sys.executable, "-c", code, *arguments], start_new_session=True)
    while count_finished_cases(out) < 2 and command.poll() is None:
        time.sleep(0.01)
    command.kill()
    command.wait()
    for _ in range(600):
        try:
            os.killpg(command.pid, 0)  # whether any process of its session is left
        except ProcessLookupError:
            break
        time.sleep(0.1)
    else:
        pytest.fail("its processes outlive the command")
    assert count_finished_cases(out) >= 2 or out.exists()
    if not out.exists():
        prepare(KIND, out, source=source, **FIELD)
    prepare(KIND, tmp_path / "undisturbed", source=source, **FIELD)
    assert snapshot(out) == snapshot(tmp_path / "undisturbed")
