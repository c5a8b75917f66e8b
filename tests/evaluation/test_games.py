"""Values of games: known ones, the axioms, definitions followed to the letter, sampling, and tables of coalitions."""

import json
import math
import os
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from games_reference import (
    airport,
    gloves,
    mean_marginals,
    random_game,
    shapley_by_permutations,
    subsets,
    table,
    voting,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.compare import tables
from evaluation.truth import games
from evaluation.truth.games import NOBODY, Sampling, coalition_utilities, normalised
from fedmerit import core
from fedmerit.errors import BadInput
from fedmerit.records.results import COLUMNS

SEMIVALUES = {
    "leave-one-out": games.leave_one_out,
    "Shapley": games.shapley,
    "Banzhaf": games.banzhaf,
    "Beta(4, 1)": lambda game: games.beta_shapley(game, 4, 1),
    "Beta(1, 16)": lambda game: games.beta_shapley(game, 1, 16),
}
DEFAULT = Path(__file__).resolve().parents[2].parent / "shared" / "oracles"
ORACLES = Path(os.environ.get("FEDMERIT_ORACLES", DEFAULT))


@pytest.mark.parametrize(
    ("game", "shapley", "banzhaf"),
    [
        # three parties of 50, 49 and 1 votes of which 51 win: the two small ones are equally strong
        (voting({"A": 50, "B": 49, "C": 1}, 51), [2 / 3, 1 / 6, 1 / 6], [3 / 4, 1 / 4, 1 / 4]),
        # a dictator and two dummies
        (voting({"A": 5, "B": 1, "C": 1}, 4), [1, 0, 0], [1, 0, 0]),
        # two left shoes, one right
        (gloves({"A", "B"}, {"C"}), [1 / 6, 1 / 6, 2 / 3], [1 / 4, 1 / 4, 3 / 4]),
        # planes that need 1, 2 and 3: each stretch of runway is shared by those that use it (Littlechild, Owen 1973)
        (airport({"A": 1, "B": 2, "C": 3}), [1 / 3, 5 / 6, 11 / 6], [1 / 4, 3 / 4, 7 / 4]),
    ],
    ids=["voting", "dictator", "gloves", "airport"],
)
def test_games_with_known_values(game, shapley, banzhaf):
    assert games.shapley(game) == pytest.approx(shapley, abs=1e-15)
    assert games.banzhaf(game) == pytest.approx(banzhaf, abs=1e-15)


def test_a_parliament_of_five():
    """Council of the six, 1958: 4, 4, 4, 2, 2, 1 votes of which 12 win; Luxembourg never mattered."""
    game = voting(dict(zip("DFINBL", (4, 4, 4, 2, 2, 1), strict=True)), 12)
    by_site = dict(zip(games.sites_of(game), games.shapley(game), strict=True))
    assert by_site == pytest.approx({"D": 14 / 60, "F": 14 / 60, "I": 14 / 60, "N": 9 / 60, "B": 9 / 60, "L": 0})


@pytest.mark.parametrize("count", [1, 2, 5])
def test_shapley_is_the_mean_over_all_permutations(count):
    players = "ABCDE"[:count]
    game = random_game(players, count, shape=(2,))
    assert games.shapley(game) == pytest.approx(shapley_by_permutations(game, players), abs=1e-14)


def test_every_semivalue_is_a_weighted_mean_of_mean_marginals():
    game = random_game("ABCD", 3)
    n = 4
    beta_4_1 = [math.comb(n - 1, s) * math.gamma(s + 1) * math.gamma(n + 3 - s) for s in range(n)]
    shares = {
        "leave-one-out": [0, 0, 0, 1],
        "Shapley": [1 / 4] * 4,
        "Banzhaf": [1 / 8, 3 / 8, 3 / 8, 1 / 8],
        "Beta(4, 1)": np.array(beta_4_1) / sum(beta_4_1),
    }
    for name, weights in shares.items():
        expected = [np.dot(weights, mean_marginals(game, "ABCD", player)) for player in "ABCD"]
        assert SEMIVALUES[name](game) == pytest.approx(expected, abs=1e-14), name


def test_beta_of_1_and_1_is_shapley_and_of_equal_large_ones_nearly_banzhaf():
    game = random_game("ABCD", 5)
    assert games.beta_shapley(game, 1, 1) == pytest.approx(games.shapley(game), abs=1e-14)
    assert games.beta_shapley(game, 1e6, 1e6) == pytest.approx(games.banzhaf(game), abs=1e-5)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_weights_of_all_coalitions_sum_to_one(n):
    for weights in (
        games.leave_one_out_weights,
        games.shapley_weights,
        games.banzhaf_weights,
        games.beta_weights(4, 1),
        games.beta_weights(0.5, 16),
    ):
        assert sum(math.comb(n - 1, s) * w for s, w in enumerate(weights(n))) == pytest.approx(1, abs=1e-13)


UTILITIES = st.lists(st.floats(-1, 1), min_size=15, max_size=15)


def four_players(utilities):
    return dict(zip(subsets("ABCD"), [0.0, *utilities], strict=True))


@settings(max_examples=50, deadline=None)
@given(UTILITIES)
def test_efficiency(utilities):
    game = four_players(utilities)
    assert games.shapley(game).sum() == pytest.approx(game[frozenset("ABCD")], abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(UTILITIES, UTILITIES, st.floats(-3, 3))
def test_additivity(first, second, factor):
    one, other = four_players(first), four_players(second)
    both = {coalition: one[coalition] + factor * other[coalition] for coalition in one}
    for name, value in SEMIVALUES.items():
        assert value(both) == pytest.approx(value(one) + factor * value(other), abs=1e-11), name


@settings(max_examples=50, deadline=None)
@given(UTILITIES)
def test_symmetry(utilities):
    """Players that the utility does not tell apart get the same."""
    game = four_players(utilities)
    swapped = {frozenset(name.translate(str.maketrans("AB", "BA")) for name in one): v for one, v in game.items()}
    even = {one: game[one] + swapped[one] for one in game}
    for name, value in SEMIVALUES.items():
        assert value(even)[0] == pytest.approx(value(even)[1], abs=1e-12), name


@settings(max_examples=50, deadline=None)
@given(UTILITIES)
def test_null_player(utilities):
    game = {one: value for one, value in four_players(utilities).items() if "D" not in one}
    game |= {one | {"D"}: value for one, value in game.items()}
    for name, value in SEMIVALUES.items():
        assert value(game)[3] == pytest.approx(0, abs=1e-12), name


def test_labels_are_valued_one_by_one():
    game = random_game("ABC", 8, shape=(2,))
    for value in SEMIVALUES.values():
        both = value(game)
        assert both.shape == (3, 2)
        for label in range(2):
            assert both[:, label] == pytest.approx(value({one: v[label] for one, v in game.items()}))


def test_shapley_agrees_with_the_methods():
    game = random_game("ABCDE", 4)
    utilities = [game[frozenset(n for b, n in enumerate("ABCDE") if mask >> b & 1)] for mask in range(32)]
    assert games.shapley(game) == pytest.approx(core.shapley(torch.tensor(np.array(utilities))).numpy(), abs=1e-14)


def test_what_each_value_takes():
    everyone = frozenset("ABC")
    assert games.required("CAB", games.leave_one_out_weights) == [everyone, *(everyone - {x} for x in "CBA")]
    assert games.required("ABC", games.shapley_weights) == sorted(subsets("ABC"), key=lambda s: (-len(s), sorted(s)))
    game = {one: v for one, v in random_game("ABC", 1).items() if len(one) >= 2}
    assert games.leave_one_out(game) == pytest.approx([game[everyone] - game[everyone - {x}] for x in "ABC"])


def test_a_missing_coalition_is_named():
    game = random_game("ABC", 1)
    del game[frozenset("AC")]
    game[frozenset("B")] = math.nan
    with pytest.raises(BadInput, match=r"coalitions A\+C, B: no utility"):
        games.shapley(game)
    with pytest.raises(BadInput, match=r"coalition A\+C: no utility"):
        games.leave_one_out(game)
    with pytest.raises(BadInput, match="nobody"):
        games.banzhaf({frozenset("A"): 1.0})
    with pytest.raises(BadInput, match="no site"):
        games.shapley({})
    few = {NOBODY: 0.0, frozenset("ABCD"): 1.0, frozenset("A"): 0.0}
    with pytest.raises(BadInput, match=r"A\+B\+C, .* and 5 more: no utility"):
        games.shapley(few)
    with pytest.raises(BadInput, match="alpha 0"):
        games.beta_shapley(game, 0, 1)


def test_normalised_is_a_share_of_the_sum_and_never_clipped():
    # Table 5 of Jiang et al. 2023: drops of Dice when one site is left out
    drops = [3.43, 0.37, 0.42, 0.36, 11.65, 0.80]
    published = [0.2013, 0.0219, None, 0.0209, 0.6847, 0.0468]  # 1.74 % for 0.42 does not follow from the others
    shares = normalised(drops)
    assert shares.sum() == pytest.approx(1)
    for ours, theirs in zip(shares, published, strict=True):
        rounding = 0.005 / sum(drops) * (1 + 6 * ours)  # of the drops, printed to 0.01
        assert theirs is None or ours == pytest.approx(theirs, abs=rounding)
    assert normalised([-1.0, 2.0]) == pytest.approx([-1, 2])
    assert np.isnan(normalised([-1.0, 0.5])).all()
    assert np.isnan(normalised([0.1 + 0.2, -0.3])).all()  # 5.6e-17 is rounding, no sum
    assert np.isnan(normalised([0.0, 0.0])).all()
    both = normalised([[1.0, -1.0], [3.0, 0.0]])
    assert both[:, 0] == pytest.approx([0.25, 0.75])
    assert np.isnan(both[:, 1]).all()


def train_on_demand(rules, game, stop=10**9):
    """Give a sampling what it asks for, a coalition at a time; the estimate and the coalitions in order."""
    known, order = {NOBODY: game[NOBODY]}, []
    while (estimate := rules.estimate(known)).needed and len(order) < stop:
        order.append(estimate.needed[0])
        known[order[-1]] = game[order[-1]]
    return estimate, known, order


def saturating(players, seed):
    """Utility that grows ever less with more sites, with some noise: what training looks like."""
    random = np.random.default_rng(seed)
    worth = dict(zip(sorted(players), random.uniform(0.1, 1, len(players)), strict=True))
    return table(players, lambda one: 1 - math.exp(-sum(worth[name] for name in one)) if one else 0.0)


def test_sampling_comes_to_the_exact_values_within_its_standard_errors():
    game = random_game("ABCDEF", 2)
    exact = games.shapley(game)
    within, means = [], []
    for seed in range(40):
        rules = Sampling(tuple("ABCDEF"), seed=seed, truncation=0, precision=0, fewest=60, most=60)
        estimate = rules.estimate(game)
        assert estimate.permutations == 60
        assert estimate.values.sum() == pytest.approx(game[frozenset("ABCDEF")])
        within += list(np.abs(estimate.values - exact) <= 3 * estimate.standard_errors)
        means.append(estimate.values)
    assert np.mean(within) >= 0.98  # 0.9957 of t with 59 degrees of freedom
    over_seeds = np.std(means, axis=0, ddof=1) / math.sqrt(len(means))
    assert (np.abs(np.mean(means, axis=0) - exact) <= 3 * over_seeds).all()


def test_the_standard_error_is_that_of_the_mean():
    game = random_game("ABC", 6)
    rules = Sampling(tuple("ABC"), truncation=0, precision=0, fewest=7, most=7)
    marginals = []
    for number in range(7):
        order, joined, row = rules.order(number), NOBODY, {}
        for name in order:
            row[name], joined = game[joined | {name}] - game[joined], joined | {name}
        marginals.append([row[name] for name in "ABC"])
    estimate = rules.estimate(game)
    assert estimate.values == pytest.approx(np.mean(marginals, axis=0))
    assert estimate.standard_errors == pytest.approx(np.std(marginals, axis=0, ddof=1) / math.sqrt(7))


def test_sampling_asks_for_coalitions_and_resumes_where_it_was():
    game = saturating("ABCDEFG", 1)
    rules = Sampling(tuple("ABCDEFG"), seed=3, truncation=0.05, precision=0.02, fewest=10, most=200, batch=4)
    whole, known, order = train_on_demand(rules, game)
    assert order[0] == frozenset("ABCDEFG")
    assert len(order) == len(set(order)) < 127  # each once, and not all
    assert whole.ended.endswith("no standard error above 0.02")
    assert whole.standard_errors.max() <= 0.02
    assert whole.permutations % 4 == 0

    _, part, _ = train_on_demand(rules, game, stop=9)
    while needed := rules.estimate(part).needed:  # another day, all that is needed at once
        part |= {one: game[one] for one in needed}
    again = rules.estimate(part)
    assert set(part) == set(known)
    assert again.values.tolist() == whole.values.tolist()
    assert again.standard_errors.tolist() == whole.standard_errors.tolist()


def test_a_batch_is_trained_side_by_side():
    game = saturating("ABCDE", 1)
    rules = Sampling(tuple("ABCDE"), truncation=0, batch=6)
    first = rules.estimate({NOBODY: 0.0})
    assert first.needed == (frozenset("ABCDE"),)
    assert np.isnan(first.values).all()
    second = rules.estimate({NOBODY: 0.0, frozenset("ABCDE"): game[frozenset("ABCDE")]})
    assert set(second.needed) == {frozenset(rules.order(number)[:1]) for number in range(6)}


def test_truncation_costs_at_most_its_tolerance_in_sum():
    game = saturating("ABCDEF", 4)
    rules = Sampling(tuple("ABCDEF"), truncation=0.1, precision=0, fewest=30, most=30)
    estimate, _, order = train_on_demand(rules, game)
    missed = game[frozenset("ABCDEF")] - estimate.values.sum()
    assert 0 <= missed <= 0.1
    exact = Sampling(tuple("ABCDEF"), truncation=0, precision=0, fewest=30, most=30)
    assert len(order) < len(train_on_demand(exact, game)[2])


@pytest.mark.parametrize("truncation", [0.0, 0.1])
def test_an_estimate_is_a_sum_of_utilities(truncation):
    """Its coefficients give it back, and what it would be for other utilities of the same coalitions."""
    game = random_game(tuple("ABCDE"), 4)
    rules = Sampling(tuple("ABCDE"), seed=1, truncation=truncation, precision=0, fewest=8, most=8)
    parts = rules.coefficients(game)
    assert np.allclose(games.combined(game, parts), rules.estimate(game).values, atol=1e-12)
    assert set(parts) <= set(game)
    assert NOBODY in parts
    doubled = {one: np.stack([np.asarray(value), 2 * np.asarray(value)]) for one, value in game.items()}
    assert np.allclose(games.combined(doubled, parts)[:, 1], 2 * rules.estimate(game).values)


def test_sampling_ends_at_the_most_permutations():
    game = random_game("ABC", 9, shape=(2,))
    estimate = Sampling(tuple("ABC"), truncation=0, precision=1e-9, fewest=2, most=25).estimate(game)
    assert estimate.permutations == 25
    assert estimate.values.shape == (3, 2)
    assert "the most allowed" in estimate.ended


def test_a_site_alone_is_sampled_too():
    estimate = Sampling(("A",)).estimate({NOBODY: 0.0, frozenset("A"): 0.8})
    assert estimate.values == pytest.approx([0.8])
    assert estimate.standard_errors == pytest.approx([0.0], abs=1e-15)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"sites": ()}, "sites none"),
        ({"sites": ("A", "A")}, "each once"),
        ({"truncation": -0.1}, "truncation"),
        ({"precision": math.nan}, "precision"),
        ({"fewest": 1}, "fewest 1"),
        ({"most": 3}, "most 3"),
        ({"batch": 0}, "batch 0"),
    ],
)
def test_rules_of_sampling_that_cannot_be(change, word):
    with pytest.raises(BadInput, match=word):
        Sampling(**{"sites": ("A", "B"), **change})


def test_utilities_that_sampling_cannot_use():
    with pytest.raises(BadInput, match="coalition nobody"):
        Sampling(("A", "B")).estimate({})
    with pytest.raises(BadInput, match=r"coalition A: its utility is nan"):
        Sampling(("A", "B")).estimate({NOBODY: 0.0, frozenset("A"): math.nan})


def dice(coalition, site, case, value, *, label="disc", seed=0, number=9):
    head = dict.fromkeys(COLUMNS, "") | {"run": coalition, "method": "standalone" if "+" not in coalition else "fedavg"}
    return head | {
        "seed": seed, "round": number, "site": site, "coalition": coalition, "split": "testing", "case": case,
        "label": label, "quantity": "dice", "value": value,
    }  # fmt: skip


def long(rows):
    return pd.DataFrame(rows, columns=COLUMNS).astype({"value": float})


def test_the_utility_of_a_coalition_is_the_average_of_the_tables():
    rows = [
        # A: case 0 (.8 + .6) / 2 = .7, case 1 .5 (its cup is empty): .6;  B: .9
        dice("A+B", "A", "0", 0.8), dice("A+B", "A", "0", 0.6, label="cup"),
        dice("A+B", "A", "1", 0.5), dice("A+B", "A", "1", None, label="cup"),
        dice("A+B", "B", "0", 0.9), dice("A+B", "B", "0", 0.9, label="cup"),
        dice("A", "A", "0", 0.4), dice("A", "B", "0", 0.2),
        dice("A", "A", "0", 0.1, number=3),  # not the last round
        dice("B", "A", "0", 0.5, seed=1), dice("B", "B", "0", 0.5, seed=1),
    ]  # fmt: skip
    found = coalition_utilities(long(rows))
    assert found.keys() == {0, 1}
    assert {one: float(value) for one, value in found[0].items()} == pytest.approx(
        {frozenset(): 0, frozenset("AB"): 0.75, frozenset("A"): 0.3}
    )
    assert found[1][frozenset("B")] == pytest.approx(0.5)
    both = coalition_utilities(long(rows[:6]), per_label=True)[0]
    assert both[frozenset("AB")] == pytest.approx([(0.65 + 0.9) / 2, (0.6 + 0.9) / 2])
    assert both[NOBODY].tolist() == [0, 0]
    one_label = long([row for row in rows[:6] if row["label"] == "disc"])
    shown, *_ = tables(one_label.assign(coalition="", method="fedavg"), ["fedavg"], [0])
    assert 100 * float(coalition_utilities(one_label)[0][frozenset("AB")]) == pytest.approx(shown.frame["Avg."][0])


def test_a_coalition_not_tested_everywhere_is_named():
    rows = [dice("A+B", site, "0", 0.5) for site in "AB"] + [dice("A", "A", "0", 0.5)]
    with pytest.raises(BadInput, match=r"coalition A, seed 0: not tested on the cases of B"):
        coalition_utilities(long(rows))
    with pytest.raises(BadInput, match=r"coalition A\+C.* of C"):
        coalition_utilities(long([dice("A+C", "A", "0", 0.5)]))


def oracle_game(content):
    """Utilities of subsets, keys such as "0,2" and "empty"."""
    return {frozenset() if key == "empty" else frozenset(key.split(",")): value for key, value in content.items()}


@pytest.mark.skipif(not (ORACLES / "fedci.json").exists(), reason=f"no fedci.json in {ORACLES} (set FEDMERIT_ORACLES)")
def test_worked_shapley_values():
    rounds = json.loads((ORACLES / "fedci.json").read_text())["rounds"]
    cgsv = json.loads((ORACLES / "cgsv.json").read_text())["exact_small"]
    worked = [(one["U_of_subsets"], one["CI_round"]) for one in rounds] + [(cgsv["v_of_subsets"], cgsv["phi"])]
    for utilities, values in worked:
        assert games.shapley(oracle_game(utilities)) == pytest.approx(values, abs=1e-12)


def test_the_empty_coalition_counts():
    """A utility of nobody other than 0 takes part in Shapley values, not in leave-one-out."""
    for start, value in product((0.0, 0.4), (games.shapley, games.leave_one_out)):
        game = {NOBODY: start, frozenset("A"): 0.5, frozenset("B"): 0.6, frozenset("AB"): 0.8}
        expected = 0.8 - start if value is games.shapley else 0.2 + 0.3
        assert value(game).sum() == pytest.approx(expected)
