"""A site's training of one round: as every site trains, or as the method has it."""

from dataclasses import replace

import pytest
import torch
from pretending import tiny_plan

from fedmerit import flat
from fedmerit.federation.local_round import LocalRound
from fedmerit.seeds import random_seed
from fedmerit.training.data import SiteFolder
from fedmerit.training.learning import learning_rate, train
from fedmerit.training.networks import initial_network
from fedmerit.training.neurons import count, owners
from fedmerit.training.patches import samples_of
from fedmerit.vectors import owned
from fedmerit.wire.messages import Task

QUICK = {"augment": False, "statistics": "mean"}


@pytest.fixture(scope="module")
def samples(sites):
    return samples_of(SiteFolder(sites / "site1").cases("training"), ())


def local(samples, method="fedavg", round=1, name="site1", **parameters):
    config = tiny_plan(method, **QUICK | parameters)
    network = initial_network(config.network, 0)
    task = Task(round, flat.get_parameters(network), flat.get_buffers(network))
    made = config.build_method()
    return LocalRound(config, made, network, samples, torch.device("cpu"), name, lambda network: 0.5, task)


def test_what_is_learned_is_one_training_from_the_model_received(samples):
    here = local(samples)
    received = here.task.parameters
    learned = here.learn(received, None)
    network = initial_network(here.config.network, 0)
    flat.load(network, received, here.task.buffers)
    rate = learning_rate(here.config.training, 1, here.config.rounds)
    loss = train(network, samples, here.config.training, rate, random_seed(0, "site1", 1))
    assert torch.equal(learned.trained, flat.get_parameters(network))
    assert torch.equal(learned.update, learned.trained - received)
    assert (learned.loss, learned.own, learned.vectors) == (loss, None, {})
    assert all(torch.equal(value, learned.buffers[name]) for name, value in flat.get_buffers(network).items())


def test_a_round_repeats_and_another_site_or_round_draws_other_numbers(samples):
    one = local(samples).learn(local(samples).task.parameters, None)
    again = local(samples)
    flat.load(again.network, torch.zeros_like(again.task.parameters), again.task.buffers)  # of no account
    assert torch.equal(again.learn(again.task.parameters, None).trained, one.trained)
    for other in (local(samples, name="site2"), local(samples, round=2)):
        assert not torch.equal(other.learn(other.task.parameters, None).trained, one.trained)


def test_neurons_that_a_site_does_not_hold_stay_zero(samples):
    here = local(samples, "fedsac")
    neurons = torch.arange(count(here.network)) % 2 == 0
    held = owned(neurons, owners(here.network))
    received = here.task.parameters.where(held, 0.0)
    learned = replace(here, task=replace(here.task, neurons=neurons)).learn(received, None)
    assert not learned.trained[~held].any()
    assert bool((learned.trained != received)[held].any())


def test_a_method_may_train_its_own_way(samples):
    """FedProx with a strong μ stays nearer to what it received."""
    plain = local(samples).learn(local(samples).task.parameters, None)
    held = local(samples, "fedprox", mu=100.0)
    learned = held.learn(held.task.parameters, None)
    assert float(learned.update.norm()) < 0.5 * float(plain.update.norm())
    free = local(samples, "fedprox", mu=0.0)
    assert torch.equal(free.learn(free.task.parameters, None).trained, plain.trained)


def test_a_second_model_stays_beside_what_is_sent(samples):
    here = local(samples, "ditto")
    learned = here.learn(here.task.parameters, None)
    plain = local(samples).learn(here.task.parameters, None)
    assert torch.equal(learned.trained, plain.trained)  # what is sent is FedAvg's
    model, statistics = learned.own
    assert not torch.equal(model, learned.trained)
    assert statistics.keys() == learned.buffers.keys()
