"""Figure 1 of CGSV: the approximations, their errors, and the figure."""

import math
from itertools import permutations

import pandas as pd
import pytest
import torch

from fedmerit.contract.games import cosine_game, shapley
from fedmerit.contract.vectors import gram
from fedmerit.errors import BadInput
from fedmerit_lab.papers import cgsv
from fedmerit_lab.papers.cgsv import COSINE, EXACT, PERMUTATIONS, SAMPLED, WHOLE, compare, errors, grid

ERRORS = ["l1", "l2", "pearson"]


def updates_of(sites, dimensions, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sites, dimensions, generator=generator, dtype=torch.float64)


def by_definition(updates):
    """Eq. 2 of the paper: means over all orders of a site's marginal, coalitions as sums of whole vectors."""
    values = torch.zeros(len(updates), dtype=torch.float64)
    orders = list(permutations(range(len(updates))))
    for order in orders:
        before = 0.0
        for place, site in enumerate(order):
            coalition = updates[list(order[: place + 1])].sum(0)
            now = float(torch.cosine_similarity(coalition, updates.sum(0), dim=0))
            values[site] += (now - before) / len(orders)
            before = now
    return values


@pytest.mark.parametrize("sites", [1, 2, 5])
def test_both_exact_evaluations_are_the_definition(sites):
    updates = updates_of(sites, 7)
    expected = by_definition(updates)
    torch.testing.assert_close(shapley(cgsv.whole_update_game(updates)), expected, rtol=0, atol=1e-13)
    from_gram = cosine_game(gram(updates), torch.full((sites,), 1 / sites))
    torch.testing.assert_close(shapley(from_gram), expected, rtol=0, atol=1e-13)


def test_errors_are_those_of_values_of_sum_one():
    found = errors(torch.tensor([1.0, 1.0, 2.0]), torch.tensor([2.0, 4.0, 4.0]))
    assert found == pytest.approx({"l1": 0.3, "l2": math.hypot(0.05, 0.15, 0.1), "pearson": 0.5}, abs=1e-6)
    scaled = errors(torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0]))
    assert scaled == pytest.approx({"l1": 0, "l2": 0, "pearson": 1}, abs=1e-6)


def test_the_cosine_is_nearer_than_sampling_and_nears_the_exact_values_as_dimensions_grow():
    table = compare([(6, 64), (6, 4096)], repeats=4)
    for norm in ("l1", "l2"):
        assert (table[norm].xs(COSINE, level="evaluation") < table[norm].xs(SAMPLED, level="evaluation")).all()
        assert table[norm][6, 4096, COSINE] < table[norm][6, 64, COSINE] / 3
    assert (table["pearson"].xs(COSINE, level="evaluation") > 0.9).all()
    assert (table.xs(WHOLE, level="evaluation")[["l1", "l2"]] < 1e-12).all(axis=None)
    assert (table.xs(EXACT, level="evaluation")[["l1", "l2"]] == 0).all(axis=None)
    assert (table["seconds"] > 0).all()


def test_sampling_nears_the_exact_values_with_more_permutations(monkeypatch):
    few = compare([(5, 64)], repeats=4)
    monkeypatch.setattr(cgsv, "PERMUTATIONS", 100 * PERMUTATIONS)
    many = compare([(5, 64)], repeats=4)
    assert many["l1"][5, 64, SAMPLED] < few["l1"][5, 64, SAMPLED] / 4
    assert many["l1"][5, 64, COSINE] == few["l1"][5, 64, COSINE]


def test_errors_of_a_cell_depend_only_on_the_seed():
    single = compare([(4, 32)], repeats=2)[ERRORS]
    together = compare([(5, 16), (4, 32)], repeats=2)[ERRORS]
    pd.testing.assert_frame_equal(together.loc[[4]], single)
    assert (compare([(4, 32)], repeats=2, seed=1)["l1"] != single["l1"])[4, 32, COSINE]


def test_the_grid_varies_sites_and_dimensions_about_one_point():
    cells = grid(20)
    assert {n for n, d in cells if d == 1024} == set(range(4, 21, 2))
    assert {d for n, d in cells if n == 10} == {2**power for power in range(6, 19, 2)}
    assert len(cells) == len(set(cells)) == 9 + 7 - 1
    assert {n for n, _ in grid(5)} == {4, 5}
    for largest in (3, 25):
        with pytest.raises(BadInput, match=f"largest sites {largest}: expected 4 to 24"):
            grid(largest)


def test_the_figure_names_its_axes_and_draws_what_was_measured(monkeypatch):
    monkeypatch.setattr(cgsv, "CHEAP", 2**4 * 1024)
    table = compare(grid(5), repeats=1)
    figure = cgsv.draw(table)
    panels = figure.axes
    labels = ["Error, values of sum 1", "Pearson r with exact values", "Time [ms]"]
    assert [panel.get_ylabel() for panel in panels[::2]] == labels
    assert [panel.get_xlabel() for panel in panels[-2:]] == ["Sites N, at D = 1024", "Dimensions D, at N = 5"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [COSINE, SAMPLED, EXACT, WHOLE]
    cosine = panels[0].lines[0]
    assert cosine.get_xdata().tolist() == [4, 5]
    assert cosine.get_ydata().tolist() == table["l1"].xs(COSINE, level="evaluation").xs(1024, level=1).tolist()
    times = {line.get_color(): line for line in panels[-1].lines}
    assert times[cgsv.COLOURS[WHOLE]].get_xdata().tolist() == [64, 256]
    assert len(times[cgsv.COLOURS[EXACT]].get_xdata()) == 7
