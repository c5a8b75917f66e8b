"""The contract of methods: parameters, capabilities, seeds, distillation and errors."""

import math

import pytest
import torch
from rounds import SOONER, candidates_of, layout, make_rounds

from fedmerit.contract.capabilities import EvaluatesCandidates, ImportanceRequest, LearnsFromPeers, towards
from fedmerit.contract.method import Reports
from fedmerit.contract.vectors import parameter_mask
from fedmerit.errors import LONGEST_WORDS, Refused, printable
from fedmerit.methods.cycle import divergence
from fedmerit.methods.registry import METHODS
from fedmerit.schema.messages import Failure
from fedmerit.seeds import random_seed
from fedmerit.server.exchange import Exchange


def test_data_share_counts_present_only_sites():
    reports = Reports(torch.tensor([10.0, 20.0, math.nan]), torch.tensor([True, True, False]))
    assert reports.data_share.tolist() == [10 / 30, 20 / 30, 0]
    assert reports.data_share.dtype == torch.float64


def test_seeds_are_the_same_on_every_machine_and_differ_by_part():
    assert random_seed(0, "site1", 2) == random_seed(0, "site1", 2)
    seeds = {random_seed(*parts) for parts in ((0, "a", 1), (0, "a", 2), (0, "b", 1), (1, "a", 1), (0, 1), ("0", "a1"))}
    assert len(seeds) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert random_seed(0, "initial model") == 8076977981672800817  # of SHA-256's first 63 bits


def test_divergence_is_finite_for_any_logits():
    extreme = torch.tensor([-3e38, -100.0, 0.0, 100.0, 3e38]).view(1, 1, 1, -1)
    for one in (extreme, extreme.flip(-1), torch.zeros_like(extreme)):
        own = one.clone().requires_grad_()
        for kl in ("own_peer", "peer_own"):
            loss = divergence(own, extreme, 5.0, kl)
            assert not loss.isnan()
    assert float(divergence(extreme[..., 1:4], extreme[..., 1:4], 5.0, "own_peer")) == 0.0


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Dice 0.8, Universitätsklinikum", "Dice 0.8, Universitätsklinikum"),
        ("\x1b[2Jgone", r"\x1b[2Jgone"),
        ("a\rb\nc\td", r"a\rb\nc\td"),
        ("\u202ereversed", r"\u202ereversed"),
        ("\x9b31m", r"\x9b31m"),
    ],
)
def test_control_characters_are_written_out(text, shown):
    assert printable(text) == shown


def test_a_sites_reason_commands_no_terminal():
    exchange = Exchange({}, lambda site, answer: answer.reason, "reply", "round 0", 1)
    exchange.refuse("a\x1b]0;title\x07", "\x1b[31mfailed\nround 1: all is well")
    exchange.take("b\x1b[A", Failure("no"))
    reported = "".join(name + reason for name, reason in exchange.faults().items())
    assert reported.isprintable()
    assert r"\x1b[31mfailed\nround 1" in reported


def test_what_a_server_asks_for_commands_no_terminal_of_a_site():
    """It names the split, which the site tells its operator and its own log."""
    refused = str(Refused("not given", "the \x1b[2J split" + "x" * 10**6))
    assert refused.startswith(r"not given: the \x1b[2J split")
    assert len(refused) < LONGEST_WORDS + 50


ASKING = [name for name, kind in METHODS.items() if issubclass(kind, EvaluatesCandidates)]


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
        if asked is None:  # FedSAC, whose candidates are of its rounds only, after them
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


def test_the_term_towards_a_point_and_its_gradient():
    """0.3/2 (2² + 1²) = 0.75; the gradient is 0.3 (w - point)."""
    w = torch.tensor([3.0, -1.0], requires_grad=True)
    loss = towards(torch.tensor([1.0, 0.0], dtype=torch.float64), 0.3)(w)
    assert (float(loss.detach()), loss.dtype) == (pytest.approx(0.75), torch.float32)
    loss.backward()
    torch.testing.assert_close(w.grad, torch.tensor([0.6, -0.3]))
    assert float(towards(w.detach(), 5.0)(w.detach())) == 0


PEERS = [name for name, kind in METHODS.items() if issubclass(kind, LearnsFromPeers)]


@pytest.mark.parametrize("method", PEERS)
def test_a_site_that_shares_does_so_by_a_probability_with_others_only(method):
    made = METHODS[method](**SOONER[method])
    state = made.start(torch.zeros(12), 3, layout(12))
    sharing = made.sharing(state)
    assert sharing is not None
    assert (sharing.probability.shape, sharing.weights.shape) == ((3, 3), (3, 3))
    assert bool(((sharing.probability >= 0) & (sharing.probability <= 1)).all())
    assert sharing.probability.dtype == sharing.weights.dtype == torch.float64
