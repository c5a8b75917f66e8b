"""What figures share."""

import pytest
from matplotlib.lines import Line2D
from run_factory import SITES

from evaluation.display.drawing import legend, names_beside, panels, png, site_style, svg


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
