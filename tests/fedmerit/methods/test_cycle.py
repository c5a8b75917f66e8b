"""CYCle and VPDL, and how a site scores its peers, on networks of few weights."""

import math
import random
from dataclasses import replace

import pytest
import torch
from tiny_peers import BAD, GOOD, data, view
from torch.nn.functional import binary_cross_entropy_with_logits

from fedmerit.contract.method import Reports
from fedmerit.methods.cycle import VPDL, CYCle, agreement, agreements, divergence, misalignment, misalignments

NAN = math.nan


def paper(**settings):
    """CYCle as its paper has it, whose warm-up and score are not the default."""
    return CYCle(**{"warmup_by": "own", "score": "gradients", **settings})


def algorithm_1(method, n, rounds):
    """Each round's r_(n,k) and probability of sharing; ``rounds`` hold s[n][k], None where k's is not available."""
    r = [[None] * n for _ in range(n)]
    for number, s in enumerate(rounds):
        t = number - method.warmup
        if t >= 0:
            for i in range(n):
                for k in range(n):
                    if i == k or s[i][k] is None:
                        continue
                    h = max(0, min(1, (s[i][k] - method.tau_max) / (method.tau_opt - method.tau_max)))
                    if r[i][k] is None:
                        r[i][k] = h
                    elif t % method.R == 0:
                        r[i][k] = method.alpha * r[i][k] + (1 - method.alpha) * h
        forced = t + 1 >= 0 and (t + 1) % method.R == 0
        share = [[1.0 if forced or value is None else value for value in row] for row in r]
        yield [list(row) for row in r], share if t + 1 >= 0 else None


@pytest.mark.parametrize("method", [paper(warmup=2, R=3), paper(warmup=0, R=1, alpha=0.8), paper(tau_opt=0.0, R=2)])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_reputations_are_those_of_algorithm_1(method, n):
    draw = random.Random(n)
    rounds = [
        [[draw.random() if i != k and draw.random() < 0.7 else None for k in range(n)] for i in range(n)]
        if number >= method.warmup
        else [[None] * n for _ in range(n)]
        for number in range(14)
    ]
    state = method.start(torch.zeros(2), n, [2])
    for s, (r, share) in zip(rounds, algorithm_1(method, n, rounds), strict=True):
        said = torch.tensor([[NAN if value is None else value for value in row] for row in s], dtype=torch.float64)
        reports = Reports(
            torch.ones(n), torch.ones(n).bool(), pairs={"misalignment": said, "available": said.isfinite().double()}
        )
        state, outcome = method.round(state, torch.zeros(n, 2), reports)
        for i in range(n):
            for k in range(n):
                found = float(outcome.pairs["peer_reputation"][i, k])
                assert found == pytest.approx(NAN if r[i][k] is None else r[i][k], abs=1e-12, nan_ok=True)
        sharing = method.sharing(state)
        assert (sharing is None) == (share is None)
        if sharing is not None:
            assert [[p for k, p in enumerate(row) if k != i] for i, row in enumerate(sharing.probability.tolist())] == [
                pytest.approx([p for k, p in enumerate(row) if k != i]) for i, row in enumerate(share)
            ]
        held = [[r[i][k] for i in range(n) if r[i][k] is not None] for k in range(n)]
        assert outcome.reputation.tolist() == pytest.approx([sum(row) / len(row) if row else 0.0 for row in held])


def test_what_is_said_out_of_turn_changes_no_reputation():
    method, n = paper(warmup=0, R=5), 2
    state = method.start(torch.zeros(1), n, [1])

    def play(state, s):
        said = torch.full((n, n), s, dtype=torch.float64)
        reports = Reports(torch.ones(n), torch.ones(n).bool(), pairs={"misalignment": said, "available": said})
        return method.round(state, torch.zeros(n, 1), reports)

    state, scored = play(state, 0.5)
    _, out_of_turn = play(state, 0.0)
    assert scored.reputation.tolist() == out_of_turn.reputation.tolist() == [0.5, 0.5]
    assert out_of_turn.pairs["misalignment"].isnan().all()


def test_agreement_is_the_peers_dice_by_the_sites_own():
    method = CYCle(warmup=0, score="agreement", lambda0=1.0)
    assert list(method.peer_quantities) == ["available", "agreement"]
    term = method.learn_from(view({"good": NAN, "bad": 0.6}, round=5))
    assert term.values == {"agreement": {"good": 1.0, "bad": 0.2}}
    assert term.weights == {"good": 1.0, "bad": pytest.approx(0.5 * 0.6 + 0.5 * 0.2)}
    assert method.learn_from(view({"good": NAN}, lost=("good",))).values == {"agreement": {}}
    assert (agreement(0.3, 0.0), agreement(0.0, 0.0)) == (1.0, 0.0)


def test_fedavg_may_be_the_warm_up_and_a_round_only_its_end():
    method, samples = paper(warmup=2, R=3, warmup_by="fedavg"), torch.tensor([3.0, 1.0]).double()
    assert (method.together, method.needs.rounds) == (3, 4)
    assert [round for round in range(10) if method.scores(round)] == [3, 6, 9]
    state, updates = method.start(torch.zeros(2), 2, [2]), torch.tensor([[4.0, 0.0], [0.0, 8.0]])
    nothing = torch.full((2, 2), NAN, dtype=torch.float64)
    given = Reports(samples, torch.ones(2).bool(), pairs={"misalignment": nothing, "available": nothing})
    expected = [[[3.0, 2.0]] * 2, [[6.0, 4.0]] * 2, [[10.0, 4.0], [6.0, 12.0]]]
    for models, statistics in zip(expected, ("shared", "shared", "models"), strict=True):
        assert method.sharing(state) is None
        state, outcome = method.round(state, updates, given)
        assert outcome.models.tolist() == state.models.tolist() == models
        assert outcome.statistics == statistics
    assert method.sharing(state) is not None
    with pytest.raises(ValueError, match="exchange='peer': the server has no models to average; set warmup_by=own"):
        CYCle(warmup_by="fedavg", exchange="peer")


def test_a_warm_up_by_fedavg_continues_from_the_model_of_all_whatever_a_site_starts_from():
    method, own = CYCle(warmup=2, warmup_by="fedavg"), torch.tensor([[9.0, 9.0], [1.0, 1.0]])
    state = method.start(torch.zeros(2), 2, [2])
    assert method.restart_from(state, own) is state
    together = replace(state, round=torch.tensor(2))  # each trains its own from here on
    assert torch.equal(method.restart_from(together, own).models, own)


def test_site_learns_from_whom_it_has_scored_well():
    method = paper(warmup=0, lambda0=3.0)
    held = view({"good": NAN, "bad": NAN})
    term = method.learn_from(held)
    assert set(term.values["misalignment"]) == {"good", "bad"}
    images = data(seed=7)[0][0]
    own = held.network(images).detach()
    assert float(term.loss(images, own)) == pytest.approx(
        3.0 * float(divergence(own, GOOD(images), method.T, "own_peer")), rel=1e-6
    )


def test_peer_that_is_not_available_counts_as_nothing():
    method = paper(warmup=0, lambda0=1.0)
    term = method.learn_from(view({"good": 0.5, "bad": 0.5}, lost=("good", "bad")))
    assert term.values["misalignment"] == {}
    images = data()[0][0]
    assert float(term.loss(images, torch.zeros(4, 1, 5, 5))) == 0.0


def test_vpdl_takes_all_peers_alike():
    method = VPDL(warmup=1, lambda0=2.0)
    assert method.sharing(method.start(torch.zeros(1), 3, [1])) is None
    state, _ = method.round(
        method.start(torch.zeros(1), 3, [1]), torch.zeros(3, 1), Reports(torch.ones(3), torch.ones(3).bool())
    )
    sharing = method.sharing(state)
    assert (sharing.probability == 1).all()
    assert (sharing.weights == 0.5).all()
    held = view({"good": 0.5, "bad": 0.5}, round=1)
    images = data()[0][0]
    own = held.network(images).detach()
    both = sum(float(divergence(own, network(images), method.T, "own_peer")) for network in (GOOD, BAD))
    assert float(method.learn_from(held).loss(images, own)) == pytest.approx(both, rel=1e-6)


def test_every_site_continues_from_what_it_trained_and_nobody_has_contributed():
    method, start = VPDL(warmup=0), torch.tensor([1.0, 2.0])
    updates = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 3.0]])
    reports = Reports(torch.tensor([10.0, 0.0, 30.0]).double(), torch.tensor([True, False, True]))
    state, outcome = method.round(method.start(start, 3, [2]), updates, reports)
    assert outcome.models.tolist() == state.models.tolist() == [[2, 2], [1, 2], [1, 5]]
    assert outcome.weights.tolist() == [0.25, 0, 0.75]
    assert outcome.contribution.tolist() == pytest.approx([0, torch.nan, 0], nan_ok=True)
    _, outcome = method.round(state, updates, reports)
    assert outcome.models.tolist() == [[3, 2], [1, 2], [1, 8]]


def test_it_needs_a_round_in_which_sites_learn_from_each_other():
    assert VPDL().needs.rounds == 9
    assert VPDL(warmup=0).needs.rounds == 1


def test_a_site_that_nobody_shared_with_has_nothing_added_to_its_loss():
    term = VPDL(warmup=0).learn_from(view({}, round=1))
    assert float(term.loss(data()[0][0], torch.zeros(4, 1, 5, 5))) == 0.0


@pytest.mark.parametrize("kl", ["own_peer", "peer_own"])
def test_misalignment_is_that_of_the_gradients_over_all_images(kl):
    given = [*data()[:2], tuple(part[:1] for part in data()[2])]  # a last batch of one image counts as one image
    held = view({}, batches=given)
    found = misalignments(held, ["good", "bad"], 3, 5.0, kl)
    images, masks = (torch.cat(parts) for parts in zip(*given, strict=True))
    weights = list(held.network.parameters())

    def gradient(loss):
        return torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, weights)]).double()

    own = gradient(binary_cross_entropy_with_logits(held.network(images), masks))
    for peer, network in (("good", GOOD), ("bad", BAD)):
        other = gradient(divergence(held.network(images), network(images).detach(), 5.0, kl))
        expected = (1 - float(own @ other / (own.norm() * other.norm()))) / 2
        assert found[peer] == pytest.approx(expected, abs=1e-6)
    assert found["good"] < 0.1 < 0.9 < found["bad"]


def test_identical_networks_are_neither_aligned_nor_not():
    held = view({"good": torch.nan})
    held.network.load_state_dict(GOOD.state_dict())
    for kl in ("own_peer", "peer_own"):
        assert misalignments(held, ["good"], 3, 5.0, kl) == {"good": 0.5}


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ([2.0, 0.0], 0.0),
        ([0.0, 5.0], 0.5),
        ([-0.1, 0.0], 1.0),
        ([1.0, math.sqrt(3)], 0.25),  # 60 degrees
        ([0.0, 0.0], 0.5),
        ([1e-9, 0.0], 0.5),  # what rounding leaves of nothing
    ],
)
def test_misalignment_is_half_of_what_the_cosine_lacks_of_one(peer, expected):
    assert misalignment(torch.tensor([3.0, 0.0]), torch.tensor(peer)) == pytest.approx(expected, abs=1e-7)
    assert misalignment(torch.zeros(2), torch.tensor(peer)) == 0.5


@pytest.mark.parametrize(
    ("peer", "own", "expected"), [(0.2, 0.8, 0.25), (0.9, 0.8, 1), (0, 0.8, 0), (0, 0, 0), (0.1, 0, 1)]
)
def test_agreement_is_a_share_of_the_sites_own_dice(peer, own, expected):
    assert agreement(peer, own) == expected


def test_agreements_are_those_of_peers_that_are_available():
    """The site's own Dice is 0.5, theirs are 0.8 and 0.1."""
    assert agreements(view({}), ["good", "bad"]) == {"good": 1.0, "bad": 0.2}
    assert agreements(view({}, lost=("good",)), ["good", "bad"]) == {"bad": 0.2}


def test_misalignments_are_of_peers_that_are_available():
    assert misalignments(view({}, lost=("good",)), ["good", "bad"], 1, 5.0, "own_peer").keys() == {"bad"}
