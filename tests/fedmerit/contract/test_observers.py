"""Observers beside literal models: multi-round and one-round reconstruction, local-only models, leave-one-out."""

from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest
import torch
from observing import SAMPLES, models_of, some_rounds, view_of

from fedmerit import plugins
from fedmerit.contract.observers import OBSERVERS, LocalOnly, MultiRoundReconstruction, RoundView
from fedmerit.schema.configuration.requirements import parse_observer
from fedmerit.schema.configuration.run import find_external_parts
from fedmerit_lab.valuation.observers import LeaveOneOutLoss, OneRoundReconstruction


@pytest.mark.parametrize(("every", "expected"), [(1, [0, 1, 2, 3, 4]), (2, [0, 2, 4]), (3, [1, 4]), (0, [4])])
def test_every_so_many_rounds_are_observed_and_the_last_one_always(every, expected):
    observed = [view.round for view in some_rounds(5) if MultiRoundReconstruction(every=every).observe({}, view)[1]]
    assert observed == expected


def test_mixtures_of_those_present_are_the_model_and_their_mean_update_by_images():
    (view,) = some_rounds(1, absent={(0, 1)})
    _, observation = MultiRoundReconstruction().observe({}, view)
    assert len(observation.coalitions) == 8
    assert not observation.coalitions[:, 1].any()
    for model, members in zip(models_of(observation), observation.coalitions.tolist(), strict=True):
        chosen = [site for site in range(4) if members[site]]
        total = sum(SAMPLES[site] for site in chosen)
        expected = view.began + sum(SAMPLES[site] / total * view.updates[site] for site in chosen)
        torch.testing.assert_close(model, expected)


def test_no_more_models_are_evaluated_than_a_site_was_sent():
    assert [MultiRoundReconstruction().most_models(sites) for sites in (3, 8, 9, 31)] == [8, 256, 256, 256]
    assert MultiRoundReconstruction(most=10).most_models(3) == 8
    (view,) = some_rounds(1)
    _, observation = MultiRoundReconstruction(most=10).observe({}, view)
    assert (
        len(observation.coalitions)
        == len(models_of(observation))
        == MultiRoundReconstruction(most=10).most_models(4)
        == 10
    )
    drawn = {tuple(row) for row in observation.coalitions.tolist()}
    assert {tuple(not one for one in row) for row in drawn} == drawn  # with each, its complement


def test_carried_models_follow_their_members_only_round_by_round():
    """Literally w_S <- w_S + Σ_{i in S} n_i/n_S Δ_i, an update that did not come being zero."""
    views = list(some_rounds(3, absent={(1, 2)}))
    observer = OneRoundReconstruction()
    state = observer.start(views[0].began, 4)
    for view in views:
        state, observation = observer.observe(state, view)
        assert (observation is None) == (view.round < 2)
    assert len(observation.coalitions) == 16
    for model, members in zip(models_of(observation), observation.coalitions.tolist(), strict=True):
        chosen = [site for site in range(4) if members[site]]
        expected = views[0].began
        for view in views:
            for site in chosen:
                expected = expected + SAMPLES[site] / sum(SAMPLES[one] for one in chosen) * view.updates[site]
        torch.testing.assert_close(model, expected)
    whole = models_of(observation)[observation.coalitions.all(dim=1)][0]
    assert not torch.allclose(whole, views[-1].ended)  # a site was away: the run shared its part among the others
    everyone = list(some_rounds(3))
    state = observer.start(everyone[0].began, 4)
    for view in everyone:
        state, observation = observer.observe(state, view)
    torch.testing.assert_close(models_of(observation)[-1], everyone[-1].ended)


def test_statistics_are_of_members_that_are_here_and_of_nobody_where_none_is():
    """Of 30, 50, 20 and 40 images; the second site was here in round 0 only."""
    observer, views = OneRoundReconstruction(), list(some_rounds(2, absent={(1, 1)}))
    state = observer.start(views[0].began, 4)
    for view in views:
        state, observation = observer.observe(state, view)
    shares = {
        tuple(members): pytest.approx(row.tolist())
        for members, row in zip(observation.coalitions.tolist(), observation.candidates.shares, strict=True)
    }
    assert shares[True, True, True, False] == [0.6, 0, 0.4, 0]
    assert shares[False, True, False, True] == [0, 0, 0, 1]
    assert shares[False, True, False, False] == [0, 0, 0, 0]


def test_who_never_came_is_in_no_coalition_and_of_many_sites_some_are_drawn():
    absent = {(number, 0) for number in range(2)}
    for most, expected in ((256, 8), (8, 8)):
        observer, views = OneRoundReconstruction(most=most), list(some_rounds(2, absent=absent))
        state = observer.start(views[0].began, 4)
        for view in views:
            state, observation = observer.observe(state, view)
        assert len(observation.coalitions) == expected
        assert not observation.coalitions[:, 0].any()
    assert [OneRoundReconstruction().most_models(sites) for sites in (3, 8, 9, 31)] == [8, 256, 256, 256]


def lone(views):
    """The views as of sites that have a model each."""
    models = torch.arange(28, dtype=torch.float64).reshape(4, 7)
    for view in views:
        began, models = models, models + view.updates
        yield RoundView(view.round, view.rounds, began, models, view.updates, view.weights, view.reports)


def test_each_sites_model_is_evaluated_once_in_the_end_with_its_own_statistics():
    views = list(lone(some_rounds(3, absent={(2, 1)})))
    seen = [LocalOnly().observe({}, view)[1] for view in views]
    assert seen[:2] == [None, None]
    torch.testing.assert_close(models_of(seen[2]), views[2].ended)
    assert torch.equal(seen[2].coalitions, torch.eye(4, dtype=torch.bool))
    here = torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    assert torch.equal(seen[2].candidates.shares, torch.diag(here))
    assert torch.equal(seen[2].candidates.received, torch.eye(4, dtype=torch.float64))  # of sites that trained nothing


def test_a_site_evaluates_one_model_of_each():
    assert [LocalOnly().most_models(sites) for sites in (1, 6, 100)] == [1, 6, 100]
    assert [view.round for view in lone(some_rounds(5)) if LocalOnly(every=2).observe({}, view)[1]] == [0, 2, 4]


def test_the_model_without_a_site_is_the_mean_of_the_others_by_their_weights():
    (view,) = some_rounds(1)
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    view = view_of(view.began, view.updates, SAMPLES, weights=weights)
    _, observation = LeaveOneOutLoss().observe({}, view)
    for left_out, model in enumerate(models_of(observation)[:-1]):
        rest = [site for site in range(4) if site != left_out]
        trained = sum(weights[site] * (view.began + view.updates[site]) for site in rest)
        torch.testing.assert_close(model, trained / (1 - weights[left_out]))
        assert observation.coalitions[left_out].tolist() == [site != left_out for site in range(4)]
    torch.testing.assert_close(models_of(observation)[-1], view.ended)


def test_what_else_a_server_does_is_in_neither_model():
    """As the step of FedAdam: what that adds to the mean would be multiplied in the model without a site."""
    (view,) = some_rounds(1)
    _, plain = LeaveOneOutLoss().observe({}, view)
    _, stepped = LeaveOneOutLoss().observe({}, replace(view, ended=view.ended + 5))
    torch.testing.assert_close(models_of(stepped), models_of(plain))


def test_nothing_is_without_a_site_that_has_all_the_weight():
    (view,) = some_rounds(1)
    view = view_of(view.began, view.updates, SAMPLES, weights=[1.0, 0, 0, 0])
    _, observation = LeaveOneOutLoss().observe({}, view)
    assert [row.tolist().index(False) if not row.all() else None for row in observation.coalitions] == [1, 2, 3, None]
    assert observation.candidates.mixtures.isfinite().all()


def test_an_absent_site_is_in_no_model_and_none_is_without_it():
    """Of 30, 20 and 40 images: without the first, shares of 20 and 40 in 60."""
    (view,) = some_rounds(1, absent={(0, 1)})
    _, observation = LeaveOneOutLoss().observe({}, view)
    assert observation.coalitions.tolist() == [
        [False, False, True, True],
        [True, False, False, True],
        [True, False, True, False],
        [True, False, True, True],
    ]
    expected = view.began + (20 * view.updates[2] + 40 * view.updates[3]) / 60
    torch.testing.assert_close(models_of(observation)[0], expected)
    assert observation.candidates.shares[0].tolist() == [0, 0, 20 / 60, 40 / 60]
    assert LeaveOneOutLoss().most_models(4) == 5


@pytest.fixture
def installed(monkeypatch):
    """An observer of another package, called mine, beside ours: what is ours is looked up once a process."""
    entry = EntryPoint("mine", "fedmerit.contract.observers:MultiRoundReconstruction", "fedmerit.observers")
    every = [*plugins.entry_points(group=entry.group), entry]
    monkeypatch.setattr(
        plugins, "entry_points", lambda group, name=None: [
            one for one in every if one.group == group and name in (None, one.name)
        ],
    )  # fmt: skip


def test_packages_bring_observers(installed):
    assert type(parse_observer("mine:every=2")) is MultiRoundReconstruction
    assert list(OBSERVERS) == [*OBSERVERS.ours, "mine"]
    assert find_external_parts({"method": "fedavg", "values": ["multi_round:every=1", "mine:every=2"]}) == [
        ("observers", "mine")
    ]
