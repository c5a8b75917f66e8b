"""What only some methods do: candidates, neurons, local training, peers, pooled images."""

import pytest
import torch
from rounds import SOONER, candidates_of, layout, make_rounds

from fedmerit.capabilities import (
    AllocatesNeurons,
    EvaluatesCandidates,
    ImportanceRequest,
    LearnsFromPeers,
    LocalResult,
    Trained,
    TrainsLocally,
    capabilities,
    towards,
)
from fedmerit.core import Reports
from fedmerit.methods.registry import METHODS
from fedmerit.vectors import parameter_mask

ASKING = [name for name, kind in METHODS.items() if issubclass(kind, EvaluatesCandidates)]


def test_a_site_lets_as_many_models_be_evaluated_as_there_are_sites_unless_a_method_says_more():
    assert EvaluatesCandidates().most_candidates(7) == 7
    assert EvaluatesCandidates().loss_bins == 0
    with pytest.raises(NotImplementedError):
        EvaluatesCandidates().candidates(None, torch.zeros(1, 1), None)


@pytest.mark.parametrize("method", ASKING)
@pytest.mark.parametrize("n", [2, 4])
def test_what_is_asked_for_is_mixtures_and_no_more_than_is_said(method, n):
    """With a site absent as with all there."""
    made = METHODS[method](**SOONER.get(method, {}))
    for there in (n, n - 1):
        rounds = make_rounds(n=n, d=12)
        present = torch.arange(n) < there
        state = made.start(torch.zeros(12), n, layout(12))
        updates = rounds.updates[0] * present[:, None]
        values = {name: torch.full((n,), 0.5, dtype=torch.float64) for name in made.asks}
        reports = Reports(rounds.samples.where(present, 0.0), present, values)
        asked = candidates_of(made, state, updates, reports)
        if asked is None:  # FedSAC, whose candidates are of its rounds alone, after them
            assert method == "fedsac"
            continue
        assert asked.mixtures.shape == (len(asked.mixtures), len(asked.models))
        assert asked.shares.shape == (len(asked.mixtures), n)
        assert asked.bins == made.loss_bins
        assert 0 < len(asked.mixtures) <= made.most_candidates(n)
        torch.testing.assert_close(asked.mixtures.sum(dim=1), torch.ones(len(asked.mixtures), dtype=torch.float64))
        totals = asked.shares.sum(dim=1)
        assert bool(((totals - 1).abs().lt(1e-12) | totals.eq(0)).all())
        assert not asked.shares[:, ~present].any()  # of whom there are no trained statistics
        assert not asked.coalitions or len(asked.mixtures) == 2**there


ALLOCATING = [name for name, kind in METHODS.items() if issubclass(kind, AllocatesNeurons)]


def test_fedsac_alone_allocates():
    assert ALLOCATING == ["fedsac"]


@pytest.mark.parametrize(
    "call",
    [
        lambda one: one.importance_schedule(0),
        lambda one: one.importance_request(None),
        lambda one: one.allocate(None, None),
    ],
)
def test_who_has_the_capability_has_all_of_it(call):
    with pytest.raises(NotImplementedError):
        call(AllocatesNeurons())


def test_what_a_site_does_not_hold_is_zero_in_its_model_and_the_rest_is_the_models():
    made = METHODS["fedsac"](contributions=(0.2, 0.5, 0.9))  # known before, so that submodels go out at once
    model = torch.arange(1, 31, dtype=torch.float32)
    whole = layout(30)
    state = made.start(model, 3, whole)
    request = made.importance_request(state)
    assert isinstance(request, ImportanceRequest)
    assert request.order in ("exact", "taylor")
    assert (request.order, request.images) == made.importance_schedule(0)
    torch.testing.assert_close(request.model, model)
    _, models, neurons = made.allocate(state, torch.arange(5, dtype=torch.float64))
    assert (models.shape, neurons.shape, neurons.dtype) == ((3, 30), (3, 5), torch.bool)
    held = parameter_mask(neurons, whole.owners.long())
    torch.testing.assert_close(models, model.expand(3, 30).where(held, 0.0))
    assert bool(held[:, whole.owners < 0].all())  # what is no neuron's is everybody's


LOCAL = {name: kind for name, kind in METHODS.items() if issubclass(kind, TrainsLocally)}


def test_the_term_towards_a_point_and_its_gradient():
    """0.3/2 (2² + 1²) = 0.75; the gradient is 0.3 (w - point)."""
    w = torch.tensor([3.0, -1.0], requires_grad=True)
    loss = towards(torch.tensor([1.0, 0.0], dtype=torch.float64), 0.3)(w)
    assert (float(loss.detach()), loss.dtype) == (pytest.approx(0.75), torch.float32)
    loss.backward()
    torch.testing.assert_close(w.grad, torch.tensor([0.6, -0.3]))
    assert float(towards(w.detach(), 5.0)(w.detach())) == 0


def test_by_default_nothing_is_sent_beside_updates_and_any_optimiser_will_do():
    plain = TrainsLocally()
    assert (plain.vectors, plain.keeps_own_model, plain.optimizers) == ((), False, ())
    with pytest.raises(NotImplementedError):
        plain.train(None)
    result = LocalResult(Trained(torch.zeros(2), {}, 0.5, 3, 0.1))
    assert (result.vectors, result.kept, result.own) == ({}, {}, None)


def test_who_uses_which_part_of_it():
    assert set(LOCAL) == {"fedprox", "scaffold", "ditto"}
    assert [name for name, kind in LOCAL.items() if kind.vectors] == ["scaffold"]
    assert [name for name, kind in LOCAL.items() if kind.keeps_own_model] == ["ditto"]
    assert [name for name, kind in LOCAL.items() if kind.optimizers] == ["scaffold"]


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
def test_whoever_shares_does_so_by_a_probability_with_others_alone(method):
    made = METHODS[method](**SOONER[method])
    state = made.start(torch.zeros(12), 3, layout(12))
    sharing = made.sharing(state)
    assert sharing is not None
    assert (sharing.probability.shape, sharing.weights.shape) == ((3, 3), (3, 3))
    assert bool(((sharing.probability >= 0) & (sharing.probability <= 1)).all())
    assert sharing.probability.dtype == sharing.weights.dtype == torch.float64
