"""Trimmed mean, median, Krum and Multi-Krum against their slow references."""

from statistics import median

import pytest
import torch
from comparing import assert_models
from hypothesis import given
from rounds import as_numbers, few, outcomes, random_rounds

from fedmerit.contract.method import Layout
from fedmerit.methods.robust import Krum, Median, Trimmed


@pytest.mark.parametrize("beta", [0.0, 0.2, 0.3, 0.49])
@given(rounds=random_rounds)
@few
def test_trimmed_is_the_reference(beta, rounds):
    model = [0.0] * rounds.updates.shape[2]
    for outcome, updates in zip(outcomes(Trimmed(beta), rounds), as_numbers(rounds), strict=True):
        there = [update for update in updates if update]
        cut = int(100 * beta) * len(there) // 100
        for k, column in enumerate(zip(*there, strict=True)):
            kept = sorted(column)[cut : len(column) - cut]
            model[k] += sum(kept) / len(kept)
        assert_models(outcome.models, model)
        assert outcome.weights.tolist() == [1 / len(there) if update else 0 for update in updates]


@given(rounds=random_rounds)
@few
def test_median_is_the_reference(rounds):
    model = [0.0] * rounds.updates.shape[2]
    for outcome, updates in zip(outcomes(Median(), rounds), as_numbers(rounds), strict=True):
        there = [update for update in updates if update]
        model = [w + median(column) for w, column in zip(model, zip(*there, strict=True), strict=True)]
        assert_models(outcome.models, model)
        assert outcome.weights.tolist() == [1 / len(there) if update else 0 for update in updates]


def weights(updates, f, m):
    """Of lists; the lowest scores are taken, those that are equal to the last one in parts."""
    scores = []
    for i, one in enumerate(updates):
        away = [sum((x - y) ** 2 for x, y in zip(one, b, strict=True)) for j, b in enumerate(updates) if j != i]
        scores.append(sum(sorted(away)[: max(len(updates) - f - 2, 1)]))
    m = min(m, len(updates))
    last = sorted(scores)[m - 1]
    below = [i for i, score in enumerate(scores) if score < last - 1e-9]
    ties = [i for i, score in enumerate(scores) if abs(score - last) <= 1e-9]
    each = {**dict.fromkeys(below, 1.0), **dict.fromkeys(ties, (m - len(below)) / len(ties))}
    return [each.get(i, 0.0) / m for i in range(len(updates))]


@pytest.mark.parametrize("m", [1, 2])
@given(rounds=random_rounds)
@few
def test_krum_is_the_reference(m, rounds):
    model = [0.0] * rounds.updates.shape[2]
    for outcome, updates in zip(outcomes(Krum(m=m), rounds), as_numbers(rounds), strict=True):
        here = [i for i, update in enumerate(updates) if update]
        given_to = weights([updates[i] for i in here], max((len(here) - 3) // 2, 0), m)
        for i, weight in zip(here, given_to, strict=True):
            model = [w + weight * x for w, x in zip(model, updates[i], strict=True)]
            assert outcome.weights[i].item() == pytest.approx(weight, abs=1e-12)
        assert_models(outcome.models, model)


def test_so_many_malicious_sites_need_more_honest_ones():
    with pytest.raises(ValueError, match="4 sites: krum with f=1 needs 5 or more"):
        Krum(f=1).start(torch.zeros(2), 4, Layout.of(2))
