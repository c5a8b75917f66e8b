"""What figures share."""

import pytest
from matplotlib.lines import Line2D
from run_factory import SITES

from fedmerit_evaluation.figures.drawing import for_phone, label_rows, legend, panels, png, site_style, svg


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
