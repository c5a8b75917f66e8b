"""The utility of coalitions, from their test Dice.

Ground truths from a folder of trained coalitions: which are complete, what they are worth, what the others lack.
"""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from games_reference import shapley_by_permutations, subsets
from noisy_trainings import WORTH, trained

from fedmerit.contract.semivalues import EMPTY_COALITION, SampledValues, Sampling
from fedmerit.errors import BadInput
from fedmerit.schema.results import COLUMNS
from fedmerit_evaluation.ground_truth.ground_truths import (
    STUDY,
    Reference,
    coalition_utilities,
    complete_ground_truths,
    list_preparation_differences,
    open_ground_truths,
    write_sampling,
)
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.studies.comparison import comparison_tables as tables


def dice(coalition, site, case, value, *, label="disc", seed=0, number=9):
    head = dict.fromkeys(COLUMNS, "") | {"run": coalition, "method": "standalone" if "+" not in coalition else "fedavg"}
    return head | {
        "seed": seed, "round": number, "site": site, "coalition": coalition, "split": "testing", "case": case,
        "label": label, "quantity": "dice", "value": value,
    }  # fmt: skip


def long(rows):
    return Results(pd.DataFrame(rows, columns=COLUMNS).astype({"value": float}))


def test_coalition_utilities_equal_table_average():
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
    assert both[EMPTY_COALITION].tolist() == [0, 0]
    one_label = long([row for row in rows[:6] if row["label"] == "disc"])
    shown, *_ = tables(Results(one_label.rows.assign(coalition="", method="fedavg")), ["fedavg"], [0])
    assert 100 * float(coalition_utilities(one_label)[0][frozenset("AB")]) == pytest.approx(shown.frame["Avg."][0])


SITES = ["A", "B", "C"]
THREE = {site: WORTH[site] for site in SITES}
GAME = {frozenset(): 0.0, frozenset("A"): 0.1, frozenset("B"): 0.2, frozenset("C"): 0.3, frozenset("AB"): 0.5,
        frozenset("AC"): 0.4, frozenset("BC"): 0.6, frozenset("ABC"): 0.9}  # fmt: skip
LEAVE_ONE_OUT = [0.3, 0.5, 0.4]  # 0.9 less 0.6, 0.4 and 0.5


def without(*gone):
    return {one: value for one, value in GAME.items() if one not in map(frozenset, gone)}


def folder_of(tmp_path, results):
    results.rows.to_csv(tmp_path / "results.csv", index=False)
    return tmp_path


def test_complete_ground_truths_equal_hand_computed():
    (first, second), notes = complete_ground_truths({0: GAME}, SITES, [0])
    assert (first.name, second.name, notes) == ("leave-one-out", "Shapley", [])
    assert first.values(0, GAME) == pytest.approx(LEAVE_ONE_OUT)
    assert second.values(0, GAME) == pytest.approx(shapley_by_permutations(GAME, SITES))
    assert (first.sampled, second.sampled) == ("", "")


def test_reference_values_accept_any_utility():
    (reference, _), _ = complete_ground_truths({0: GAME}, SITES, [0])
    twice = {one: np.array([value, 2 * value]) for one, value in GAME.items()}
    assert reference.values(0, twice) == pytest.approx(np.outer(LEAVE_ONE_OUT, [1, 2]))
    with pytest.raises(KeyError):
        reference.values(1, GAME)


def test_complete_ground_truths_reject_other_sites():
    with pytest.raises(BadInput, match=r"the ground truth is of A, B, C, the runs are of A, B; value the same"):
        complete_ground_truths({0: GAME}, SITES[:2], [0])
    with pytest.raises(BadInput, match=r"leave-one-out, seed 0: no utility of coalitions A\+B\+C\+D and 3 more"):
        complete_ground_truths({0: GAME}, [*SITES, "D"], [0])


RULE = {"truncation": 0.0, "precision": 0.0, "fewest": 4, "most": 4}


def test_sampled_reference_is_mean_over_permutations():
    """Four orders of three sites: not all coalitions are met, so that exact values are not to be had."""
    rule = Sampling(tuple(SITES), seed=1, **RULE)
    orders = [rule.order(number) for number in range(4)]
    met = {frozenset(order[:size]) for order in orders for size in range(4)}
    game = {one: GAME[one] for one in met}
    assert len(game) < len(GAME)
    marginals = np.zeros((4, 3))
    for row, order in enumerate(orders):
        for place, site in enumerate(order):
            marginals[row, SITES.index(site)] = GAME[frozenset(order[: place + 1])] - GAME[frozenset(order[:place])]
    ground_truths, notes = complete_ground_truths({1: game}, SITES, [1], RULE)
    reference = ground_truths[-1]
    assert reference.name == "Shapley"
    assert reference.values(1, game) == pytest.approx(marginals.mean(axis=0))
    largest = 100 * (marginals.std(axis=0, ddof=1) / 2).max()
    assert reference.sampled == (
        f"Shapley values are estimates from 4 sampled permutations, with standard errors up to {largest:.2g} points of "
        "Dice"
    )
    assert not any("Shapley" in note for note in notes)


def test_sampled_reference_stays_sampled_for_complete_seed():
    rule = Sampling(tuple(SITES), seed=1, **RULE)
    met = {frozenset(order[:size]) for order in map(rule.order, range(4)) for size in range(4)}
    assert len(met) < len(GAME)
    ground_truths, notes = complete_ground_truths({0: GAME, 1: {one: GAME[one] for one in met}}, SITES, [0, 1], RULE)
    assert ground_truths[-1].name == "Shapley"
    assert list(ground_truths[-1].parts) == list(ground_truths[-1].estimates) == [0, 1]
    assert not any("Shapley" in note for note in notes)


def test_sampled_reference_names_command_to_continue():
    rule = {"truncation": 0.02, "precision": 0.01, "fewest": 4, "most": 50}
    first = Sampling(tuple(SITES), **rule).order(0)[0]
    ground_truths, notes = complete_ground_truths({0: without(first)}, SITES, [0], rule)
    of_no_number = {**GAME, frozenset(first): math.nan}
    assert complete_ground_truths({0: of_no_number}, SITES, [0], rule)[1] == notes
    assert [reference.name for reference in ground_truths] == ["leave-one-out"]
    assert notes[0].startswith(f"sampled Shapley, seed 0: no utility of coalition {first}")
    assert "shapley --exact-up-to 2 --truncation 0.02 --precision 0.01 --most-permutations 50 --sites" in notes[0]


def test_open_ground_truths_returns_noise_ceilings(tmp_path):
    """What a site adds is its worth, in every order; nothing moves it, so a perfect estimate would agree wholly."""
    found = open_ground_truths(folder_of(tmp_path, trained(THREE, seeds=2, patients=2)), SITES, [0, 1])
    assert found.notes == []
    for reference in found.references:
        assert list(reference.parts) == [0, 1]
        assert found.noise_ceilings[reference.name].mean == pytest.approx(1)
    sampled = Reference("Shapley", {}, {0: SampledValues(list("ABC"), np.zeros(3), np.zeros(3), [()] * 9, (), "")})
    assert math.isnan(replace(found, references=[sampled]).noise_ceilings["Shapley"].mean)


def test_noise_ceilings_are_of_seeds_of_runs(tmp_path):
    """In the second seed the first site is worth as much as the last."""
    results = trained(THREE, seeds=2, patients=2)
    rows = results.rows
    rows.loc[(rows["seed"] == 1) & rows["coalition"].str.contains("A"), "value"] += 0.1
    whole = open_ground_truths(folder_of(tmp_path, results), SITES, [0, 1])
    assert whole.noise_ceilings["leave-one-out"].mean < 0.9
    first = open_ground_truths(tmp_path, SITES, [0])
    assert {name: one.mean for name, one in first.noise_ceilings.items()} == pytest.approx(
        {"leave-one-out": 1, "Shapley": 1}
    )


def test_open_ground_truths_rejects_other_folders(tmp_path):
    with pytest.raises(
        BadInput, match=f"--ground-truth {tmp_path}: no results.csv in it; `fedmerit value leave-one-out --sites SITES"
    ):
        open_ground_truths(tmp_path, SITES, [0])
    results = trained(THREE, seeds=1, patients=1)
    with pytest.raises(
        BadInput, match=rf"--ground-truth {tmp_path}: the ground truth is of A, B, C, the runs are of A, C"
    ):
        open_ground_truths(folder_of(tmp_path, results), ["A", "C"], [0])
    with pytest.raises(BadInput, match=r"the ground truth is of A, B, C, the runs are of A, B, C, D; value the same"):
        open_ground_truths(tmp_path, [*SITES, "D"], [0])
    with pytest.raises(
        BadInput, match=rf"--ground-truth {tmp_path}: leave-one-out, seed 5: no utility of coalitions A\+B\+C"
    ):
        open_ground_truths(tmp_path, SITES, [5])
    results = Results(results.rows.drop_duplicates("site").assign(coalition=""))
    with pytest.raises(BadInput, match=f"--ground-truth {tmp_path}: its results.csv names no coalition"):
        open_ground_truths(folder_of(tmp_path, results), SITES, [0])


def test_list_preparation_differences_notes_other_images(tmp_path):
    assert list_preparation_differences(tmp_path, [{"A": "a"}]) == []
    (tmp_path / STUDY).write_text(json.dumps({"site_digests": {"A": "a", "B": "b", "C": "c"}}))
    assert list_preparation_differences(tmp_path, [{"A": "a", "B": "b"}, {}, {"C": "c", "D": "d"}]) == []
    (note,) = list_preparation_differences(tmp_path, [{"A": "a", "B": "b"}, {"A": "x", "B": "x", "C": "c"}, {"B": "y"}])
    assert note.startswith("its trainings and the runs had 2 of 3 sites from differently prepared folders")


def test_open_ground_truths_follows_sampling_rule(tmp_path):
    """Of an additive game any orders give the worth, with no error."""
    rule = Sampling(tuple(SITES), truncation=0, precision=0.005, fewest=2, most=9, batch=1)
    met = {frozenset(rule.order(number)[:size]) for number in range(2) for size in range(1, 4)}
    lacking = [one for one in subsets(SITES) if one and one not in met]
    assert lacking
    write_sampling(folder_of(tmp_path, trained(THREE, seeds=1, patients=1, leave_out=lacking)), rule)
    found = open_ground_truths(tmp_path, SITES, [0])
    (sampled,) = [reference for reference in found.references if reference.name == "Shapley"]
    assert sampled.estimates[0].permutations == 2
    assert sampled.estimates[0].values == pytest.approx(list(THREE.values()))
