"""CYCle and VPDL: the server's half against Algorithm 1 in plain Python, the site's half on networks of few weights."""

import math
import random

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedmerit.capabilities.peer_learning import PeerView
from fedmerit.core import Reports
from fedmerit.distillation import divergence
from fedmerit.methods.cycle import CYCle
from fedmerit.methods.peer_scores import agreement, misalignments
from fedmerit.methods.vpdl import VPDL
from fedmerit.training.learning import build_loss

NAN = math.nan


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


@pytest.mark.parametrize("method", [CYCle(warmup=2, R=3), CYCle(warmup=0, R=1, alpha=0.8), CYCle(tau_opt=0.0, R=2)])
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
    method, n = CYCle(warmup=0, R=5), 2
    state = method.start(torch.zeros(1), n, [1])

    def play(state, s):
        said = torch.full((n, n), s, dtype=torch.float64)
        reports = Reports(torch.ones(n), torch.ones(n).bool(), pairs={"misalignment": said, "available": said})
        return method.round(state, torch.zeros(n, 1), reports)

    state, scored = play(state, 0.5)
    _, out_of_turn = play(state, 0.0)
    assert scored.reputation.tolist() == out_of_turn.reputation.tolist() == [0.5, 0.5]
    assert out_of_turn.pairs["misalignment"].isnan().all()


# The site's half


class Tiny(nn.Module):
    """Three weights and a bias for each pixel of three channels."""

    def __init__(self, weights):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weights))
        self.bias = nn.Parameter(torch.tensor(0.1))

    def forward(self, images):
        return (images * self.weight[:, None, None]).sum(dim=1, keepdim=True) + self.bias


def data(seed=0, batches=3):
    draw = torch.Generator().manual_seed(seed)
    images = torch.randn(batches, 4, 3, 5, 5, generator=draw)
    return [(batch, (batch.sum(dim=1, keepdim=True) > 0).float()) for batch in images]


GOOD, BAD = (Tiny([weight] * 3).requires_grad_(False) for weight in (1.0, -1.0))


DICE = {None: 0.5, "good": 0.8, "bad": 0.1}  # on the site's validation images


def view(weights, round=0, batches=None, lost=()):
    """A site that has learnt a little, a peer that knows the masks and one that knows their opposite."""
    networks = {"good": GOOD, "bad": BAD}
    given = data() if batches is None else batches

    def predict(peer, images):
        return None if peer in lost else networks[peer](images).detach()

    def dice(peer):
        return None if peer in lost else DICE[peer]

    network = Tiny([0.2, -0.1, 0.3])
    return PeerView(round, weights, predict, network, lambda count: given[:count], build_loss("dice"), dice)


def test_scoring_may_be_by_the_loss_of_training():
    given = data(batches=1)  # soft Dice is of a batch, not of an image
    held = view({"good": torch.nan, "bad": torch.nan}, batches=given)
    found = CYCle(warmup=0, score_loss="training").learn_from(held).values["misalignment"]
    (images, masks), weights = given[0], list(held.network.parameters())
    own = torch.cat(
        [part.reshape(-1) for part in torch.autograd.grad(build_loss("dice")(held.network(images), masks), weights)]
    )
    for peer, network in (("good", GOOD), ("bad", BAD)):
        loss = divergence(held.network(images), network(images).detach(), CYCle().T, CYCle().kl)
        other = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, weights)])
        assert found[peer] == pytest.approx((1 - float(torch.cosine_similarity(own, other, dim=0))) / 2, abs=1e-5)
    assert found != CYCle(warmup=0).learn_from(held).values["misalignment"]


def test_scoring_may_be_at_the_temperature_of_distillation():
    given = data(batches=1)
    held = view({"good": torch.nan}, batches=given)
    found = CYCle(warmup=0, score_loss="ce_T", T=4.0, kl="peer_own").learn_from(held).values["misalignment"]
    (images, masks), weights = given[0], list(held.network.parameters())
    logits, peer = held.network(images), GOOD(images)
    residual = [(logits / 4).sigmoid() - masks, (logits / 4).sigmoid() - (peer / 4).sigmoid()]  # of KL(peer || own)
    gradients = [
        torch.cat([part.reshape(-1) for part in torch.autograd.grad(logits, weights, one, retain_graph=True)])
        for one in residual
    ]
    expected = (1 - float(torch.cosine_similarity(*gradients, dim=0))) / 2
    assert found["good"] == pytest.approx(expected, abs=1e-5)


def test_agreement_is_the_peers_dice_by_the_sites_own():
    method = CYCle(warmup=0, score="agreement", lambda0=1.0)
    assert method.asks_of_peers == ("available", "agreement")
    term = method.learn_from(view({"good": NAN, "bad": 0.6}, round=5))
    assert term.values == {"agreement": {"good": 1.0, "bad": 0.2}}
    assert term.weights == {"good": 1.0, "bad": pytest.approx(0.5 * 0.6 + 0.5 * 0.2)}
    assert method.learn_from(view({"good": NAN}, lost=("good",))).values == {"agreement": {}}
    assert (agreement(0.3, 0.0), agreement(0.0, 0.0)) == (1.0, 0.0)


def test_fedavg_may_be_the_warm_up_and_a_round_alone_its_end():
    method, samples = CYCle(warmup=2, R=3, warmup_by="fedavg"), torch.tensor([3.0, 1.0]).double()
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
    with pytest.raises(ValueError, match="needs exchange='relay'"):
        CYCle(warmup_by="fedavg", exchange="peer")


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


def test_site_learns_from_whom_it_has_scored_well():
    method = CYCle(warmup=0, lambda0=3.0)
    held = view({"good": NAN, "bad": NAN})
    term = method.learn_from(held)
    assert set(term.values["misalignment"]) == {"good", "bad"}
    images = data(seed=7)[0][0]
    own = held.network(images).detach()
    assert float(term.loss(images, own)) == pytest.approx(
        3.0 * float(divergence(own, GOOD(images), method.T, "own_peer")), rel=1e-6
    )


@pytest.mark.parametrize(("round", "good", "due"), [(5, 0.4, True), (6, 0.4, False), (6, NAN, True)])
def test_reputation_moves_where_scoring_is_due(round, good, due):
    method = CYCle(warmup=0, R=5, lambda0=1.0)
    held = view({"good": good}, round=round)
    term = method.learn_from(held)
    assert set(term.values["misalignment"]) == ({"good"} if due else set())
    images = data(seed=7)[0][0]
    own = held.network(images).detach()
    weight = float(term.loss(images, own) / divergence(own, GOOD(images), method.T, "own_peer"))
    assert weight == pytest.approx({(5, 0.4): 0.7, (6, 0.4): 0.4}.get((round, good), 1.0), abs=1e-5)


def test_peer_that_is_not_available_counts_as_nothing():
    method = CYCle(warmup=0, lambda0=1.0)
    term = method.learn_from(view({"good": 0.5, "bad": 0.5}, lost=("good", "bad")))
    assert term.values["misalignment"] == {}
    images = data()[0][0]
    assert float(term.loss(images, torch.zeros(4, 1, 5, 5))) == 0.0


def test_identical_networks_are_neither_aligned_nor_not():
    held = view({"good": NAN})
    held.network.load_state_dict(GOOD.state_dict())
    for kl in ("own_peer", "peer_own"):
        assert misalignments(held, ["good"], 3, 5.0, kl) == {"good": 0.5}


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
