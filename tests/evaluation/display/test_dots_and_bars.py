"""Figures of numbers side by side."""

import numpy as np
import pandas as pd
import pytest
from run_factory import SITES

from evaluation.display import dots_and_bars
from evaluation.display.drawing import png, site_style


def test_gains_are_drawn_with_their_intervals_in_the_sites_colours() -> None:
    index = pd.MultiIndex.from_product([["fedavg", "fedce"], SITES[:3]])
    gains = pd.DataFrame({"mean": 0.1, "low": [-0.1, 0.05, np.nan] * 2, "high": [0.2, 0.3, np.nan] * 2}, index)
    figure = dots_and_bars.gain_ranges(gains, SITES)
    panel = figure.axes[0]
    assert [bars.lines[0].get_color() for bars in panel.containers] == [
        site_style(SITES, site)["color"] for site in SITES[:3]
    ]
    ends = panel.containers[0].lines[2][0].get_segments()[0][:, 1]
    assert sorted(ends) == pytest.approx([-10.0, 20.0])


def test_a_sites_own_dice_is_drawn_with_and_without_the_others() -> None:
    names = ["min", "lower quartile", "median", "upper quartile", "max"]
    dice = pd.Series({"fedavg": 0.7, "fedce": 0.8})
    cases = {method: pd.Series([0.6, 0.9]) for method in dice.index}
    boxes = pd.DataFrame([[0.5, 0.6, 0.7, 0.8, 0.9]], index=["fedce"], columns=names)
    for others in (boxes, boxes.iloc[:0]):
        figure = dots_and_bars.own_dice(dice, cases, others, "Birch")
        assert len(figure.axes[0].patches) == 2 + len(others)
        assert png(figure)


def test_agreement_has_a_dot_for_each_site() -> None:
    values = pd.Series({"Alder": 1.0, "Birch": -0.5, "Cedar": 2.0})
    figure = dots_and_bars.agreement(values, {"fedce": values / 3, "cgsv": values.drop("Birch")}, "leave-one-out")
    dots = [panel.collections[1].get_offsets().tolist() for panel in figure.axes]
    assert dots[0] == [pytest.approx([-0.5, -0.5 / 3])]
    assert np.ma.getmaskarray(figure.axes[1].collections[1].get_offsets()).any()
