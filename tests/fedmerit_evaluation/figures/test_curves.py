"""Figures over the rounds: drawn for any shape of run, honest smoothing."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.lines import Line2D
from run_factory import SITES, make_run

from fedmerit_evaluation.figures import curves, dots_and_bars
from fedmerit_evaluation.figures.drawing import (
    NAME_HEIGHT,
    for_phone,
    label_rows,
    legend,
    name_lines,
    panels,
    png,
    site_style,
    svg,
)
from fedmerit_evaluation.results.run_folders import combine_results, open_runs
from fedmerit_evaluation.results.views import Results


def _results(root: Path, **changes: int) -> Results:
    runs = [
        make_run(root / f"{method}-{seed}", method=method, seed=seed, **changes)
        for method in ("fedavg", "fedce")
        for seed in (0, 1)
    ]
    return combine_results(open_runs(runs))


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 4])
def test_every_figure_is_drawn_however_few_the_rounds(tmp_path: Path, rounds: int) -> None:
    results = _results(tmp_path, rounds=rounds)
    drawn = [
        curves.over_rounds(results, "weight", "Weight", equal_share=True),
        curves.over_rounds(results, "contribution", "Contribution"),
        curves.convergence(results),
        dots_and_bars.dice_bars(results),
    ]
    for figure in drawn:
        assert png(figure).startswith(b"\x89PNG")
        assert b"<svg" in svg(figure)


def test_smoothing_keeps_a_parabola_and_never_leaves_the_measured_range() -> None:
    rounds = np.arange(30)
    parabola = pd.Series(0.1 + 0.002 * rounds**2, index=rounds)
    np.testing.assert_allclose(curves.smooth(parabola), parabola, atol=1e-9)
    step = pd.Series([0.0] * 10 + [1.0] * 10)
    assert curves.smooth(step).between(0, 1).all()
    short = pd.Series([0.1, 0.9, 0.2])
    pd.testing.assert_series_equal(curves.smooth(short), short)


def test_every_line_bears_its_name_and_none_lies_on_another(tmp_path: Path) -> None:
    figure = curves.over_rounds(_results(tmp_path, rounds=4), "weight", "Weight", equal_share=True)
    for panel in figure.axes:
        names = {text.get_text(): text.get_position()[1] for text in panel.texts}
        assert set(names) == set(SITES)
        heights, (low, high) = sorted(names.values()), panel.get_ylim()
        assert low == 0
        assert np.diff(heights).min() >= 0.99 * NAME_HEIGHT * (high - low)
        assert heights[-1] <= high
        assert max(np.max(line.get_ydata()) for line in panel.lines) <= high


def test_names_stay_apart_however_many_lines_end_in_one_place() -> None:
    figure, (panel,) = panels(1)
    panel.set_ylim(0, 1)
    name_lines(panel, {f"site{number}": (1.0, 0.98, "k") for number in range(8)})
    heights = sorted(text.get_position()[1] for text in panel.texts)
    assert heights[-1] <= 1
    assert np.diff(heights).min() >= 0.99 * NAME_HEIGHT
    assert png(figure)


def test_methods_whose_numbers_never_change_have_no_panel() -> None:
    index = pd.MultiIndex.from_product([["fedavg", "fedce"], [0], [0, 1]], names=["method", "seed", "round"])
    table = pd.DataFrame({"Alder": [0.4, 0.4, 0.4, 0.5], "Birch": [0.6, 0.6, 0.6, np.nan]}, index)
    assert curves.moving(table) == ["fedce"]


def test_a_sites_own_lines() -> None:
    own = pd.DataFrame({"fedavg": [10, 20, 30], "fedce": [20, 20, 40]})
    figure = curves.own_over_rounds(own, "Birch", "Weight [%]")
    assert [len(panel.lines) for panel in figure.axes] == [1, 1]
    assert {panel.get_ylim()[0] for panel in figure.axes} == {0}
    assert all(panel.get_ylim()[1] >= 40 for panel in figure.axes)  # none is cut off by another's


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
