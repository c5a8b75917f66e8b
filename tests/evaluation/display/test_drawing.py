"""One colour per site, the same in every figure."""

from pathlib import Path

from run_factory import SITES, make_run

from evaluation.display import curves, dots_and_bars
from evaluation.display.drawing import legend, names_axis, panels, png, site_lines, site_style, svg
from evaluation.results.run_folders import open_runs, together


def test_a_site_has_one_colour_in_all_figures(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / method, method=method, rounds=3) for method in ("fedavg", "fedce")]
    results = together(open_runs(runs))
    expected = [site_style(SITES, site)["color"] for site in SITES]
    assert len(set(expected)) == len(SITES)
    for figure in (curves.over_rounds(results, "weight", "Weight"), dots_and_bars.dice_bars(results)):
        handles = figure.legends[0].legend_handles
        assert [handle.get_color() for handle in handles[: len(SITES)]] == expected  # type: ignore[union-attr]


def test_dollar_signs_are_no_formulas() -> None:
    figure, (panel, powers) = panels(2)
    name = "A$x_{$"
    names_axis(panel, [0, 1], [name, "B$"])
    panel.set_title(name)
    legend(figure, site_lines([name, "B"]), name)
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
