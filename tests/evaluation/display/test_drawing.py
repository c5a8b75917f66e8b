"""What figures share."""

from run_factory import SITES

from evaluation.display.drawing import site_style


def test_a_site_has_a_colour_of_its_own() -> None:
    assert len({site_style(SITES, site)["color"] for site in SITES}) == len(SITES)


def test_many_sites_differ_in_colour_or_line() -> None:
    sites = [f"site{number:02d}" for number in range(20)]
    assert len({tuple(site_style(sites, site).values()) for site in sites}) == 20
