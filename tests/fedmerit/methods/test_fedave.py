"""FedAVE against its slow reference, and its divergences of histograms."""

import pytest
import reference_validation as reference
import torch
from comparing import assert_at_sites, assert_models, dice_of, evaluated, given_to, own_losses_of
from hypothesis import given
from one_in import one_in
from rounds import few, make_rounds, outcomes, play, random_rounds

from fedmerit.contract.method import CandidateResults, Layout, Reports, SiteView
from fedmerit.contract.vectors import histogram
from fedmerit.methods.fedave import FedAVE, distribution, divergence, floored_divergence, sampling_divergence

CASES = {  # parameters, and how the reference calls them where that differs
    "default": ({}, {}),
    "paper": ({"form": "paper", "tau": 0.5}, {}),
    "released": ({"form": "released", "bins": 4}, {}),
    "other memory": ({"alpha": 0.5, "beta": 3.0}, {}),
    "accuracy only": ({"distributions": "none"}, {"in_score": False, "in_quota": False}),
    "in the reputation": ({"distributions": "reputation"}, {"in_quota": False}),
    "floored near 0": ({"kl_floor": 1e-3}, {}),
    "clipped": ({"clip": 0.3, "tau": 0.5}, {}),
    "as before training where nothing comes": ({"unrewarded": "nothing", "tau": 0.5}, {}),
    "in the quota": ({"distributions": "quota", "form": "paper"}, {"in_score": False}),
}


@pytest.mark.parametrize("case", one_in(3, CASES))
@given(rounds=random_rounds)
@few
def test_fedave_is_the_reference(case, rounds):
    parameters, otherwise = CASES[case]
    method = FedAVE(**parameters)
    same = {name: value for name, value in parameters.items() if name != "distributions"}

    def server_losses(model):
        """One loss amid its bin for each that the server counted there."""
        counts = evaluated(rounds, model, method.bins).losses[0].tolist()
        return [(place + 0.5) / method.bins for place, count in enumerate(counts) for _ in range(int(count))]

    own = own_losses_of(rounds)
    expected = reference.fedave(*given_to(rounds), dice_of(rounds), own, server_losses, **same | otherwise)
    for (reports, outcome), round in zip(play(method, rounds), expected, strict=True):
        present = reports.present.nonzero().flatten().tolist()
        assert_at_sites(outcome.contribution, round["score"], present)
        if method.loss_bins:
            assert_at_sites(outcome.quantities["divergence"], round["divergence"], present)
        assert outcome.reputation.tolist() == pytest.approx(round["r"], abs=1e-9)
        assert torch.equal(outcome.weights, reports.data_share)
        assert_models(outcome.models, round["models"])


def test_nothing_is_asked_for_that_does_not_count():
    with_losses, without = FedAVE(), FedAVE(distributions="none")
    assert (len(with_losses.asks), with_losses.loss_bins, with_losses.most_candidates(6)) == (10, 10, 12)
    assert (without.asks, without.loss_bins, without.most_candidates(6)) == ({}, 0, 6)


def test_a_site_reports_its_losses_as_a_histogram():
    losses = torch.tensor([0.0, 0.05, 0.1, 0.99, 1.0])
    view = SiteView(torch.zeros(2), lambda: losses)
    reported = FedAVE().report(view)
    assert reported == {f"loss_bin_{b}": {0: 2.0, 1: 1.0, 9: 2.0}.get(b, 0.0) for b in range(10)}
    assert histogram(losses, 1).tolist() == [5]


def test_fedave_evaluates_trained_models_then_received_ones():
    method, updates = FedAVE(), torch.arange(1.0, 9.0).view(2, 4)
    state = method.start(torch.ones(4), 2, Layout.of(4))
    candidates = method.candidates(state, updates, Reports(torch.ones(2), torch.tensor([True, True])))
    assert torch.equal((candidates.mixtures @ candidates.models.double())[:2], 1 + updates.double())
    assert torch.equal((candidates.mixtures @ candidates.models.double())[2:], torch.ones(2, 4).double())
    assert candidates.shares.tolist() == [[1, 0], [0, 1], [0, 0], [0, 0]]
    assert candidates.received.tolist() == [[0, 0], [0, 0], [1, 0], [0, 1]]
    assert candidates.bins == 10


def test_one_huge_and_one_zero_update_leave_fedave_at_the_huge_ones_scale():
    rounds = make_rounds(n=3)
    rounds.updates[0, 0], rounds.updates[0, 1] = 0.0, rounds.updates[0, 1] * 1e20
    assert outcomes(FedAVE(), rounds)[0].models.isfinite().all()


def test_sites_of_one_distribution_earn_alike_where_its_sampling_is_the_floor():
    """The lowest of four such sites' quotas, mean over 20 draws of their images."""
    shares = torch.tensor([4.0, 3, 2, 1, 1, 1, 1, 1, 2, 4])
    state = FedAVE().start(torch.zeros(3), 4, Layout.of(3))
    here, images = torch.ones(4, dtype=torch.bool), torch.full((4,), 90.0, dtype=torch.float64)

    def lowest(seed, floor):
        draw = torch.Generator().manual_seed(seed)
        counts = torch.stack([torch.multinomial(shares, 90, True, generator=draw).bincount(minlength=10)] * 8)
        counts[:4] = torch.stack(
            [torch.multinomial(shares, 90, True, generator=draw).bincount(minlength=10) for _ in range(4)]
        )
        values = {f"loss_bin_{place}": counts[:4, place].double() for place in range(10)}
        results = CandidateResults(torch.full((8,), 0.5, dtype=torch.float64), counts.double())
        reports = Reports(images, here, values, results)
        _, outcome = FedAVE(kl_floor=floor).round(state, torch.ones(4, 3), reports)
        return float(outcome.quantities["quota"].min())

    near_none, sampling = (sum(lowest(seed, floor) for seed in range(20)) / 20 for floor in (1e-3, None))
    assert near_none < 0.5
    assert sampling > 0.75


def test_the_floor_is_what_samples_of_one_distribution_are_apart():
    """The mean over many pairs of samples, of which enough fall into every bin."""
    draw, bins, n, m = torch.Generator().manual_seed(1), 5, 2000, 3000
    shares = torch.tensor([1.0, 2, 3, 2, 1])
    pairs = [torch.multinomial(shares.expand(400, bins), size, True, generator=draw) for size in (n, m)]
    counts = [torch.stack([row.bincount(minlength=bins) for row in rows]) for rows in pairs]
    found = divergence(*(distribution(count, 0.0) for count in counts)).mean()
    one = torch.ones(1, dtype=torch.float64)
    assert float(found) == pytest.approx(float(sampling_divergence(n * one, m * one, bins)), rel=0.1)


def test_a_histogram_that_is_not_available_counts_as_even_and_nothing_is_0():
    own = torch.tensor([[torch.nan, torch.nan], [3.0, 3.0]]).double()
    validation = torch.tensor([[5.0, 5.0], [5.0, 5.0]]).double()
    assert floored_divergence(own, validation, 0.01).tolist() == [0.01, 0.01]
    assert floored_divergence(own, validation, None).tolist() == pytest.approx([0.5 * 1.1, 0.5 * (1 / 6 + 0.1)])
    assert (floored_divergence(own[:, :1], validation[:, :1], None) > 0).all()
