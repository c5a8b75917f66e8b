"""Innovation: candidates and values of a round written out, by the server's images and by a committee of sites."""

from dataclasses import replace

import pytest
import torch

from fedmerit.contract.innovation import LONGEST, Broadcast, find_rests
from fedmerit.contract.method import CandidateResults, Layout, PatientResults, Reports
from fedmerit.methods.innovation import Innovation

SIZES = (1200, 40)
n = 3


def start(method):
    return method.start(torch.randn(sum(SIZES), generator=torch.Generator().manual_seed(1)), n, Layout.of(*SIZES))


def reports(present=(True, True, True), **more):
    return Reports(torch.tensor([10.0, 20.0, 70.0]).double(), torch.tensor(present), **more)


def updates(seed=2, present=(True, True, True)):
    drawn = torch.randn(n, sum(SIZES), generator=torch.Generator().manual_seed(seed))
    return 0.01 * drawn * torch.tensor(present)[:, None]


def rated(utilities, voice=None, offsets=None):
    """Results with the utilities (k, R, K)."""
    found = torch.tensor(utilities, dtype=torch.float64)
    raters = found.shape[1]
    voice = torch.ones(n, raters, dtype=torch.float64) if voice is None else torch.tensor(voice).double()
    offsets = torch.zeros(raters, dtype=torch.float64) if offsets is None else torch.tensor(offsets).double()
    return CandidateResults(
        found.mean(dim=(1, 2)), torch.zeros(len(found), 0), patients=PatientResults(found, voice, offsets)
    )


def test_candidates_are_the_model_without_rests_with_each_and_with_all():
    method, present = Innovation(), (True, False, True)
    state, sent = start(method), updates(present=present)
    candidates = method.candidates(state, sent, reports(present))
    weights = torch.tensor([0.125, 0.0, 0.875]).double()
    mean = state.model.double() + weights @ sent.double()
    rests = find_rests(sent, Broadcast.begin(state.model), SIZES).double()
    forecast = mean - weights[[0, 2]] @ rests[[0, 2]]
    assert torch.allclose(candidates.models[0].double(), forecast, atol=1e-6)
    assert torch.allclose(candidates.models[3].double(), mean, atol=1e-6)
    for row, site in ((1, 0), (2, 2)):
        expected = forecast + weights[site] * rests[site]
        assert torch.allclose(candidates.models[row].double(), expected, atol=1e-6)
    assert candidates.soft
    assert len(candidates.models) == 4


def test_candidates_shorten_a_rest_that_is_longer_than_the_others():
    method, sent = Innovation(), updates()
    state, weights = start(method), torch.tensor([0.1, 0.2, 0.7]).double()
    sent[2] *= 10
    rests = find_rests(sent, Broadcast.begin(state.model), SIZES).double()
    longest = LONGEST * max(rests[0].norm(), rests[1].norm())
    models = method.candidates(state, sent, reports()).models.double()
    added = (models[1:4] - models[0]).norm(dim=1)
    expected = [float(0.1 * rests[0].norm()), float(0.2 * rests[1].norm()), float(0.7 * longest)]
    assert added.tolist() == pytest.approx(expected, rel=1e-3)
    assert torch.allclose(models[4].double(), state.model.double() + weights @ sent.double(), atol=1e-6)


def test_candidates_of_two_honest_sites_and_a_free_rider_are_not_shortened():
    method, sent = Innovation(), updates()
    sent[0] = 0.0
    models = method.candidates(start(method), sent, reports()).models.double()
    assert (models[1:4] - models[0]).norm(dim=1).tolist() == pytest.approx(
        [0.0, *(weight * float(sent[row].norm()) for row, weight in ((1, 0.2), (2, 0.7)))], rel=0.05
    )


def test_round_divides_its_gain_by_what_rests_add_on_the_servers_images():
    method = Innovation()
    state = start(method)
    utilities = [[[0.5, 0.5]], [[0.6, 0.6]], [[0.5, 0.8]], [[0.4, 0.5]], [[0.6, 0.7]]]
    state, outcome = method.round(state, updates(), reports(candidates=rated(utilities)))
    gain, added = 0.15, (0.1, 0.15, -0.05)
    assert outcome.contribution.tolist() == pytest.approx([gain * one / 0.3 for one in added])
    assert outcome.reputation.tolist() == pytest.approx([0.4, 0.6, 0.0])
    assert outcome.weights.tolist() == pytest.approx([0.1, 0.2, 0.7])
    state, outcome = method.round(state, updates(3), reports(candidates=rated(utilities)))
    assert outcome.quantities["innovation"].tolist() == pytest.approx([2 * gain * one / 0.3 for one in added])


def test_round_that_gained_nothing_counts_nothing():
    method, utilities = Innovation(), [[[0.5]], [[0.6]], [[0.3]], [[0.5]], [[0.45]]]
    _, outcome = method.round(start(method), updates(), reports(candidates=rated(utilities)))
    assert outcome.contribution.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("weights", ["images", "innovation"])
def test_round_without_a_positive_value_pays_nobody_and_weighs_by_images(weights):
    method = Innovation(weights=weights)
    state, outcome = method.round(start(method), updates(), reports(candidates=rated([[[0.5]]] * 5)))
    _, after = method.round(state, updates(3), reports(candidates=rated([[[0.5]]] * 5)))
    for one in (outcome, after):
        assert one.reputation.tolist() == [0.0, 0.0, 0.0]
        assert one.weights.tolist() == pytest.approx([0.1, 0.2, 0.7])


def test_round_by_innovation_weighs_by_shares_of_the_rounds_before():
    method = Innovation(weights="innovation")
    state, first = method.round(
        start(method), updates(), reports(candidates=rated([[[0.1]], [[0.3]], [[0.5]], [[0.1]], [[0.7]]]))
    )
    _, second = method.round(state, updates(3), reports(candidates=rated([[[0.5]]] * 5)))
    assert first.weights.tolist() == pytest.approx([0.1, 0.2, 0.7])
    assert second.weights.tolist() == pytest.approx([1 / 3, 2 / 3, 0.0])


def test_round_by_a_committee_lets_no_site_rate_itself():
    utilities = torch.full((5, n, 2), 0.5)
    utilities[1, 0] = 1.0  # the first site finds that its own rest adds much,
    utilities[1, 1] = 0.6  # the second that it adds .1,
    utilities[1, 2, 0] = 0.8  # and the third has one patient
    utilities[4] = torch.tensor([[0.9], [0.7], [0.6]])  # the median of the gains is .2
    utilities[:, 2, 1] = torch.nan
    voice = [[0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]]
    method = Innovation()
    results = rated(utilities.tolist(), voice, [0.0, 0.0, 0.01])
    state, outcome = method.round(start(method), updates(), reports(candidates=results))
    added = torch.tensor([0.5 * 0.1 + 0.5 * 0.31, 0.005, 0.0])
    assert outcome.contribution.tolist() == pytest.approx((0.2 * added / added.sum()).tolist())
    assert state.patients.tolist() == [2, 2, 1]


def test_join_keeps_the_values_of_the_sites_before():
    method = Innovation()
    state, _ = method.round(
        start(method), updates(), reports(candidates=rated([[[0.1]], [[0.3]], [[0.5]], [[0.1]], [[0.7]]]))
    )
    joined = method.join(state, [0, 2, 3], 4, Layout.of(*SIZES))
    assert joined.began.tolist() == [0, -1, 0, 0]
    assert joined.gains[0, :, 0, 0].tolist() == pytest.approx([0.2, 0.0, 0.4, 0.0])
    assert joined.reputation.tolist() == pytest.approx([1 / 3, 0, 2 / 3, 0])


def test_round_multiplies_pay_by_the_credit_of_rounds_worked():
    method, utilities = Innovation(), [[[0.3]], [[0.5]], [[0.5]], [[0.3]], [[0.7]]]
    given = reports(candidates=rated(utilities), credit=torch.tensor([1.0, 0.25, 1.0]).double())
    _, outcome = method.round(start(method), updates(), given)
    assert outcome.reputation.tolist() == pytest.approx([0.8, 0.2, 0.0])


def test_round_of_an_absent_rater_counts_the_patients_of_the_others():
    method = Innovation()
    full = rated([[[0.5, 0.5]] * 3] * 5, [[0, 0.5, 0.5]] * 3)
    state, _ = method.round(start(method), updates(), reports(candidates=full))
    without = torch.full((5, n, 2), torch.nan)
    without[:, 1] = 0.5
    without[1, 1] = 0.6
    without[4, 1] = 0.6
    results = rated(without.tolist(), [[0, 1, 0]] * 3)
    state, outcome = method.round(state, updates(), reports(candidates=results))
    assert outcome.contribution[0].item() == pytest.approx(0.1)
    assert state.patients.tolist() == [2, 2, 2]
    assert replace(state).gains.shape == (2, n, 3, 2)
