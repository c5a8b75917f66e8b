"""The models that observers have evaluated, beside literal ones; which rounds they observe; what others bring."""

from importlib.metadata import EntryPoint

import pytest
import torch
from observing import view_of

from fedmerit import plugins
from fedmerit.configuration.named_parts import parts_of_others
from fedmerit.configuration.observation import parse
from fedmerit.errors import BadInput
from fedmerit.games import coalitions_to_evaluate
from fedmerit.values.carried import Carried
from fedmerit.values.in_run import InRun
from fedmerit.values.observers import OBSERVERS, OWN
from fedmerit.values.others_lose import OthersLose

SAMPLES = (30.0, 50.0, 20.0, 40.0)


def rounds(count, absent=(), seed=0, n=4, d=7):
    """Rounds that follow from each other; ``absent`` names (round, site)."""
    generator = torch.Generator().manual_seed(seed)
    began = torch.randn(d, generator=generator, dtype=torch.float64)
    for number in range(count):
        present = [(number, site) not in absent for site in range(n)]
        updates = torch.randn(n, d, generator=generator, dtype=torch.float64) * torch.tensor(present)[:, None]
        view = view_of(began, updates, SAMPLES[:n], round=number, rounds=count, present=present)
        yield view
        began = view.ended


def models(observation):
    return observation.candidates.mixtures @ observation.candidates.models


def test_mixtures_of_those_present_are_the_model_and_their_mean_update_by_images():
    (view,) = rounds(1, absent={(0, 1)})
    _, observation = InRun().observe({}, view)
    assert len(observation.coalitions) == 8
    assert not observation.coalitions[:, 1].any()
    for model, members in zip(models(observation), observation.coalitions.tolist(), strict=True):
        chosen = [site for site in range(4) if members[site]]
        total = sum(SAMPLES[site] for site in chosen)
        expected = view.began + sum(SAMPLES[site] / total * view.updates[site] for site in chosen)
        torch.testing.assert_close(model, expected)


def test_carried_models_follow_their_members_alone_round_by_round():
    """Literally w_S <- w_S + Σ_{i in S} n_i/n_S Δ_i, an update that did not come being zero."""
    views = list(rounds(3, absent={(1, 2)}))
    observer = Carried()
    state = observer.start(views[0].began, 4)
    for view in views:
        state, observation = observer.observe(state, view)
        assert (observation is None) == (view.round < 2)
    assert len(observation.coalitions) == 16
    for model, members in zip(models(observation), observation.coalitions.tolist(), strict=True):
        chosen = [site for site in range(4) if members[site]]
        expected = views[0].began
        for view in views:
            for site in chosen:
                expected = expected + SAMPLES[site] / sum(SAMPLES[one] for one in chosen) * view.updates[site]
        torch.testing.assert_close(model, expected)
    whole = models(observation)[observation.coalitions.all(dim=1)][0]
    assert not torch.allclose(whole, views[-1].ended)  # a site was away: the run shared its part among the others
    everyone = list(rounds(3))
    state = observer.start(everyone[0].began, 4)
    for view in everyone:
        state, observation = observer.observe(state, view)
    torch.testing.assert_close(models(observation)[-1], everyone[-1].ended)


def test_the_model_without_a_site_is_the_mean_of_the_others_by_their_weights():
    (view,) = rounds(1)
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    view = view_of(view.began, view.updates, SAMPLES, weights=weights)
    _, observation = OthersLose().observe({}, view)
    for left_out, model in enumerate(models(observation)[:-1]):
        rest = [site for site in range(4) if site != left_out]
        trained = sum(weights[site] * (view.began + view.updates[site]) for site in rest)
        torch.testing.assert_close(model, trained / (1 - weights[left_out]))
        assert observation.coalitions[left_out].tolist() == [site != left_out for site in range(4)]
    torch.testing.assert_close(models(observation)[-1], view.ended)


def test_nothing_is_without_a_site_that_has_all_the_weight():
    (view,) = rounds(1)
    view = view_of(view.began, view.updates, SAMPLES, weights=[1.0, 0, 0, 0])
    _, observation = OthersLose().observe({}, view)
    assert [row.tolist().index(False) if not row.all() else None for row in observation.coalitions] == [1, 2, 3, None]
    assert observation.candidates.mixtures.isfinite().all()


@pytest.mark.parametrize(("every", "expected"), [(1, [0, 1, 2, 3, 4]), (2, [0, 2, 4]), (3, [1, 4]), (0, [4])])
def test_every_so_many_rounds_are_observed_and_the_last_one_always(every, expected):
    observed = [view.round for view in rounds(5) if InRun(every=every).observe({}, view)[1]]
    assert observed == expected


def test_of_many_sites_as_many_coalitions_are_drawn_in_pairs():
    drawn = coalitions_to_evaluate(12, 60, 3)
    rows = {tuple(row) for row in drawn.tolist()}
    assert len(rows) == len(drawn) == 60
    assert {tuple(1 - value for value in row) for row in rows} == rows  # with each, its complement
    assert torch.equal(drawn, coalitions_to_evaluate(12, 60, 3))
    assert not torch.equal(drawn, coalitions_to_evaluate(12, 60, 4))
    sizes = torch.bincount(drawn.sum(dim=1), minlength=13)
    assert sizes[1] == sizes[11] == 12  # all of them, before any other is drawn
    many = torch.cat([coalitions_to_evaluate(12, 60, seed) for seed in range(40)]).sum(dim=1)
    counts = torch.bincount(many, minlength=13).double()
    assert float(counts[2] / counts[6]) == pytest.approx(36 / 20, rel=0.3)  # by the kernel, 1 / (s (n - s))


@pytest.fixture
def installed(monkeypatch):
    """An observer of another package, called mine."""
    entry = EntryPoint("mine", "fedmerit.values.in_run:InRun", "fedmerit.observers")
    monkeypatch.setattr(plugins, "entry_points", lambda group, **_: [entry] if group == entry.group else [])


def test_packages_bring_observers(installed):
    assert type(parse("mine:every=2")) is InRun
    assert list(OBSERVERS) == [*OWN, "mine"]
    assert parts_of_others({"method": "fedavg", "values": ["in_run:every=1", "mine:every=2"]}) == [
        ("observers", "mine")
    ]


def test_a_deployed_machine_imports_no_observer_that_is_not_approved(installed, monkeypatch):
    monkeypatch.setenv(plugins.APPROVED, "{}")
    monkeypatch.setattr(OBSERVERS, "_loaded", {})
    monkeypatch.setattr(plugins.importlib, "import_module", lambda name: pytest.fail(f"imported {name}"))
    with pytest.raises(BadInput, match=r"'mine': fedmerit.values.in_run:InRun .* is not installed from a wheel"):
        parse("mine")
    assert parse("others_lose:every=3").every == 3
