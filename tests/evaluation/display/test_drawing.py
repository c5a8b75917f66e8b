"""What figures share."""

import pytest
from matplotlib.lines import Line2D
from run_factory import SITES

from evaluation.display.drawing import legend, names_beside, panels, png, side_by_side, site_style, stack, svg


def test_a_site_has_a_colour_of_its_own() -> None:
    assert len({site_style(SITES, site)["color"] for site in SITES}) == len(SITES)


@pytest.mark.slow
def test_dollar_signs_are_no_formulas() -> None:
    figure, (panel, powers) = panels(2)
    name = "A$x_{$"
    names_beside(panel, [name, "B$"])
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


def test_panels_beside_each_other_are_stacked_for_phones() -> None:
    figure, axes = panels(3, sharey=True)
    for number, panel in enumerate(axes):
        panel.plot([0, 1], [0, number + 1])
    assert side_by_side(figure)
    width = figure.get_figwidth()
    wide = svg(figure)
    stack(figure)
    assert not side_by_side(figure)
    assert figure.axes == axes  # none is lost, and the empty fourth is gone
    assert figure.get_figwidth() < width
    assert svg(figure) != wide
    places = [panel.get_position() for panel in axes]
    assert len({round(place.x0, 6) for place in places}) == 1
    assert [place.y0 for place in places] == sorted((place.y0 for place in places), reverse=True)
    assert all(label.get_visible() for panel in axes for label in panel.get_yticklabels())


def test_one_panel_needs_no_stacking() -> None:
    assert not side_by_side(panels(1)[0])
