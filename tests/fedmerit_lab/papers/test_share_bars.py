"""Shares with and without a site: what the bars show."""

import pandas as pd
import pytest

from fedmerit_lab.papers.share_bars import before_and_after


def test_a_panel_for_each_site_left_out():
    pairs = [("A", "B"), ("A", "C"), ("A", "D"), ("C", "A"), ("C", "B"), ("C", "D")]
    index = pd.MultiIndex.from_tuples(pairs, names=["without", "site"])
    shares = {"with_all": [50, 30, 20, 30, 30, 40], "without_it": [45, 31, 24, 42.3, 25, 32.7]}
    first, second = before_and_after(pd.DataFrame(shares, index)).axes
    assert first.get_title(loc="left") == "without A: \N{GREEK CAPITAL LETTER DELTA} up to 5.0"
    assert second.get_title(loc="left") == "without C: \N{GREEK CAPITAL LETTER DELTA} up to 12.3"  # up or down
    with_all, without_it = second.containers
    assert [bar.get_height() for bar in with_all] == [30, 30, 40]
    assert [bar.get_height() for bar in without_it] == [42.3, 25, 32.7]
    assert [text.get_text() for text in second.get_xticklabels()] == ["A", "B", "D"]
    of_b = [panel.containers[0][place].get_facecolor() for panel, place in ((first, 0), (second, 1))]
    assert of_b[0] == pytest.approx(of_b[1])  # a site keeps its colour from panel to panel
    assert of_b[0] != pytest.approx(first.containers[0][1].get_facecolor())


def test_panels_without_a_site_are_empty():
    """Of four sites left out the second row of three columns holds one."""
    names = list("ABCD")
    index = pd.MultiIndex.from_tuples([(a, b) for a in names for b in names if a != b], names=["without", "site"])
    figure = before_and_after(pd.DataFrame({"with_all": 1 / 3, "without_it": 1 / 3}, index))
    assert [panel.axison for panel in figure.axes] == [True] * 4 + [False] * 2
