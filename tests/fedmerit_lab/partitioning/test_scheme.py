"""Partition schemes: shares of classes, and whole patients in proportion."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmerit.errors import BadInput
from fedmerit_lab.partitioning.assignment import apportion, assign_sites, class_shares, split_classes
from fedmerit_lab.partitioning.scheme import Scheme


def make_classes(*sizes):
    """A row of patients: as many of each class."""
    return np.repeat(np.arange(len(sizes)), sizes)


def table(classes, sites, scheme):
    """(classes, sites): how many patients of a class went to a site."""
    counts = np.zeros((classes.max() + 1, scheme.into), dtype=int)
    np.add.at(counts, (classes, sites), 1)
    return counts


def assigned(scheme, *sizes):
    classes = make_classes(*sizes)
    return table(classes, assign_sites(classes, split_classes(scheme, len(sizes))), scheme)


def largest_remainders(total, weights):
    """By fractions, where every site gets at least one."""
    quotas = [Fraction(total) * weight / sum(weights) for weight in weights]
    counts = [int(quota) for quota in quotas]
    order = sorted(range(len(weights)), key=lambda site: (counts[site] - quotas[site], site))
    for site in order[: total - sum(counts)]:
        counts[site] += 1
    return counts


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(0, 300))
def test_apportion_is_the_method_of_largest_remainders(weights, more):
    total = sum(weights) + more  # no site's proportional part is below one
    assert apportion(total, np.array(weights, dtype=float)).tolist() == largest_remainders(total, weights)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9).filter(sum), st.integers(0, 60))
def test_apportion_leaves_no_site_without_a_patient(shares, more):
    counts = apportion(len(shares) + more, np.array(shares))
    assert counts.sum() == len(shares) + more
    assert counts.min() >= 1
    less = 1e-9 * sum(shares)  # shares that differ by no more than rounding are equal, and the first goes before
    pairs = itertools.permutations(range(len(shares)), 2)
    assert all(counts[a] <= counts[b] for a, b in pairs if shares[b] - shares[a] > less)


def test_shares_that_differ_by_rounding_only_are_equal():
    assert apportion(3, np.array([0.9999999999999999, 1.0])).tolist() == [2, 1]


@pytest.mark.parametrize(
    ("sites", "exponent", "total", "sizes"),
    [
        (5, 1, 3000, [200, 400, 600, 800, 1000]),
        (3, 2, 140, [10, 40, 90]),
        (4, 0, 22, [6, 6, 5, 5]),
        (5, None, 60, [3, 7, 11, 17, 22]),  # k^1.25: 2.93, 6.97, 11.58, 16.59, 21.93; 11.58 has the least remainder
    ],
)
def test_sizes_follow_the_power_law(sites, exponent, total, sizes):
    assert assigned(Scheme("powerlaw", sites, exponent=exponent), total).sum(axis=0).tolist() == sizes


@pytest.mark.parametrize(
    ("sites", "kappa", "holders", "total", "sizes"),
    [
        (5, 0.8, 1, 100, [80, 5, 5, 5, 5]),
        (5, 0.35, 2, 100, [35, 35, 10, 10, 10]),
        (5, None, None, 50, [30, 5, 5, 5, 5]),
        (5, 0.14, 2, 100, [14, 14, 24, 24, 24]),  # holders may get less than the others
    ],
)
def test_a_few_sites_hold_a_share_each_and_the_others_the_rest(sites, kappa, holders, total, sizes):
    scheme = Scheme("imbalanced", sites, kappa=kappa, holders=holders)
    assert assigned(scheme, total).sum(axis=0).tolist() == sizes
    assert split_classes(scheme, 2).sum(axis=1) == pytest.approx([1, 1])


@pytest.mark.parametrize(
    ("sites", "seen"),
    [(1, [4]), (2, [2, 2]), (3, [2, 3, 4]), (5, [1, 1, 2, 3, 4]), (10, [1] * 3 + [2] * 3 + [3] * 3 + [4])],
)
def test_sites_of_one_size_see_more_and_more_classes(sites, seen):
    counts = assigned(Scheme("variety", sites), *[300] * 4)
    assert counts.sum(axis=1).tolist() == [300] * 4
    assert np.ptp(counts.sum(axis=0)) <= 2
    assert (counts > 5).sum(axis=0).tolist() == seen


@given(st.integers(1, 8), st.lists(st.integers(1, 20), min_size=1, max_size=6), st.floats(0, 3))
def test_power_law_and_uniform_vary_sizes_only(sites, sizes, exponent):
    total = sum(sizes)
    for scheme in (Scheme("uniform", sites), Scheme("powerlaw", sites, exponent=exponent)):
        shares = split_classes(scheme, 1)[0]
        if total * shares.min() < 1:
            continue
        counts = assigned(scheme, *sizes)
        assert counts.sum(axis=1).tolist() == sizes
        assert np.abs(counts.sum(axis=0) - total * shares).max() < 1
        assert np.abs(counts - np.outer(sizes, shares)).max() < 2


@pytest.mark.parametrize("alpha", [0.05, 0.5, 5])
def test_shares_are_draws_of_the_dirichlet_distribution(alpha):
    shares = split_classes(Scheme("dirichlet", 5, alpha=alpha), 20_000)
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-12)
    # E p_i = 1/N and E sum p_i^2 = (alpha + 1) / (N alpha + 1), each within 4 standard errors
    for drawn, mean in ((shares[:, 2], 0.2), ((shares**2).sum(axis=1), (alpha + 1) / (5 * alpha + 1))):
        assert abs(drawn.mean() - mean) < 4 * drawn.std() / np.sqrt(len(drawn))


BAD = [
    ({"into": 0}, "into=0: expected a whole number, 1 or more"),
    ({"exponent": 2}, "exponent 2: belongs to powerlaw, but the scheme is uniform"),
    ({"by": "imbalanced", "holders": 3}, "holders 3: expected something left for the others of 3 sites"),
    ({"by": "imbalanced", "into": 2, "outlier": ("A",)}, "others of 2 sites; one of the sites is kept for the outlier"),
    ({"by": "imbalanced", "kappa": 0.5, "holders": 2}, "kappa 0.5, holders 2: expected something left"),
    ({"by": "variety", "classes": "source"}, "classes source: variety needs classes of one size"),
    ({"by": "dirichlet", "alpha": 0}, "alpha=0: expected a number from 0.001 to 1000000"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_input(options, message):
    with pytest.raises(BadInput, match=message):
        Scheme(**{"by": "uniform", "into": 3} | options)


def test_bands_give_every_site_neighbouring_classes_and_equal_sizes():
    assert assigned(Scheme("banded", 4), 6, 6, 6, 6).tolist() == (6 * np.eye(4, dtype=int)).tolist()
    six = assigned(Scheme("banded", 6), 6, 6, 6, 6)
    assert six.sum(axis=0).tolist() == [4] * 6
    assert all(np.ptp(np.flatnonzero(column)) <= 1 for column in six.T)
    assert assigned(Scheme("banded", 2), 6, 6, 6, 6).tolist() == [[6, 0], [6, 0], [0, 6], [0, 6]]


def test_a_class_only_is_all_the_last_site_has():
    shares = class_shares(Scheme("uniform", 3, outlier=("B",)), ["C", "B", "A"])
    assert {name: row.tolist() for name, row in shares.items()} == {
        "C": [0.5, 0.5, 0], "A": [0.5, 0.5, 0], "B": [0, 0, 1]
    }  # fmt: skip
    shares = class_shares(Scheme("uniform", 3, outlier=("A", "B")), ["C", "B", "A"])
    assert {name: row.tolist() for name, row in shares.items()} == {
        "C": [0.5, 0.5, 0], "A": [0, 0, 1], "B": [0, 0, 1]
    }  # fmt: skip
    with pytest.raises(BadInput, match="outlier D: no such class of patients; there are A, B, C"):
        class_shares(Scheme("uniform", 3, outlier=("B", "D")), ["C", "B", "A"])
    with pytest.raises(BadInput, match="outlier A, B: nothing is left for the others; there are A, B"):
        class_shares(Scheme("uniform", 3, outlier=("A", "B")), ["B", "A"])
    with pytest.raises(BadInput, match="outlier B: expected 2 sites or more"):
        Scheme("uniform", 1, outlier=("B",))
