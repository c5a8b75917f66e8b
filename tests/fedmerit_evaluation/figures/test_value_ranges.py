"""The figure of what sites are worth: dots, intervals, ranks, and bands of those that cannot be distinguished."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle

from fedmerit_evaluation.figures.dots_and_bars import value_ranges
from fedmerit_evaluation.figures.drawing import site_style
from fedmerit_evaluation.statistics.ranks import Ranking

SITES = ["Alder", "Birch", "Cedar"]
WORTH = np.array([2.0, 9.0, 3.0])


def _ranking(*, measured: bool = True, reported: bool = True) -> Ranking:
    """Birch is worth most; Alder and Cedar cannot be distinguished, nor any two where nothing is reported."""
    apart = np.array([[0, -1, 0], [1, 0, 1], [0, -1, 0]]) if reported else np.zeros((3, 3), int)
    spread = 1.0 if measured else np.nan
    ranks, untested = (np.array([3, 1, 3]), np.array([2, 1, 2])), np.full((3, 3), np.nan)
    return Ranking(SITES, WORTH, WORTH - spread, WORTH + spread, *ranks, apart, untested, 3)


def _bands(panel: Axes) -> list[tuple[float, float]]:
    return [(round(one.get_y(), 2), round(one.get_y() + one.get_height(), 2)) for one in panel.patches
            if isinstance(one, Rectangle)]  # fmt: skip


def test_the_highest_stands_on_top_with_its_interval_and_the_rank_that_can_be_said() -> None:
    (panel,) = value_ranges({"Shapley": _ranking()}, {"Shapley": "points of Dice"}).axes
    assert [label.get_text() for label in panel.get_yticklabels()] == ["Alder", "Cedar", "Birch"]  # from below
    assert (panel.get_title("left"), panel.get_xlabel()) == ("Shapley", "points of Dice")
    dots = {line.get_color(): np.asarray(line.get_xydata())[0].tolist() for line in panel.lines
            if line.get_marker() == "o"}  # fmt: skip
    expected = {"Birch": [9, 2], "Cedar": [3, 1], "Alder": [2, 0]}
    assert dots == {site_style(SITES, site)["color"]: place for site, place in expected.items()}
    ends = [line.get_segments()[0].tolist() for line in panel.collections if isinstance(line, LineCollection)]
    assert ends == [[[8, 2], [10, 2]], [[2, 1], [4, 1]], [[1, 0], [3, 0]]]
    ranks = [(text.get_text(), text.xy[1]) for text in panel.texts]  # type: ignore[attr-defined]
    assert ranks == [("rank 1", 2), ("rank 2 to 3", 1), ("rank 2 to 3", 0)]


def test_those_that_cannot_be_distinguished_hang_on_one_band() -> None:
    apart, alike = value_ranges({"a": _ranking(), "b": _ranking(reported=False)}, {"a": "", "b": ""}).axes
    assert _bands(apart) == [(-0.15, 1.15)]  # from Alder to Cedar above it
    assert _bands(alike) == [(0.85, 2.15), (-0.15, 1.15)]
    assert (apart.get_title("left"), alike.get_title("left")) == ("a", "b\nno significant difference")


def test_what_was_not_resampled_has_no_interval() -> None:
    (panel,) = value_ranges({"counts": _ranking(measured=False)}, {"counts": "images"}).axes
    assert not panel.collections
    assert sum(line.get_marker() == "o" for line in panel.lines) == 3
