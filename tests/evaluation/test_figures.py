"""Figures: drawn for any shape of run, consistent colours, honest smoothing."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from run_factory import SITES, add_rows, make_run

from evaluation import figures
from evaluation.report.report import write_report
from evaluation.runs import open_runs, together
from evaluation.tables import pairs
from fedmerit.records.results import Row


def _results(root: Path, **changes: int) -> pd.DataFrame:
    runs = [
        make_run(root / f"{method}-{seed}", method=method, seed=seed, **changes)
        for method in ("fedavg", "fedce")
        for seed in (0, 1)
    ]
    return together(open_runs(runs))


@pytest.mark.parametrize("rounds", [1, 2, 4, 30])
def test_every_figure_is_drawn_however_few_the_rounds(tmp_path: Path, rounds: int) -> None:
    results = _results(tmp_path, rounds=rounds)
    drawn = [
        figures.over_rounds(results, "weight", "Weight", equal_share=True),
        figures.over_rounds(results, "contribution", "Contribution"),
        figures.convergence(results),
        figures.dice_bars(results),
    ]
    for figure in drawn:
        assert figures.png(figure).startswith(b"\x89PNG")
        assert b"<svg" in figures.svg(figure)


def test_a_site_has_one_colour_in_all_figures(tmp_path: Path) -> None:
    results = _results(tmp_path, rounds=6)
    expected = [figures.site_style(SITES, site)["color"] for site in SITES]
    assert len(set(expected)) == len(SITES)
    for figure in (figures.over_rounds(results, "weight", "Weight"), figures.dice_bars(results)):
        handles = figure.legends[0].legend_handles
        assert [handle.get_color() for handle in handles[: len(SITES)]] == expected  # type: ignore[union-attr]


def test_many_sites_differ_in_colour_or_line() -> None:
    sites = [f"site{number:02d}" for number in range(20)]
    assert len({tuple(figures.site_style(sites, site).values()) for site in sites}) == 20


def test_smoothing_keeps_a_parabola_and_never_leaves_the_measured_range() -> None:
    rounds = np.arange(30)
    parabola = pd.Series(0.1 + 0.002 * rounds**2, index=rounds)
    np.testing.assert_allclose(figures.smooth(parabola), parabola, atol=1e-9)
    step = pd.Series([0.0] * 10 + [1.0] * 10)
    assert figures.smooth(step).between(0, 1).all()
    short = pd.Series([0.1, 0.9, 0.2])
    pd.testing.assert_series_equal(figures.smooth(short), short)


def test_a_site_that_was_absent_in_a_round_leaves_a_gap(tmp_path: Path) -> None:
    results = _results(tmp_path, rounds=6)
    gone = (results["site"] == "Birch") & (results["round"] == 3) & (results["split"] == "")
    figure = figures.over_rounds(results[~gone], "contribution", "Contribution")
    assert figures.png(figure)


def test_gains_are_drawn_with_their_intervals_in_the_sites_colours() -> None:
    index = pd.MultiIndex.from_product([["fedavg", "fedce"], SITES[:3]])
    gains = pd.DataFrame({"mean": 0.1, "low": [-0.1, 0.05, np.nan] * 2, "high": [0.2, 0.3, np.nan] * 2}, index)
    figure = figures.gain_ranges(gains, SITES)
    panel = figure.axes[0]
    assert [bars.lines[0].get_color() for bars in panel.containers] == [
        figures.site_style(SITES, site)["color"] for site in SITES[:3]
    ]
    ends = panel.containers[0].lines[2][0].get_segments()[0][:, 1]
    assert sorted(ends) == pytest.approx([-10.0, 20.0])


def test_a_sites_own_figures_are_drawn_with_and_without_the_others() -> None:
    own = pd.DataFrame({"fedavg": [0.1, 0.2, 0.3], "fedce": [0.2, 0.2, 0.4]})
    names = ["min", "lower quartile", "median", "upper quartile", "max"]
    band = pd.DataFrame([[0.0, 0.1, 0.2, 0.3, 0.4]] * 3, columns=names)
    with_others = figures.own_over_rounds(own, {"fedavg": band}, "Birch", "Weight")
    assert [len(panel.collections) for panel in with_others.axes] == [2, 0]
    assert [text.get_text() for text in figures.own_over_rounds(own, {}, "Birch", "Weight").legends[0].texts] == [
        "Birch"
    ]
    dice = pd.Series({"fedavg": 0.7, "fedce": 0.8})
    cases = {method: pd.Series([0.6, 0.9]) for method in dice.index}
    boxes = pd.DataFrame([[0.5, 0.6, 0.7, 0.8, 0.9]], index=["fedce"], columns=names)
    for others in (boxes, boxes.iloc[:0]):
        figure = figures.own_dice(dice, cases, others, "Birch")
        assert len(figure.axes[0].patches) == 2 + len(others)
        assert figures.png(figure)


def test_agreement_has_a_dot_for_each_site() -> None:
    values = pd.Series({"Alder": 1.0, "Birch": -0.5, "Cedar": 2.0})
    figure = figures.agreement(values, {"fedce": values / 3, "cgsv": values.drop("Birch")}, "leave-one-out")
    dots = [panel.collections[1].get_offsets().tolist() for panel in figure.axes]
    assert dots[0] == [pytest.approx([-0.5, -0.5 / 3])]
    assert np.ma.getmaskarray(figure.axes[1].collections[1].get_offsets()).any()


def _held(root: Path, rounds: int, seeds: int = 2) -> pd.DataFrame:
    """A run per seed in which a site's reputation with another is a number of both, the round and the seed."""
    made = []
    for seed in range(seeds):
        run = make_run(root / f"cycle-{seed}", method="cycle", seed=seed, rounds=rounds)
        rows = [
            Row(
                "cycle",
                "cycle",
                seed,
                number,
                site,
                "peer_reputation",
                _reputation(i, k, number, seed),
                coalition=holder,
            )
            for number in range(1, rounds)
            for i, holder in enumerate(SITES)
            for k, site in enumerate(SITES)
            if i != k
        ]
        add_rows(run, rows)
        made.append(run)
    return together(open_runs(made))


def _reputation(holder: int, site: int, number: int, seed: int) -> float:
    return (0.1 * holder + 0.2 * site + 0.01 * number + 0.02 * seed) % 1.0


@pytest.mark.parametrize("rounds", [2, 3, 12])
def test_reputations_among_peers_are_drawn_with_the_holder_in_the_row(tmp_path: Path, rounds: int) -> None:
    results = _held(tmp_path, rounds)
    table = pairs(results, "peer_reputation").loc["cycle"]
    for i, holder in enumerate(SITES):
        for k, site in enumerate(SITES):
            found = table.loc[(1, holder), site]
            expected = np.mean([_reputation(i, k, 1, seed) for seed in (0, 1)]) if i != k else np.nan
            np.testing.assert_allclose(found, expected)
    figure = figures.reputations(results)
    shown = [panel for panel in figure.axes if panel.images]
    assert [panel.get_title(loc="left") for panel in shown] == [
        f"Round {n}" for n in {2: [1], 3: [1, 2], 12: [1, 6, 11]}[rounds]
    ]
    cells = np.ma.filled(shown[0].images[0].get_array(), np.nan)
    np.testing.assert_allclose(cells[:-1], table.loc[1].to_numpy())
    np.testing.assert_allclose(cells[-1], table.groupby(level="round").mean().mean().to_numpy())
    assert [label.get_text() for label in shown[0].get_yticklabels()] == [*SITES, "all rounds"]
    assert figures.png(figure).startswith(b"\x89PNG")


def test_report_shows_reputations_among_peers_where_there_are_any(tmp_path: Path) -> None:
    _held(tmp_path, 3, seeds=1)
    page = write_report([tmp_path / "cycle-0"], tmp_path / "out" / "report.html", images=False)
    assert (tmp_path / "out/figures/peers.png").is_file()
    assert "with each of the others" in page.read_text()
    make_run(tmp_path / "fedavg", method="fedavg")
    page = write_report([tmp_path / "fedavg"], tmp_path / "out" / "report.html", images=False)
    assert not (tmp_path / "out/figures/peers.png").exists()
    assert "with each of the others" not in page.read_text()
