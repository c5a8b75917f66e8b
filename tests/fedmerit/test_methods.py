"""What holds for every method, and each method against its slow reference."""

import io
import math
from dataclasses import asdict, replace

import pytest
import torch
from rounds import SOONER, Rounds, allocated, assert_same, columns, layout, make_rounds, outcomes, play, said_of_peers

from fedmerit.core import Layout, Reports, allowed
from fedmerit.methods.cffl import CFFL
from fedmerit.methods.cgsv import CGSV
from fedmerit.methods.cycle import CYCle
from fedmerit.methods.data_weighted import DataWeighted
from fedmerit.methods.eci import ECI
from fedmerit.methods.fedave import FedAVE
from fedmerit.methods.fedce import FedCE
from fedmerit.methods.fedci import FedCI
from fedmerit.methods.fedsac import FedSAC
from fedmerit.methods.qfedavg import QFedAvg
from fedmerit.methods.registry import METHODS
from fedmerit.methods.rffl import RFFL
from fedmerit.methods.round_robin import RoundRobin
from fedmerit.methods.vpdl import VPDL

NAN = math.nan
VARIANTS = [
    *(FedCE(combine, estimate) for combine, estimate in (("plus", "site"), ("times", "server"), ("plus", "server"))),
    CFFL(theta=0.6, clip=0.5, reputation="released", aggregation="sum", keep_own=True),
    CFFL(alpha=4.0, alpha_growth=3, reputation="released", aggregation="mean", keep_own=True, coef=0.9),
    CFFL(coef=0.9),
    CFFL(reward="global"),
    FedAVE(tau=0.5, form="paper", bins=5),
    FedAVE(form="released", mask="per_tensor"),
    QFedAvg(q=5.0),
    QFedAvg(q=2.0, rule="exact"),
    FedCI(truncation=0.01),
    ECI(truncation=0.01),
    FedSAC(standalone_rounds=1, beta=2.0, importance_interval=1, aggregation="share"),
    FedSAC(standalone_rounds=2, beta=20.0, importance="equal", aggregation="plain"),
    CGSV(contribution="exact"),
    CGSV(reward="global"),
    CGSV(alpha=0.5, beta=3.0, gamma=0.5, floor=0.0, mask="per_tensor"),
    RFFL(coef=0.9, warmup=1),
    RFFL(gamma=0.5, coef=0.9, warmup=0, boost=False, keep_own=True, mask="per_tensor"),
    DataWeighted(ratio="share"),
    RoundRobin(turns="one"),
    CYCle(warmup=0, R=2),
    CYCle(warmup=1, R=1, alpha=0.0, kl="peer_own"),
    VPDL(warmup=0),
]
EVERY = [entry.method(**SOONER.get(name, {})) for name, entry in METHODS.items()] + VARIANTS
every_method = pytest.mark.parametrize(
    "method", EVERY, ids=lambda method: " ".join([type(method).__name__, *map(str, asdict(method).values())])
)


# Every method


@every_method
@pytest.mark.parametrize("absences", [False, True])
@pytest.mark.parametrize(("n", "d"), [(1, 1), (2, 1), (3, 12), (6, 40)])
def test_weights_sum_to_one_and_shapes_are_those_of_the_contract(method, absences, n, d):
    rounds = make_rounds(n=n, d=d, absences=absences)
    for reports, outcome in play(method, rounds):
        assert outcome.weights.sum().item() == pytest.approx(1, abs=1e-12)
        assert (outcome.weights >= 0).all()
        assert (outcome.weights[~reports.present] == 0).all()
        assert outcome.models.shape in ((d,), (n, d))
        assert outcome.models.isfinite().all()
        assert outcome.models.dtype == torch.float32
        for name in ("contribution", "reputation", "weights"):
            assert getattr(outcome, name).shape == (n,)
        assert outcome.reputation.isfinite().all()
        for value in outcome.quantities.values():
            assert value.shape == (n,)
        for value in outcome.pairs.values():
            assert value.shape == (n, n)


@every_method
def test_absent_sites_have_no_contribution(method):
    for reports, outcome in play(method, make_rounds(absences=True)):
        assert outcome.contribution[~reports.present].isnan().all()


@every_method
def test_what_sites_report_is_what_the_method_asks_within_its_range(method):
    rounds = make_rounds()
    for number, (reports, _) in enumerate(play(method, rounds)):
        assert set(reports.values) == set(method.asks)
        for name, values in reports.values.items():
            low, high = allowed(name)
            assert (values.isnan() | ((values >= low) & (values <= high))).all()
            assert number == 0 or values.isfinite().all()


@every_method
@pytest.mark.parametrize("absences", [False, True])
def test_the_order_of_sites_does_not_matter(method, absences):
    if isinstance(method, RoundRobin):
        pytest.skip("turns are taken in the order of the sites: the later one downloads more")
    rounds = make_rounds(absences=absences)
    order = torch.tensor([2, 0, 3, 1])
    for ours, theirs in zip(outcomes(method, rounds), outcomes(method, rounds.of_sites(order)), strict=True):
        assert_same({name: value[order] for name, value in columns(ours).items()}, columns(theirs), atol=1e-6)
        assert_same({name: value[order][:, order] for name, value in ours.pairs.items()}, theirs.pairs, atol=1e-6)
        assert torch.allclose(ours.weights[order], theirs.weights, rtol=0, atol=1e-9)
        if ours.models.ndim == 1:
            assert torch.allclose(ours.models, theirs.models, rtol=0, atol=1e-5)


@every_method
def test_identical_sites_are_treated_alike(method):
    if isinstance(method, RoundRobin):
        pytest.skip("turns are taken in the order of the sites: the later one downloads more")
    rounds = make_rounds().of_sites(torch.tensor([0, 1, 1, 2]))
    for outcome in outcomes(method, rounds):
        for name, value in columns(outcome).items():
            assert torch.allclose(value[1], value[2], rtol=0, atol=1e-9, equal_nan=True), name


@every_method
@pytest.mark.parametrize(("n", "d"), [(2, 1), (3, 12), (4, 3000)])
def test_if_all_sites_are_identical_nobody_gains(method, n, d):
    """Also where they trained on unequal numbers of images, once contributions count: rounding is no contribution."""
    rounds = make_rounds(n=1, d=d).of_sites(torch.zeros(n, dtype=torch.long))
    for outcome in outcomes(method, rounds):
        assert torch.allclose(outcome.weights, torch.full((n,), 1 / n, dtype=torch.float64), rtol=0, atol=1e-9)
    if isinstance(method, FedCE):
        unequal = Rounds(torch.arange(1.0, n + 1).double(), rounds.updates, rounds.present, rounds.centres)
        for outcome in outcomes(method, unequal)[1:]:
            assert torch.allclose(outcome.weights, torch.full((n,), 1 / n, dtype=torch.float64), rtol=0, atol=1e-4)


@every_method
def test_a_round_changes_none_of_its_inputs(method):
    rounds = make_rounds(absences=True)
    states = []
    for number, (reports, _) in enumerate(play(method, rounds, states)):
        if not number:
            continue
        state, updates = states[number - 1], rounds.updates[number]
        given = {
            **vars(state),
            **reports.values,
            **reports.pairs,
            "n": reports.num_samples,
            "p": reports.present,
            "u": updates,
        }
        kept = {name: value.clone() for name, value in given.items()}
        method.round(state, updates, reports)
        assert_same(given, kept)
    model = torch.ones(3)
    state, updates = method.start(model, 2, Layout.of(len(model))), torch.ones(2, 3)
    pairs = said_of_peers(method, state, updates, torch.ones(2).bool(), torch.ones(2).bool())
    reports = Reports(torch.ones(2), torch.tensor([True, True]), reports_of(method, 2), pairs=pairs)
    candidates = make_rounds(n=2, d=3).evaluate(method.candidates(state, updates, reports))
    method.round(state, updates, replace(reports, candidates=candidates))
    assert model.tolist() == [1, 1, 1]
    assert (updates == 1).all()


def assert_same_trials(ours, theirs):
    assert (ours is None) == (theirs is None)
    if ours is not None:
        assert ours.bins == theirs.bins
        assert all(torch.equal(getattr(ours, name), getattr(theirs, name)) for name in ("models", "mixtures", "shares"))


def reports_of(method, n):
    return {name: torch.full((n,), NAN, dtype=torch.float64) for name in method.asks}


@every_method
@pytest.mark.parametrize("absences", [False, True])
def test_a_saved_and_loaded_state_continues_bit_for_bit(method, absences):
    rounds, states = make_rounds(absences=absences), []
    for number, (reports, outcome) in enumerate(play(method, rounds, states)):
        before = (
            states[number - 1]
            if number
            else method.start(torch.zeros(rounds.updates.shape[2]), 4, layout(rounds.updates.shape[2]))
        )
        file = io.BytesIO()
        torch.save(vars(before), file)
        file.seek(0)
        loaded = type(before)(**torch.load(file, weights_only=True))
        state, again = method.round(loaded, rounds.updates[number], reports)
        assert_same(columns(again), columns(outcome))
        assert torch.equal(again.models, outcome.models)
        state, _ = allocated(method, state, again.models)
        assert_same(vars(state), vars(states[number]))


@every_method
def test_what_an_absent_site_says_does_not_matter(method):
    """A row that is not present may hold anything: zero, NaN, the numbers of a rejected reply."""
    rounds, states = make_rounds(absences=True), []
    for number, (reports, outcome) in enumerate(play(method, rounds, states)):
        if not number or reports.present.all():
            continue
        for junk in (0.0, NAN, math.inf, -1e30, 0.5):
            values = {name: value.where(reports.present, junk) for name, value in reports.values.items()}
            samples = reports.num_samples.where(reports.present, junk)
            pairs = {name: value.where(reports.present[:, None], junk) for name, value in reports.pairs.items()}
            spoilt = replace(reports, num_samples=samples, values=values, pairs=pairs)
            candidates = method.candidates(states[number - 1], rounds.updates[number], spoilt)
            assert_same_trials(candidates, method.candidates(states[number - 1], rounds.updates[number], reports))
            _, again = method.round(states[number - 1], rounds.updates[number], spoilt)
            present = {name: value[reports.present] for name, value in columns(outcome).items()}
            assert_same({n: v[reports.present] for n, v in columns(again).items()}, present)
            assert (again.weights[~reports.present] == 0).all()
            assert torch.equal(again.models, outcome.models)


@every_method
def test_a_site_that_never_comes_leaves_the_run_as_it_is_without_it(method):
    rounds = make_rounds(n=5)
    here = torch.tensor([True, True, False, True, True])
    absent = Rounds(rounds.samples, rounds.updates * here[:, None], rounds.present & here, rounds.centres)
    without = rounds.of_sites(here.nonzero().flatten())
    for ours, theirs in zip(outcomes(method, absent), outcomes(method, without), strict=True):
        assert ours.weights[2] == 0
        assert_same({name: value[here] for name, value in columns(ours).items()}, columns(theirs), atol=1e-6)
        if ours.models.ndim == 1:
            assert torch.allclose(ours.models, theirs.models, rtol=0, atol=1e-6)


@every_method
def test_one_site_alone(method):
    rounds = make_rounds(n=1)
    model = torch.zeros(rounds.updates.shape[2])
    for number, outcome in enumerate(outcomes(method, rounds)):
        model = model + rounds.updates[number, 0]
        assert outcome.weights.tolist() == [1]
        if method == type(method)():  # other parameters may scale, cut or prune its own update
            assert torch.allclose(outcome.models, model, atol=1e-6)


@every_method
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30])
def test_updates_of_any_size_give_finite_results(method, scale):
    rounds = make_rounds()
    rounds = Rounds(rounds.samples, rounds.updates * scale, rounds.present, rounds.centres)
    for number, (reports, outcome) in enumerate(play(method, rounds)):
        assert outcome.models.isfinite().all()
        assert outcome.weights.isfinite().all()
        assert outcome.weights.sum().item() == pytest.approx(1, abs=1e-12)
        assert outcome.reputation.isfinite().all()
        if number:
            assert outcome.contribution.isfinite().all()
            assert all(value.isfinite().all() for value in reports.values.values())


@every_method
def test_one_huge_update_among_ordinary_ones_is_finite(method):
    rounds = make_rounds()
    rounds.updates[1, 0] *= 1e30
    for outcome in outcomes(method, rounds):
        assert outcome.models.isfinite().all()
        assert outcome.weights.isfinite().all()
