"""Shares with and without a site: what the bars show."""

import pandas as pd
import pytest

from evaluation.papers.share_bars import before_and_after


def test_a_panel_for_each_site_left_out():
    index = pd.MultiIndex.from_tuples([("A", "B"), ("A", "C"), ("B", "A"), ("B", "C")], names=["without", "site"])
    shares = pd.DataFrame({"with_all": [60, 40, 30, 70], "without_it": [55, 45, 42.3, 57.7]}, index)
    figure = before_and_after(shares)
    first, second = figure.axes
    assert first.get_title(loc="left") == "without A: \N{GREEK CAPITAL LETTER DELTA} up to 5.0"
    assert second.get_title(loc="left") == "without B: \N{GREEK CAPITAL LETTER DELTA} up to 12.3"
    with_all, without_it = second.containers
    assert [bar.get_height() for bar in with_all] == [30, 70]
    assert [bar.get_height() for bar in without_it] == [42.3, 57.7]
    assert [text.get_text() for text in second.get_xticklabels()] == ["A", "C"]
    of_c = [panel.containers[0][1].get_facecolor() for panel in (first, second)]
    assert of_c[0] == pytest.approx(of_c[1])  # a site keeps its colour from panel to panel
    assert of_c[0] != pytest.approx(first.containers[0][0].get_facecolor())


def test_panels_without_a_site_are_empty():
    """Of four sites left out the second row of three columns holds one."""
    names = list("ABCD")
    index = pd.MultiIndex.from_tuples([(a, b) for a in names for b in names if a != b], names=["without", "site"])
    figure = before_and_after(pd.DataFrame({"with_all": 1 / 3, "without_it": 1 / 3}, index))
    assert [panel.axison for panel in figure.axes] == [True] * 4 + [False] * 2
