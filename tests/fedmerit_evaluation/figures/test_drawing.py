"""What figures share."""

import base64
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from run_factory import SITES

from fedmerit_evaluation.figures import dots_and_bars, pages
from fedmerit_evaluation.figures.drawing import (
    for_phone,
    label_rows,
    legend,
    method_style,
    panels,
    png,
    site_style,
    svg,
)
from fedmerit_evaluation.figures.pages import Drawing, pictures


def test_a_site_has_a_colour_of_its_own() -> None:
    assert len({site_style(SITES, site)["color"] for site in SITES}) == len(SITES)


@pytest.mark.slow
def test_dollar_signs_are_no_formulas() -> None:
    figure, (panel, powers) = panels(2)
    name = "A$x_{$"
    label_rows(panel, [name, "B$"])
    panel.set_title(name)
    legend(figure, [Line2D([], [], label=name)], name)
    powers.set_yscale("log")
    powers.plot([1, 2], [1, 1000])
    for _ in range(2):
        assert png(figure).startswith(b"\x89PNG")
        assert b"<svg" in svg(figure)
    labels = [label for label in powers.get_yticklabels() if "10" in label.get_text()]
    assert labels
    assert all(label.get_parse_math() for label in labels)  # powers of ten are


def test_many_sites_differ_in_colour_or_line() -> None:
    sites = [f"site{number:02d}" for number in range(20)]
    assert len({tuple(site_style(sites, site).values()) for site in sites}) == 20


def test_a_phone_gets_panels_below_each_other_and_a_legend_of_fewer_columns() -> None:
    figure, axes = panels(3, sharey=True)
    for number, panel in enumerate(axes):
        panel.plot([0, 1], [0, number + 1])
    legend(figure, [Line2D([], [], label=f"a method of a long name, {number}") for number in range(3)], "Methods")
    width, height = figure.get_size_inches()
    wide = svg(figure)
    assert for_phone(figure)
    assert figure.axes == axes  # none is lost, and the empty fourth is gone
    assert figure.get_figwidth() < width
    assert figure.get_figheight() > height
    assert svg(figure) != wide
    places = [panel.get_position() for panel in axes]
    assert len({round(place.x0, 6) for place in places}) == 1
    assert [place.y0 for place in places] == sorted((place.y0 for place in places), reverse=True)
    assert all(label.get_visible() for panel in axes for label in panel.get_yticklabels())
    (words,) = figure.legends
    assert words.get_title().get_text() == "Methods"
    assert len({round(text.get_window_extent().x0) for text in words.get_texts()}) == 1  # one column


def test_a_figure_that_is_no_grid_stays_as_it_is() -> None:
    figure, (panel,) = panels(1)
    figure.add_axes((0.1, 0.1, 0.2, 0.2))
    size = tuple(figure.get_size_inches())
    assert not for_phone(figure)
    assert (tuple(figure.get_size_inches()), figure.axes[0]) == (size, panel)


def test_pictures_without_axes_stay_as_they_are() -> None:
    figure, axes = panels(3)
    for panel in axes:
        panel.imshow([[0.0, 1.0]])
        panel.set_axis_off()
    before = figure.get_size_inches().tolist()
    assert not for_phone(figure)
    assert figure.get_size_inches().tolist() == before


def _held(address: str, kind: str) -> bytes:
    """What an address itself holds."""
    start = f"data:image/{kind};base64,"
    assert address.startswith(start)
    return base64.b64decode(address.removeprefix(start))


def test_figures_are_saved_as_png_and_held_as_svg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "png", lambda figure: f"png of {figure.get_label()}".encode())
    monkeypatch.setattr(pages, "svg", lambda figure: f"svg of {figure.get_label()}".encode())
    dice, weights = Figure(), Figure()
    dice.set_label("dice")
    weights.set_label("weights")
    shown = pictures({"d": Drawing("Dice.", dice), "w": Drawing("Weights.", weights, "A line.")}, tmp_path / "figures")
    assert (tmp_path / "figures" / "d.png").read_bytes() == b"png of dice"
    assert (tmp_path / "figures" / "w.png").read_bytes() == b"png of weights"
    assert [(one.name, one.caption, one.seen) for one in shown.values()] == [
        ("d", "Dice.", "Dice."),  # nothing is reported of what is seen: the caption is
        ("w", "Weights.", "A line."),
    ]
    assert [_held(one.address, "svg+xml") for one in shown.values()] == [b"svg of dice", b"svg of weights"]


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


def test_long_names_leave_the_panel_its_room_and_are_whole() -> None:
    names = [f"University-Hospital-of-the-Longest-Name-of-All-{number}" for number in range(3)]
    methods = [f"fedce (lr={lr}, epochs=1, optimizer=adam, weight_decay=0.1)" for lr in (0.1, 0.2)]
    index = pd.MultiIndex.from_product([methods, [0], names, ["a"]], names=["method", "seed", "site", "case"])
    figure = dots_and_bars.dice_bars(pd.Series(0.5, index), names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svg(figure)
        assert for_phone(figure)
        svg(figure)
    (panel,), (key,) = figure.axes, figure.legends
    assert panel.get_position().width > 0.4
    assert [text.get_text().replace("\n", "") for text in panel.get_yticklabels()] == names
    assert [text.get_text().replace("\n", " ") for text in key.get_texts()[:2]] == methods
    assert key.get_window_extent().x1 <= figure.bbox.x1
