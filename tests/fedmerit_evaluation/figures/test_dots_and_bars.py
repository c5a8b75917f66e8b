"""Figures of numbers side by side."""

import numpy as np
import pandas as pd
import pytest
from run_factory import SITES

from fedmerit_evaluation.figures import dots_and_bars
from fedmerit_evaluation.figures.drawing import method_style


def test_gains_are_drawn_with_their_intervals_in_rows_that_bear_names() -> None:
    index = pd.MultiIndex.from_product([["fedavg", "fedce"], SITES[:3]])
    gains = pd.DataFrame({"mean": 0.1, "low": [-0.1, 0.05, np.nan] * 2, "high": [0.2, 0.3, np.nan] * 2}, index)
    figure = dots_and_bars.gain_ranges(gains, SITES)
    panel = figure.axes[0]
    assert [label.get_text() for label in panel.get_yticklabels()] == list(SITES)
    assert [bars.lines[0].get_color() for bars in panel.containers] == [
        method_style(place)["color"] for place in (0, 1)
    ]
    ends = panel.containers[0].lines[2][0].get_segments()[0][:, 0]
    assert sorted(ends) == pytest.approx([-10.0, 20.0])
    assert [text.get_text() for text in figure.legends[0].texts] == ["fedavg", "fedce"]


def test_names_of_dots_that_lie_close_stand_on_different_sides() -> None:
    values = pd.Series({"a": 1.0, "b": 1.05, "c": 2.0})
    figure = dots_and_bars.agreement(values, {"fedce": pd.Series({"a": 0.5, "b": 0.5, "c": 0.1})}, "Shapley")
    sides = {text.get_text(): text.get_ha() for text in figure.axes[0].texts}
    assert sides == {"a": "right", "b": "left", "c": "left"}
    crowd = pd.Series({"a": 1.0, "b": 1.01, "c": 1.02, "d": 3.0})
    figure = dots_and_bars.agreement(crowd, {"fedce": crowd * 0 + 0.5}, "Shapley")
    assert {text.get_text(): text.get_ha() for text in figure.axes[0].texts}["b"] == "center"
    between = pd.Series({"a": 1.0, "low": 1.05, "b": 1.1, "d": 3.0})  # one between them that is far below
    figure = dots_and_bars.agreement(between, {"fedce": pd.Series({"a": 1, "low": 0, "b": 1, "d": 0.5})}, "Shapley")
    sides = {text.get_text(): text.get_ha() for text in figure.axes[0].texts}
    assert (sides["a"], sides["low"], sides["b"]) == ("right", "left", "left")
