"""Figures over the rounds: drawn for any shape of run, honest smoothing."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from run_factory import SITES, make_run

from fedmerit_evaluation.figures import curves, dots_and_bars
from fedmerit_evaluation.figures.drawing import NAME_HEIGHT, name_lines, panels, png, svg
from fedmerit_evaluation.results.runs import combine_results, open_runs
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
        curves.over_rounds(results.rounds.of("weight"), "Weight", 0.25),
        curves.over_rounds(results.rounds.of("contribution"), "Contribution"),
        curves.convergence(results.rounds.validation),
        dots_and_bars.dice_bars(results.dice.cases, results.sites),
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
    joined_and_left = pd.Series([np.nan] * 3 + [0.5] * 4 + [np.nan] + [0.5] * 2 + [np.nan] * 2)
    assert curves.smooth(joined_and_left).notna().tolist() == [False] * 3 + [True] * 7 + [False] * 2


def test_every_line_bears_its_name_and_none_lies_on_another(tmp_path: Path) -> None:
    figure = curves.over_rounds(_results(tmp_path, rounds=4).rounds.of("weight"), "Weight", 0.25)
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
