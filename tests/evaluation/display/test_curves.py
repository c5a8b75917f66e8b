"""Figures over the rounds: drawn for any shape of run, honest smoothing."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from run_factory import make_run

from evaluation.display import curves, dots_and_bars
from evaluation.display.drawing import png, svg
from evaluation.results.run_folders import open_runs, together
from evaluation.results.views import Results


def _results(root: Path, **changes: int) -> Results:
    runs = [
        make_run(root / f"{method}-{seed}", method=method, seed=seed, **changes)
        for method in ("fedavg", "fedce")
        for seed in (0, 1)
    ]
    return together(open_runs(runs))


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


def test_a_site_that_was_absent_in_a_round_leaves_a_gap(tmp_path: Path) -> None:
    results = _results(tmp_path, rounds=6)
    rows = results.rows
    gone = (rows["site"] == "Birch") & (rows["round"] == 3) & (rows["split"] == "")
    figure = curves.over_rounds(Results(rows[~gone]), "contribution", "Contribution")
    assert png(figure)


def test_a_sites_own_lines_are_drawn_with_and_without_the_others() -> None:
    own = pd.DataFrame({"fedavg": [0.1, 0.2, 0.3], "fedce": [0.2, 0.2, 0.4]})
    names = ["min", "lower quartile", "median", "upper quartile", "max"]
    band = pd.DataFrame([[0.0, 0.1, 0.2, 0.3, 0.4]] * 3, columns=names)
    with_others = curves.own_over_rounds(own, {"fedavg": band}, "Birch", "Weight")
    assert [len(panel.collections) for panel in with_others.axes] == [2, 0]
    assert [text.get_text() for text in curves.own_over_rounds(own, {}, "Birch", "Weight").legends[0].texts] == [
        "Birch"
    ]
