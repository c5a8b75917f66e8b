"""Two sites that estimate a mean: known cases and the paper's bounds."""

import numpy as np
import pytest

from fedmerit_lab.papers.mean_estimation import draw, estimates, over_gaps, over_ratios


def test_what_sites_end_with_by_hand():
    drawn = estimates(3.0, (1.0, 1.0), (3.0, 1.0), runs=50, seed=1)
    for one, other, mean, (first, second) in zip(*drawn.alone.T, drawn.fedavg, drawn.cycle, strict=True):
        d = ((other - one) / 2) ** 2
        r = 1.0 if d <= 1 else 2 - d if d <= 2 else 0.0
        assert mean == pytest.approx([(3 * one + other) / 4] * 2)
        assert first == pytest.approx((1 - r / 2) * one + r / 2 * other)
        assert second == pytest.approx((1 - r / 2) * other + r / 2 * one)


def test_the_bounds_of_the_paper_hold_and_fedavg_falls_where_sites_differ():
    table = over_gaps(runs=4000)
    assert (table["cycle"] >= table["at least, cycle"]).all()
    assert (table["fedavg"] <= table["at most, fedavg"] + 0.02).all()
    assert table["fedavg"].iloc[-1] < 0.3 < 0.7 < table["cycle"].iloc[-1]
    assert len(draw(table, "gap", ["fedavg", "at most, fedavg"], "x").axes[0].get_lines()) == 2


def test_the_smaller_site_gains_more():
    table = over_ratios(runs=4000)
    assert np.isclose(table["cycle, site 1"].iloc[0], table["cycle, site 2"].iloc[0], atol=0.03)
    assert (table["cycle, site 2"].iloc[2:] > table["cycle, site 1"].iloc[2:]).all()
    assert table["deviation, site 1"].is_monotonic_decreasing  # as the paper has it
