"""Sites that declare a privacy filter are not judged by their work, and forecasts are not paid as relation."""

from dataclasses import replace

import pytest
import torch

from fedmerit.contract.innovation import Broadcast, find_rests
from fedmerit.contract.method import Reports
from fedmerit.contract.vectors import gram
from fedmerit.guard.guard import Enrolled, Guard
from fedmerit.guard.history import History
from fedmerit.methods.cgsv import CGSV, GuardedCGSV
from fedmerit.methods.fedce import FedCE, GuardedFedCE
from fedmerit.schema.configuration.settings import GuardSettings

n, d = 5, 3000


def rounds(count, noise=0.0, zero=False):
    """Updates (count, n, d) that share a part each round; the last site's hide under ``noise`` of their length."""
    random = torch.Generator().manual_seed(4)
    shared = torch.randn(count, 1, d, generator=random)
    updates = shared + torch.randn(count, n, d, generator=random)
    added = torch.randn(count, d, generator=random)
    updates[:, -1] += noise * added * (updates[:, -1].norm(dim=1) / added.norm(dim=1))[:, None]
    if zero:
        updates[:, -1] = 0.0
    return 0.01 * updates


def verdicts(updates, filtered):
    enrolled = replace(Enrolled.nothing(n), filtered=torch.tensor([False] * (n - 1) + [filtered]))
    guard, history = Guard(GuardSettings("on"), enrolled, rounds=len(updates)), History.empty(n)
    found = torch.zeros(n, dtype=torch.bool)
    for sent in updates:
        reports = Reports(torch.full((n,), 50.0).double(), torch.ones(n, dtype=torch.bool))
        history, admission = guard.admit(history, sent, reports)
        found |= admission.quantities["verdict"] > 0
    return found.tolist(), admission


def test_admit_of_noise_by_a_site_that_declares_a_filter_gives_no_verdict():
    updates = rounds(20, noise=20.0)
    undeclared, _ = verdicts(updates, filtered=False)
    declared, admission = verdicts(updates, filtered=True)
    assert undeclared == [False] * (n - 1) + [True]
    assert declared == [False] * n
    assert admission.quantities["worked"].tolist() == [1.0] * n


def test_admit_of_zeros_by_a_site_that_declares_a_filter_still_gives_a_verdict():
    assert verdicts(rounds(10, zero=True), filtered=True)[0] == [False] * (n - 1) + [True]


def test_admit_measures_the_rests_of_updates_as_they_came():
    sizes, sent, models = (2000, 1000), rounds(3), torch.randn(4, d, generator=torch.Generator().manual_seed(1))
    guard = Guard(GuardSettings("on"), Enrolled.nothing(n), rounds=3, tensor_sizes=sizes)
    history, broadcast = History.empty(n), Broadcast.begin(models[0])
    for number in range(3):
        reports = Reports(torch.full((n,), 50.0).double(), torch.ones(n, dtype=torch.bool))
        history, admission = guard.admit(history, sent[number], reports, models=models[number])
        broadcast = broadcast if number == 0 else broadcast.after(models[number])
        assert torch.equal(admission.reports.rests, gram(find_rests(sent[number], broadcast, sizes)))
        history = History.restore(history.content())


def rests_of(counts, shared=()):
    """(n, n) rests for the method, of sites that hold 60 images each, ``counts`` of which count."""
    pairs = torch.zeros(n, n, dtype=torch.bool)
    for one, other in shared:
        pairs[one, other] = pairs[other, one] = True
    held = torch.full((n,), 60.0).double()
    enrolled = Enrolled(torch.tensor(counts).double(), torch.arange(n), pairs, held=held)
    guard = Guard(GuardSettings("on"), enrolled, rounds=2, tensor_sizes=(2000, 1000))
    history, sent = History.empty(n), rounds(2)
    for number in range(2):
        model = torch.randn(d, generator=torch.Generator().manual_seed(number))
        reports = Reports(held, torch.ones(n, dtype=torch.bool))
        history, admission = guard.admit(history, sent[number], reports, models=model)
    return admission.reports.rests


def test_admit_pays_cases_that_two_sites_hold_once_whatever_they_are_paid_by():
    factors = torch.tensor([0.7, 0.7, 1, 1, 1]).double()  # 36 of the first two sites' 60 images are those of the other
    shared = rests_of([42.0, 42.0, 60.0, 60.0, 60.0])
    torch.testing.assert_close(shared, rests_of([60.0] * n) * torch.outer(factors, factors))


def test_admit_pays_a_pair_that_shares_all_cases_as_one_site():
    separate, pair = rests_of([60.0] * n), rests_of([30.0, 30.0, 60.0, 60.0, 60.0], shared=[(0, 1)])
    mean = (separate[0, 0] + separate[1, 1] + 2 * separate[0, 1]) / 4  # of both updates
    assert pair[0, 0].item() == pytest.approx(mean.item())
    assert pair[1, 1] == 0


@pytest.mark.parametrize(("method", "kind"), [(CGSV(alpha=0.5), GuardedCGSV), (FedCE(combine="plus"), GuardedFedCE)])
def test_guarded_form_keeps_the_parameters_and_uses_rests(method, kind):
    guarded = method.guarded_form
    assert type(guarded) is kind
    assert guarded.uses_rests
    assert vars(guarded) == vars(method)


def made_reports(rest_of_last):
    """Equal relations of all updates; of the last site's nearly nothing is left without its forecast."""
    products = 0.5 * torch.ones(n, n).double() + 0.5 * torch.eye(n).double()
    factors = torch.tensor([1.0] * (n - 1) + [rest_of_last]).double()
    there = torch.ones(n, dtype=torch.bool)
    values = {name: torch.full((n,), torch.nan).double() for name in ("cosine", "minus_error")}
    return Reports(
        torch.ones(n).double(), there, values, products=products, rests=products * torch.outer(factors, factors)
    )


def test_guarded_cgsv_pays_a_forecast_by_what_is_left_of_it():
    method = CGSV().guarded_form
    state = method.start(torch.zeros(d), n, layout())
    _, outcome = method.round(state, rounds(1)[0], made_reports(0.05))
    whole, found = outcome.contribution[0], outcome.contribution[-1]
    assert float(found) < 0.05 * float(whole)
    _, plain = CGSV().round(state, rounds(1)[0], made_reports(0.05))
    assert plain.contribution[-1].item() == pytest.approx(plain.contribution[0].item())


def test_guarded_fedce_finds_no_novelty_in_a_forecast():
    method = FedCE(combine="cosine").guarded_form
    state = method.start(torch.zeros(d), n, layout())
    found = made_reports(0.05)
    known = replace(
        found, values={"cosine": torch.full((n,), 0.7).double(), "minus_error": torch.full((n,), 0.3).double()}
    )
    state, _ = method.round(state, rounds(1)[0], found)
    _, outcome = method.round(state, rounds(1)[0], known)
    assert float(outcome.contribution[-1]) < 0.1 * float(outcome.contribution[0])


def layout():
    from fedmerit.contract.method import Layout

    return Layout.of(2000, 1000)
