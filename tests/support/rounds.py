"""Synthetic rounds of sites whose Dice has a formula, played as the engines play them."""

import math
from dataclasses import dataclass, replace

import torch
from hypothesis import settings
from hypothesis import strategies as st

from fedmerit.contract.capabilities import (
    AllocatesNeurons,
    EvaluatesCandidates,
    LearnsFromPeers,
    OwnUpdate,
    TrainsLocally,
    capabilities,
)
from fedmerit.contract.method import CandidateResults, Layout, PatientResults, Reports, SiteView
from fedmerit.contract.vectors import gram, norms, parameter_mask

SOONER = {  # than by default: the rounds of tests are few
    **{"fedsac": {"standalone_rounds": 1}, "cycle": {"warmup": 0, "R": 2, "warmup_by": "own"}, "vpdl": {"warmup": 0}}
}
SETTINGS = SOONER | {"scaffold": {"optimizer": "sgd"}}  # of a run: what else a method needs


@dataclass(frozen=True)
class Rounds:
    """Rounds of n sites; a site's Dice is 1 / (1 + ||w - c||²)."""

    samples: torch.Tensor  # (n,)
    updates: torch.Tensor  # (rounds, n, d), zero where absent
    present: torch.Tensor  # (rounds, n) bool
    centres: torch.Tensor  # (n, d)

    def dice(self, site):
        return lambda model: 1 / (1 + float((model.double() - self.centres[site]).square().sum()))

    def losses(self, site, model):
        """Some losses in [0, 1], as many as the site has images."""
        count = int(self.samples[site])
        return lambda: (1 - self.dice(site)(model)) * torch.linspace(0.1, 1.0, count, dtype=torch.float64)

    def evaluate(self, candidates):
        """What the server validation set says: the mean over a few fixed centres, none of them a site's."""
        if candidates is None:
            return None
        generator = torch.Generator().manual_seed(99)
        centres = torch.randn(3, self.centres.shape[1], generator=generator, dtype=torch.float64)
        models = candidates.mixtures @ candidates.models.double()
        each = 1 / (1 + (models[:, None] - centres).square().sum(dim=2))  # (k, 3)
        places = ((1 - each) * max(candidates.bins, 1)).long().clamp(max=candidates.bins - 1)
        losses = torch.zeros(len(each), candidates.bins, dtype=torch.float64)
        if candidates.bins:
            losses.scatter_add_(1, places, torch.ones_like(each))
        n = len(self.samples)
        server = PatientResults(each[:, None], torch.ones(n, 1, dtype=torch.float64), torch.zeros(1).double())
        return CandidateResults(each.mean(dim=1), losses, patients=server if candidates.soft else None)

    def of_sites(self, rows):
        """The same of some sites, in the order of ``rows``."""
        return Rounds(self.samples[rows], self.updates[:, rows], self.present[:, rows], self.centres[rows])


def make_rounds(seed=0, n=4, d=12, rounds=4, absences=False, dtype=torch.float32):
    random = torch.Generator().manual_seed(seed)
    updates = torch.randn(rounds, n, d, generator=random, dtype=dtype)
    updates = updates + torch.randn(d, generator=random, dtype=dtype)  # something in common
    present = torch.rand(rounds, n, generator=random) < (0.6 if absences else 2.0)
    for number in range(rounds):
        if not present[number].any():
            present[number, number % n] = True
    return Rounds(
        samples=torch.randint(1, 100, (n,), generator=random).double(),
        updates=updates * present[:, :, None],
        present=present,
        centres=torch.randn(n, d, generator=random, dtype=torch.float64),
    )


def layout(d):
    """Of (d,) parameters: every sixth belongs to no neuron, the others to five in turn.

    The first third are a norm's, the last quarters the output layer's, of two labels.
    """
    owners, places, label = (torch.arange(d) % 6 - 1).to(torch.int32), torch.arange(d), max(d // 4, 1)
    outputs = places[-2 * label :].view(-1, label)
    return Layout((d // 3, d - d // 3), owners, norms=(True, False), outputs=outputs)


def allocated(method, state, models):
    """State and models that a round begins with: submodels, where the method asks for importances before it."""
    request = method.importance_request(state) if isinstance(method, AllocatesNeurons) else None
    if request is None:
        return state, models
    owners = layout(len(request.model)).owners.long()
    importance = torch.zeros(int(owners.max()) + 1, dtype=torch.float64)
    if request.images:
        terms = (request.model.double() + 0.1) * torch.arange(1, len(owners) + 1)
        importance.index_add_(0, owners[owners >= 0], terms[owners >= 0])
    state, models, neurons = method.allocate(state, importance)
    assert not models[~parameter_mask(neurons, owners)].any()
    return state, models


def candidates_of(method, state, updates, reports):
    """What is to be evaluated before the round, None: nothing."""
    return method.candidates(state, updates, reports) if isinstance(method, EvaluatesCandidates) else None


def play(method, rounds, states=None, stop=None):
    """Every round's (reports, outcome): the sites report as `site.py` has them report.

    Args:
        method: of the run.
        rounds: what the sites do.
        states: is given the state after each round, as the next one begins with it.
        stop: the number of rounds, where it is not all of them.
    """
    can, (count, n, d) = capabilities(method), rounds.updates.shape
    models = torch.zeros(d, dtype=rounds.updates.dtype)
    state, models = allocated(method, method.start(models, n, layout(d)), models)
    before, weights, history = None, None, []
    for number in range(count if stop is None else stop):
        present = rounds.present[number]
        values = {name: torch.full((n,), math.nan, dtype=torch.float64) for name in method.asks}
        for i in range(n):
            if present[i]:
                received = row(models, i)
                view = SiteView(received, rounds.losses(i, received), rounds.dice(i)(received))
                said = method.report(view) if method.asks else {}
                if can.leave_one_out and number and rounds.present[number - 1, i] and weights[i] < 1:
                    trained = row(before, i) + rounds.updates[number - 1, i]
                    own = OwnUpdate(row(before, i), trained, float(weights[i]), rounds.dice(i))
                    said |= can.leave_one_out.measure(view, own)
                for name, value in said.items():
                    values[name][i] = value
        before_now = rounds.present[number - 1] if number else torch.ones(n, dtype=torch.bool)
        pairs = said_of_peers(method, state, rounds.updates[number], present, before_now)
        vectors = beside(method, rounds.updates[number])
        reports = Reports(rounds.samples.where(present, 0.0), present, values, pairs=pairs, vectors=vectors)
        candidates = candidates_of(method, state, rounds.updates[number], reports)
        reports = replace(reports, candidates=rounds.evaluate(candidates))
        state, outcome = method.round(state, rounds.updates[number], reports)
        before, weights = models, outcome.weights
        state, models = allocated(method, state, outcome.models)
        history.append((reports, outcome))
        if states is not None:
            states.append(state)
    return history


def said_of_peers(method, state, updates, present, present_before):
    """What sites say of those that shared with them: as misaligned as their updates, and available."""
    if not isinstance(method, LearnsFromPeers):
        return {}
    n = len(updates)
    nothing = torch.full((n, n), math.nan, dtype=torch.float64)
    sharing = method.sharing(state)
    if sharing is None:
        return dict.fromkeys(method.peer_quantities, nothing)
    reached = (sharing.probability > 0.5).T & present[:, None] & present_before & ~torch.eye(n, dtype=torch.bool)
    products = gram(updates)
    scale = norms(products)[:, None] * norms(products)
    cosine = torch.where(scale > 0, products / scale.where(scale > 0, 1.0), 0.0).clamp(-1, 1)
    said = {"available": torch.ones_like(nothing), "misalignment": (1 - cosine) / 2, "agreement": cosine.clamp(min=0)}
    return {name: said[name].where(reached, nothing) for name in method.peer_quantities}


def beside(method, updates):
    """What sites send beside their updates, if anything: a tenth of these."""
    return dict.fromkeys(method.vectors, updates / 10) if isinstance(method, TrainsLocally) else {}


def row(models, i):
    """What site i has of one model (d,) or of one model per site (n, d)."""
    return models if models.ndim == 1 else models[i]


def columns(outcome):
    """Everything (n,) in an outcome, and models that are one per site."""
    per_site = {"models": outcome.models} if outcome.models.ndim == 2 else {}
    named = {name: getattr(outcome, name) for name in ("contribution", "reputation", "weights")}
    return named | dict(outcome.quantities) | per_site


def assert_same(ours, theirs, atol=0.0):
    for name, value in ours.items():
        assert torch.allclose(value, theirs[name], rtol=0, atol=atol, equal_nan=True), name


def outcomes(method, rounds):
    return [outcome for _, outcome in play(method, rounds)]


random_rounds = st.builds(
    make_rounds,
    seed=st.integers(0, 2**32),
    n=st.integers(1, 5),
    d=st.integers(3, 9),
    rounds=st.integers(1, 5),
    absences=st.booleans(),
    dtype=st.just(torch.float64),
)
few = settings(deadline=None, max_examples=30, derandomize=True)


def as_numbers(rounds):
    """The updates as plain numbers, [round][site], None where absent."""
    return [
        [update.tolist() if here else None for update, here in zip(updates, present, strict=True)]
        for updates, present in zip(rounds.updates, rounds.present, strict=True)
    ]


def with_dice(method, state, dice, updates, samples=None):
    """A round at which all sites are, and the server found these Dice."""
    count = len(dice)
    images = torch.ones(count, dtype=torch.float64) if samples is None else torch.tensor(samples)
    candidates = CandidateResults(torch.tensor(dice, dtype=torch.float64), torch.zeros(count, 0))
    return method.round(state, updates, Reports(images, torch.ones(count, dtype=torch.bool), {}, candidates))
