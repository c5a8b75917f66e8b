"""What a run on the simulator says when it ended early."""

import pytest

from fedmerit.configuration.run import TASKS, make_configuration
from fedmerit.files import write_json
from fedmerit.flare.simulation import _explain_failure, estimate_memory


@pytest.mark.parametrize(
    ("width", "size", "measured"),
    [(8, 64, 0.8e9), (8, 128, 0.92e9), (32, 64, 4.0e9), (64, 64, 15.9e9), (8, 256, 1.36e9)],
)
def test_memory_is_near_what_processes_of_six_sites_took(tmp_path, width, size, measured):
    """Two at work; measured on an x86 processor with PyTorch 2.13, what they share left out."""
    config = make_configuration("fedce", "prostate", 3, 0, TASKS["prostate"], {"width": str(width)})
    write_json(tmp_path / "run.json", {"image_size": [size, size]})
    assert 0.8 * measured < estimate_memory(config, tmp_path, 6, 2) < 1.6 * measured


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("2026 - INFO - started\nfedmerit.errors.BadInput: method 'mine': unknown\n", "method 'mine': unknown"),
        ("2026 - ERROR - disk full\n", "disk full"),
        ("2026 - INFO - started\n2026 - INFO - bye\n", "no error in its log, which ends with:\n2026 - INFO - started"),
    ],
)
def test_the_reason_is_told(tmp_path, log, told):
    (tmp_path / "nvflare.log").write_text(log)
    assert told in _explain_failure(tmp_path / "nvflare.log", 0, tmp_path)


def test_what_an_earlier_try_left_in_the_log_is_not_this_ones(tmp_path):
    earlier = "BadInput: cuda:1 is not there\n"
    (tmp_path / "nvflare.log").write_text(f"{earlier}a round began\n")
    told = _explain_failure(tmp_path / "nvflare.log", len(earlier), tmp_path)
    assert "cuda:1" not in told
    assert "no error in its log, which ends with:\na round began" in told
