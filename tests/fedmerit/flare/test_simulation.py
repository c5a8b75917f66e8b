"""What a run on the simulator says when it ended early."""

import pytest

from fedmerit.flare.simulation import _what_happened


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
    assert told in _what_happened(tmp_path / "nvflare.log", 0, tmp_path)


def test_what_an_earlier_try_left_in_the_log_is_not_this_ones(tmp_path):
    earlier = "BadInput: cuda:1 is not there\n"
    (tmp_path / "nvflare.log").write_text(f"{earlier}a round began\n")
    told = _what_happened(tmp_path / "nvflare.log", len(earlier), tmp_path)
    assert "cuda:1" not in told
    assert "no error in its log, which ends with:\na round began" in told
