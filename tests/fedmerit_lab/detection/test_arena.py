"""The arena: its trainings are real, its scenarios and attacks what they say, its federations the product's."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from one_in import one_in

from fedmerit_lab.detection import small_trainings
from fedmerit_lab.detection.arena import Case, Federation, play
from fedmerit_lab.detection.scenarios import ATTACKS, SCENARIOS, attacked
from fedmerit_lab.detection.small_trainings import Recipe, accuracies, generate_sites, initial_model, logits, train

USUAL = SCENARIOS["usual"]


def test_updates_are_those_of_automatic_differentiation():
    random = np.random.default_rng(0)
    sites, start = generate_sites([9, 5], 1.0, random), initial_model(random)
    sites[1] = replace(sites[1], batch_size=3)
    found = train(start.expand(2, -1), sites, Recipe(steps=2, lr=0.1), [np.random.default_rng(row) for row in (1, 2)])
    for row, site in enumerate(sites):
        model = start.clone()
        picks = np.random.default_rng(row + 1).integers(site.count, size=(2, site.batch_size))
        for chosen in picks:
            model.requires_grad_()
            made = logits(model[None], torch.from_numpy(site.images[chosen]))[0]
            loss = torch.nn.functional.cross_entropy(made, torch.from_numpy(site.labels[chosen]))
            model = (model - 0.1 * torch.autograd.grad(loss, model)[0]).detach()
        assert torch.allclose(found[row], model - start, atol=1e-5)


def test_a_federation_learns_and_is_the_same_again():
    case = Case("fedavg", 3, USUAL, rounds=6)
    federation, again = Federation(case), play(case)
    before = float(accuracies(federation.models[None], federation.data).mean())
    assert float(again.accuracy.mean()) > before + 0.2
    assert torch.equal(again.accuracy, play(case).accuracy)
    assert not again.verdicts.any()


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_changes_one_site_or_all(name):
    usual, other = (Federation(Case("fedavg", 3, scenario)) for scenario in (USUAL, SCENARIOS[name]))
    same = [
        np.array_equal(one.images, another.images)
        and np.array_equal(one.labels, another.labels)
        and one.batch_size == another.batch_size
        for one, another in zip(usual.data, other.data, strict=True)
    ]
    scenario = SCENARIOS[name]
    trained_otherwise = scenario.adam or scenario.absent or scenario.away or scenario.joins or scenario.filter_noise
    twins = [[False, False, True]] if scenario.twins else [[False, True, True], [False] * 3]
    assert same in ([[True] * 3] if trained_otherwise or name == "usual" else twins)
    assert name == "usual" or scenario != USUAL
    assert scenario.card


@pytest.mark.parametrize("name", one_in(8, ATTACKS))
def test_an_attack_is_followed_by_the_last_only_sites(name):
    attack = ATTACKS[name]
    federation = Federation(Case("fedavg", 5, attack, rounds=20))
    for number in range(3):
        federation.play(number)
    sent = federation.last.updates
    assert torch.equal(sent[: 5 - attack.attackers], federation.own[-1][: 5 - attack.attackers])
    assert attack.card
    honest = Federation(Case("fedavg", 5, USUAL))
    changed = not torch.equal(sent[-1], federation.own[-1][-1])
    others = any(
        not np.array_equal(one.labels, two.labels) for one, two in zip(federation.data, honest.data, strict=True)
    )
    for number in range(3):
        honest.play(number)
    trains = any(not torch.equal(one[-1], two[-1]) for one, two in zip(federation.own, honest.own, strict=True))
    lies = not torch.equal(federation.claims, honest.claims)
    begins = ("trains one round in two", "zero update, every other round", "honest 8 rounds, then forecast")
    assert changed or trains or others or lies or name in begins


@pytest.mark.parametrize("name", [name for name, scenario in ATTACKS.items() if scenario.work])
def test_work_of_an_attacker_is_as_long_as_its_honest_update_and_another(name):
    attack = ATTACKS[name]
    updates = []
    for scenario in (attack, USUAL):
        federation = Federation(Case("fedavg", 4, scenario))
        federation.play(0)
        updates.append(federation.last.updates[-1].double())
    assert float(updates[0].norm()) == pytest.approx(attack.work.length * float(updates[1].norm()), rel=1e-5)
    assert torch.cosine_similarity(*updates, dim=0) < 0.99


@pytest.mark.parametrize(
    "spec", ["reweighted", "forecast", "low-rank", "extrapolated", "rescaled", "forecast:noise=0.5"]
)
def test_a_forecaster_sends_functions_of_steps_as_long_as_an_honest_update(spec):
    federation = Federation(Case("fedavg", 4, attacked("forecasts", spec), rounds=20))
    for _ in range(5):
        federation.play(_)
        sent, honest = federation.last.updates[-1].double(), federation.own[-1][-1].double()
        assert 0.99 < float(sent.norm() / honest.norm()) < 1.2
        assert not torch.equal(sent, honest)
    again = Federation(Case("fedavg", 4, attacked("forecasts", spec), rounds=20))
    for _ in range(5):
        again.play(_)
    assert torch.equal(again.last.updates[-1].double(), sent)


def test_the_servers_images_rate_candidates_in_the_place_of_the_sites():
    federation = Federation(Case("innovation", 4, USUAL, server_images=50))
    outcome = federation.play(0)
    assert federation.state.patients.tolist() == [50]
    assert outcome.quantities["innovation"].isfinite().all()
    committee = Federation(Case("innovation", 4, USUAL))
    committee.play(0)
    assert committee.state.patients.tolist() == [40] * 4


@pytest.mark.parametrize("method", ["fedce", "cgsv", "cffl", "fedci", "qfedavg"])
def test_methods_of_every_kind_play(method):
    played = play(Case(method, 4, ATTACKS["zero update"], rounds=4))
    assert played.verdicts[-1].tolist() == [False] * 3 + [True]
    assert played.weights[-1].sum().item() == pytest.approx(1)
    assert played.weights[-1][-1] == 0


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["noise of an honest norm", "knows the rules", "last step and noise, cosine .83"])
def test_free_riders_whose_updates_look_like_work_are_detected(attack):
    played = play(Case("fedavg", 6, ATTACKS[attack], rounds=30))
    assert played.verdicts[-1].tolist() == [False] * 5 + [True]


def test_an_attack_by_its_spec_is_the_products():
    case = Case("fedavg", 3, attacked("", "scaled:by=2"), rounds=2)
    federation = Federation(case)
    federation.play(0)
    assert torch.equal(federation.last.updates[2], 2 * federation.own[0][2])
    assert len(federation.own[0][2]) == small_trainings.SIZE
    assert len(Case("fedavg", 3, USUAL).attackers) == 0
