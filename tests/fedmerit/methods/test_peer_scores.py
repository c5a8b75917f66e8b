"""How a site scores its peers, on networks of few weights."""

import math

import pytest
import torch
from tiny_peers import BAD, GOOD, data, view
from torch.nn.functional import binary_cross_entropy_with_logits

from fedmerit.methods.cycle import CYCle
from fedmerit.methods.peer_scores import OWN_LOSSES, agreement, agreements, misalignment, misalignments, own_loss
from fedmerit.methods.vpdl import divergence
from fedmerit.trainers.monai_trainer.local_training import build_loss


def test_scoring_may_be_by_the_loss_of_training():
    given = data(batches=1)  # soft Dice is of a batch, not of an image
    held = view({"good": torch.nan, "bad": torch.nan}, batches=given)
    found = CYCle(score="gradients", warmup=0, score_loss="training").learn_from(held).values["misalignment"]
    (images, masks), weights = given[0], list(held.network.parameters())
    own = torch.cat(
        [part.reshape(-1) for part in torch.autograd.grad(build_loss("dice")(held.network(images), masks), weights)]
    )
    for peer, network in (("good", GOOD), ("bad", BAD)):
        loss = divergence(held.network(images), network(images).detach(), CYCle().T, CYCle().kl)
        other = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, weights)])
        assert found[peer] == pytest.approx((1 - float(torch.cosine_similarity(own, other, dim=0))) / 2, abs=1e-5)
    assert found != CYCle(score="gradients", warmup=0).learn_from(held).values["misalignment"]


def test_scoring_may_be_at_the_temperature_of_distillation():
    given = data(batches=1)
    held = view({"good": torch.nan}, batches=given)
    method = CYCle(score="gradients", warmup=0, score_loss="ce_T", T=4.0, kl="peer_own")
    found = method.learn_from(held).values["misalignment"]
    (images, masks), weights = given[0], list(held.network.parameters())
    logits, peer = held.network(images), GOOD(images)
    residual = [(logits / 4).sigmoid() - masks, (logits / 4).sigmoid() - (peer / 4).sigmoid()]  # of KL(peer || own)
    gradients = [
        torch.cat([part.reshape(-1) for part in torch.autograd.grad(logits, weights, one, retain_graph=True)])
        for one in residual
    ]
    expected = (1 - float(torch.cosine_similarity(*gradients, dim=0))) / 2
    assert found["good"] == pytest.approx(expected, abs=1e-5)


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


@pytest.mark.parametrize(("name", "expected"), [("ce", math.log(1 + 1 / 9)), ("ce_T", math.log(1 + 1 / 3))])
def test_a_sites_own_loss_is_cross_entropy_of_its_logits_or_of_those_by_the_temperature(name, expected):
    """A logit of ln 9 with a temperature of 2 is one of ln 3; of a mask of 1, -ln p is ln(1 + 1 / e^z)."""
    loss = own_loss(name, 2.0, view({}))
    assert float(loss(torch.full((1, 1, 1, 1), math.log(9)), torch.ones(1, 1, 1, 1))) == pytest.approx(expected)


def test_a_sites_own_loss_may_be_that_of_its_training():
    held = view({})
    assert own_loss("training", 2.0, held) is held.loss
    assert set(OWN_LOSSES) == {"ce", "ce_T", "training"}


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
