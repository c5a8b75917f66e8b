"""The pictures of a report's first screen: numbers that agree with each other."""

from math import isnan
from pathlib import Path

import pytest
from run_factory import SITES, make_run

from fedmerit_evaluation.report.assembly import build_model
from fedmerit_evaluation.report.pictures import GainPicture, draw_pictures
from fedmerit_evaluation.results.runs import open_runs


def _gains(*folders: Path) -> GainPicture:
    gains = draw_pictures(build_model(open_runs(folders)), {}).gains
    assert gains is not None
    return gains


def test_mean_dice_of_all_hospitals_is_drawn_with_the_mean_gain(tmp_path: Path) -> None:
    local, run = (make_run(tmp_path / name, method=name, rounds=2) for name in ("standalone", "fedce"))
    mean = _gains(local, run).rows[-1]
    assert mean.dice["fedce"] - mean.local == pytest.approx(mean.gain["fedce"].mean, abs=0.11)


def test_mean_dice_of_some_hospitals_is_not_drawn(tmp_path: Path) -> None:
    local, run = (make_run(tmp_path / name, method=name, rounds=2) for name in ("standalone", "fedce"))
    results = local / "results.csv"
    lines = results.read_text().splitlines(keepends=True)
    results.write_text("".join(line for line in lines if not ("testing" in line and SITES[0] in line)))
    mean = _gains(local, run).rows[-1]
    assert isnan(mean.local)
    assert not isnan(mean.gain["fedce"].mean)
