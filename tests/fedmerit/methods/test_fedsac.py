import math
from dataclasses import replace

import pytest
import torch

from fedmerit.contract.method import CandidateResults, Layout, Reports
from fedmerit.methods.fedsac import FedSAC, reputations, submodels

C = (0.5, 0.8, 0.7)
OWNERS = [0, 0, 1, 1, 2, 2, -1]
IMPORTANCE = [0.3, 0.1, 0.6]
START = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


def doubles(values):
    return torch.tensor(values, dtype=torch.float64)


def reports(samples, present=None, dice=None):
    candidates = None if dice is None else CandidateResults(doubles(dice), torch.zeros(len(dice), 0))
    here = torch.ones(len(samples), dtype=torch.bool) if present is None else torch.tensor(present)
    return Reports(doubles(samples), here, {}, candidates)


def started(method, n=3, importance=IMPORTANCE):
    """The state before the first round together, with the submodels of that round."""
    owners = torch.tensor(OWNERS, dtype=torch.int32)
    state = method.start(doubles(START), n, Layout((7,), owners))
    assert method.importance_request(state) is not None
    return method.allocate(state, doubles(importance))


# The literal reference: plain numbers and loops


def literal_masks(c, beta, importance):
    positive = [max(0.0, value) for value in importance]
    if sum(positive) == 0:
        positive = [1.0 for _ in importance]
    percent = [100 * value / sum(positive) for value in positive]
    order = sorted(range(len(importance)), key=lambda neuron: (importance[neuron], neuron))
    masks = []
    for contribution in c:
        r, spent, mask = 100 * math.exp(beta * (contribution - max(c))), 0.0, [False] * len(importance)
        for neuron in order:
            spent += percent[neuron]
            if spent > r + 1e-9 and contribution != max(c):
                break
            mask[neuron] = True
        masks.append(mask)
    return masks


def literal_run(c, beta, aggregation, importances, samples, rounds):
    """Per round: weights, the models of all sites. ``importances`` by round; ``rounds``: updates, None where absent."""
    model, n, d, results = list(START), len(c), len(START), []
    for t, updates in enumerate(rounds):
        if t in importances:
            masks = literal_masks(c, beta, importances[t])
        held = [[OWNERS[j] < 0 or masks[i][OWNERS[j]] for j in range(d)] for i in range(n)]
        here = [i for i in range(n) if updates[i] is not None]
        images = sum(samples[i] for i in here)
        merged, weights = list(model), [0.0] * n
        for j in range(d):
            holders = [i for i in here if held[i][j]]
            if not holders:
                continue
            trained = {i: model[j] + updates[i][j] for i in holders}
            if aggregation == "count":
                parts = {i: 1 / len(holders) for i in holders}
            elif aggregation == "share":
                parts = {i: samples[i] / sum(samples[k] for k in holders) for i in holders}
            else:
                parts = {i: samples[i] / images for i in holders}
            merged[j] = sum(parts[i] * trained[i] for i in holders)
            for i in holders:
                weights[i] += parts[i]
        if aggregation == "plain":
            weights = [samples[i] / images if i in here else 0.0 for i in range(n)]
        model = merged
        weights = [weight / sum(weights) for weight in weights]
        results.append((weights, [[model[j] if held[i][j] else 0.0 for j in range(d)] for i in range(n)]))
    return results


@pytest.mark.parametrize("aggregation", ["count", "share", "plain"])
@pytest.mark.parametrize("beta", [0.0, 1.0, 5.0, 25.0])
@pytest.mark.parametrize("absences", [False, True])
def test_it_is_the_reference(aggregation, beta, absences):
    random = torch.Generator().manual_seed(int(beta))
    samples, importances = [30.0, 10.0, 20.0], {0: IMPORTANCE, 2: [-0.1, 0.2, 0.05], 4: [0.0, -0.1, 0.0]}
    method = FedSAC(beta, C, importance_interval=2, aggregation=aggregation)
    state, models = method.start(doubles(START), 3, Layout((7,), torch.tensor(OWNERS, dtype=torch.int32))), None
    rounds, ours = [], []
    for t in range(6):
        assert (method.importance_request(state) is not None) == (t in importances)
        if t in importances:
            assert torch.equal(method.importance_request(state).model, state.model)
            state, models, _ = method.allocate(state, doubles(importances[t]))
        present = [True, not absences or t != 1, not absences or t not in (1, 3)]
        updates = torch.randn(3, 7, generator=random, dtype=torch.float64) * torch.tensor(present)[:, None]
        rounds.append([row.tolist() if here else None for row, here in zip(updates, present, strict=True)])
        state, outcome = method.round(state, updates, reports(samples, present))
        ours.append((outcome.weights, outcome.models))
        assert outcome.statistics == "models"
        assert outcome.contribution[torch.tensor(present)].tolist() == [c for c, p in zip(C, present, strict=True) if p]
        assert outcome.contribution[~torch.tensor(present)].isnan().all()
    assert models is not None
    expected = literal_run(C, beta, aggregation, importances, samples, rounds)
    for (weights, after), (known_weights, known) in zip(ours, expected, strict=True):
        assert weights.tolist() == pytest.approx(known_weights, abs=1e-12)
        assert torch.allclose(after, doubles(known), rtol=0, atol=1e-12)


def test_reputations_do_not_overflow():
    assert reputations(doubles([0.62, 0.78, 0.81]), 5).tolist() == pytest.approx([38.674102, 86.070798, 100])
    assert reputations(doubles([80.0, 90.0]), 1000).tolist() == [0, 100]
    assert reputations(doubles([0.3, 0.8]), 0).tolist() == [100, 100]


def test_rounding_takes_no_neuron_from_the_best_site():
    percent = torch.full((3,), 100 / 3 + 1e-6, dtype=torch.float64)
    assert submodels(percent, torch.arange(3), doubles([100.0])).all()
    tenths = torch.full((10,), 10.0, dtype=torch.float64) + 1e-14
    assert submodels(tenths, torch.arange(10), doubles([30.0])).sum() == 3


def test_ties_go_by_the_signed_change_then_by_place():
    method = FedSAC(5.0, C)
    _, _, held = started(method, importance=[0.0, -0.2, 0.0])
    assert held.tolist() == [[False] * 3, [True] * 3, [False, True, False]]  # a third each, for 22, 100 and 61 percent
    _, _, held = started(method, importance=[0.5, 0.5, 0.0])
    assert held[2].tolist() == [True, False, True]


def test_equal_importance_withholds_neurons_at_random_but_the_same_each_time():
    method = FedSAC(5.0, (0.5, 0.6, 0.8), importance="equal", importance_interval=1)
    owners = torch.arange(50, dtype=torch.int32)
    state = method.start(torch.ones(50), 3, Layout((50,), owners))
    assert method.importance_request(state).images == 0
    state, _, held = method.allocate(state, torch.zeros(50, dtype=torch.float64))
    assert held.sum(dim=1).tolist() == [math.floor(50 * math.exp(-1.5)), math.floor(50 * math.exp(-1)), 50]
    assert (held[0] <= held[1]).all()  # nested
    assert held[0, 11:].any()  # not simply the first ones
    assert torch.equal(method.allocate(state, torch.zeros(50, dtype=torch.float64))[2], held)
    later, _ = method.round(state, torch.zeros(3, 50), reports([1, 1, 1]))
    assert not torch.equal(method.allocate(later, torch.zeros(50, dtype=torch.float64))[2], held)


def test_a_network_without_neurons_gives_everybody_all():
    method = FedSAC(5.0, C)
    state = method.start(torch.ones(2), 3, Layout.of(2))
    state, models, held = method.allocate(state, torch.zeros(0, dtype=torch.float64))
    assert (models.tolist(), held.shape) == ([[1, 1]] * 3, (3, 0))
    _, outcome = method.round(state, torch.ones(3, 2), reports([1, 2, 3]))
    assert outcome.models.tolist() == [[2, 2]] * 3
    assert outcome.weights.tolist() == pytest.approx([1 / 3] * 3)


def test_sites_that_continue_locally_keep_model_and_neurons_when_others_are_given_theirs():
    method = FedSAC(5.0, C, importance_interval=1)
    state, models, held = started(method)
    own = torch.arange(7.0, dtype=torch.float64)
    state = replace(method.restart_from(state, torch.stack([own, *models[1:]])), round=state.round + 1)
    later, given, neurons = method.allocate(state, doubles([0.0, 0.9, 0.0]), torch.tensor([True, False, False]))
    assert torch.equal(given[0], own)
    assert torch.equal(neurons[0], held[0])
    assert not torch.equal(neurons[2], held[2])
    assert torch.equal(later.neurons, neurons)
    assert torch.equal(later.models, given)


def test_what_a_site_sends_of_a_neuron_it_does_not_hold_counts_nowhere():
    method = FedSAC(5.0, C)
    state, _, held = started(method)
    honest = torch.ones(3, 7, dtype=torch.float64)
    spoilt = honest.clone()
    dropped = ~held[0][torch.tensor(OWNERS[:6])]
    assert dropped.any()
    spoilt[0, :6][dropped] = 1e6
    (_, ours), (_, theirs) = (method.round(state, updates, reports([1, 1, 1])) for updates in (honest, spoilt))
    assert torch.equal(ours.models, theirs.models)
    assert torch.equal(ours.weights, theirs.weights)


def test_contributions_are_what_sites_reach_only_and_then_all_start_again():
    method = FedSAC(standalone_rounds=2)
    assert method.needs.rounds == 3
    owners = torch.tensor(OWNERS, dtype=torch.int32)
    state = method.start(doubles(START), 3, Layout((7,), owners))
    updates = torch.arange(21, dtype=torch.float64).reshape(3, 7)
    assert method.importance_request(state) is None
    assert method.candidates(state, updates, reports([1, 2, 3])) is None
    state, outcome = method.round(state, updates, reports([1, 2, 3]))
    assert torch.equal(outcome.models, doubles(START) + updates)
    assert outcome.statistics == "models"
    assert outcome.contribution.isnan().all()

    candidates = method.candidates(state, updates, reports([1, 2, 3]))
    assert torch.equal(candidates.mixtures @ candidates.models, doubles(START) + 2 * updates)
    assert torch.equal(candidates.shares, torch.eye(3, dtype=torch.float64))  # BatchNorm statistics of its own
    state, outcome = method.round(state, updates, reports([1, 2, 3], dice=[0.5, 0.8, 0.7]))
    assert outcome.models.tolist() == [START] * 3
    assert outcome.statistics == "initial"
    assert outcome.contribution.tolist() == outcome.quantities["utility"].tolist() == [0.5, 0.8, 0.7]
    assert outcome.reputation.tolist() == pytest.approx([math.exp(-1.5), 1, math.exp(-0.5)])

    assert method.candidates(state, updates, reports([1, 2, 3])) is None
    reported = FedSAC(contributions=C)
    given, *expected = started(reported)
    found, *submodels = method.allocate(state, doubles(IMPORTANCE))
    assert all(map(torch.equal, submodels, expected))
    ours = method.round(found, updates, reports([1, 2, 3]))[1]
    assert torch.equal(ours.models, reported.round(given, updates, reports([1, 2, 3]))[1].models)


def test_a_site_absent_from_the_last_round_only_counts_as_the_worst():
    method = FedSAC(standalone_rounds=1)
    state = method.start(torch.ones(4), 3, Layout.of(4))
    assert len(method.candidates(state, torch.zeros(3, 4), reports([1, 0, 3], [True, False, True])).models) == 2
    state, outcome = method.round(state, torch.zeros(3, 4), reports([1, 0, 3], [True, False, True], [0.8, 0.6]))
    assert state.contribution.tolist() == [0.8, 0.6, 0.6]
    assert outcome.contribution[1].isnan()
    assert outcome.quantities["utility"][1].isnan()


def test_contributions_are_one_for_each_site():
    with pytest.raises(ValueError, match="contributions: 3 of them for 2 sites"):
        FedSAC(contributions=C).start(torch.ones(4), 2, Layout.of(4))


def test_a_site_that_joins_after_contributions_are_known_counts_as_the_worst():
    """Before, its unknown contribution took all neurons from all sites at the next allocation."""
    state, _, _ = started(FedSAC(contributions=C))
    method, owners = FedSAC(standalone_rounds=1), torch.tensor(OWNERS, dtype=torch.int32)
    state = method.join(replace(state, round=torch.tensor(2)), [0, 1, 3], 4, Layout((7,), owners))
    assert state.contribution.tolist() == [0.5, 0.8, 0.5, 0.7]
    _, _, neurons = method.allocate(state, doubles(IMPORTANCE))
    assert neurons[[0, 1, 3]].tolist() == literal_masks(C, method.beta, IMPORTANCE)
    assert torch.equal(neurons[2], neurons[0])
    unknown = method.start(doubles(START), 3, Layout((7,), owners))
    assert method.join(unknown, [0, 1, 3], 4, Layout((7,), owners)).contribution.isnan().all()
