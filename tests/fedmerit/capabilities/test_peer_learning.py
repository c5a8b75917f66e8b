"""Methods whose sites learn from each other's predictions: who shares with whom, and by which way models go."""

import pytest
import torch
from rounds import SOONER, layout

from fedmerit.capabilities import LearnsFromPeers, PeerTerm, capabilities
from fedmerit.methods.registry import METHODS

PEERS = [name for name, kind in METHODS.items() if issubclass(kind, LearnsFromPeers)]


def test_who_learns_from_peers():
    assert PEERS == ["cycle", "vpdl"]
    assert LearnsFromPeers().peer_quantities == {"available": (0, 1)}
    for call in (lambda one: one.sharing(None), lambda one: one.probability(None, 0), lambda one: one.learn_from(None)):
        with pytest.raises(NotImplementedError):
            call(LearnsFromPeers())


@pytest.mark.parametrize("method", PEERS)
def test_models_go_by_the_server_unless_peers_are_asked(method):
    kind = METHODS[method]
    assert not capabilities(kind(**SOONER[method])).exchanges_directly
    assert capabilities(kind(**SOONER[method], exchange="peer")).exchanges_directly
    assert not capabilities(METHODS["fedavg"]()).exchanges_directly


@pytest.mark.parametrize("method", PEERS)
def test_availability_is_asked_of_every_peer(method):
    assert METHODS[method](**SOONER[method]).peer_quantities["available"] == (0, 1)


@pytest.mark.parametrize("method", PEERS)
def test_whoever_shares_does_so_by_a_probability_with_others_alone(method):
    made = METHODS[method](**SOONER[method])
    state = made.start(torch.zeros(12), 3, layout(12))
    sharing = made.sharing(state)
    assert sharing is not None
    assert (sharing.probability.shape, sharing.weights.shape) == ((3, 3), (3, 3))
    assert bool(((sharing.probability >= 0) & (sharing.probability <= 1)).all())
    assert sharing.probability.dtype == sharing.weights.dtype == torch.float64


def test_a_term_says_nothing_of_peers_unless_it_is_told():
    term = PeerTerm(lambda images, logits: logits.sum())
    assert (term.values, term.weights) == ({}, {})
