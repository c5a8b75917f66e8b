"""`fedmerit lab bench growth`: what it measures is drawn; timings themselves are not tested."""

import pytest


@pytest.mark.slow
def test_growth(fedmerit, tmp_path):
    left_out = ("--width", "", "--size", "", "--rounds", "")
    tiny = ("--set", "architecture=unet", "--set", "depth=2", "--repetitions", 1)
    result = fedmerit("lab", "bench", "growth", "--out", tmp_path, "--sites", "2,3", *left_out, *tiny)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "growth-sites-seconds.png").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--sites", "1"), "--sites 1: too few"),
        (("--width", "many"), "--width many: expected whole numbers"),
    ],
)
def test_bad_input(fedmerit, tmp_path, arguments, told):
    result = fedmerit("lab", "bench", "growth", *arguments, "--out", tmp_path)
    assert result.exit_code == 2, result.output
    assert told in result.stderr
