"""A site's work in one round: training as every site, with peers or by the method; its memory on disk."""

from dataclasses import replace
from unittest import TestCase

import pytest
import torch
from pretending import tiny_plan

from fedmerit.contract import flat
from fedmerit.contract.capabilities import LearnsFromPeers, LocalResult, PeerTerm, TrainsLocally, capabilities, towards
from fedmerit.contract.vectors import parameter_mask
from fedmerit.schema.messages import PeerModel, Task
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.seeds import random_seed
from fedmerit.trainers.factory import initial_network
from fedmerit.trainers.memory import Memory, MemoryFolder
from fedmerit.trainers.monai.local_round import LocalRound
from fedmerit.trainers.monai.local_training import learning_rate, train
from fedmerit.trainers.monai.neurons import count, owners
from fedmerit.trainers.monai.samples import build_samples

QUICK = {"augmentation": "none", "statistics": "mean"}


@pytest.fixture(scope="module")
def samples(sites):
    return build_samples(SiteFolder(sites / "site1").cases("training"), ())


def local(samples, method="fedavg", round=1, name="site1", **parameters):
    config = tiny_plan(method, **QUICK | parameters)
    network = initial_network(config.network, 0)
    task = Task(round, flat.get_parameters(network), flat.get_buffers(network))
    made = config.build_method()
    cpu, can = torch.device("cpu"), capabilities(made)
    return LocalRound(config, made, can, network, samples, cpu, name, lambda network: 0.5, task)


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
    held = parameter_mask(neurons, owners(here.network))
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


def trained_directly(here, start, buffers, **more):
    """What `train` makes of a model (d,): its parameters, statistics and loss."""
    network = initial_network(here.config.network, 0)
    flat.load(network, start, buffers)
    rate = learning_rate(here.config.training, here.task.round, here.config.rounds)
    seed = random_seed(0, "site1", here.task.round)
    loss = train(network, here.samples, here.config.training, rate, seed, **more)
    return flat.get_parameters(network), flat.get_buffers(network), loss


class Listens(LearnsFromPeers):
    """Keeps what it was shown, and has the logits drawn to 0."""

    def learn_from(self, view):
        self.view, self.training = view, view.network.training
        self.dice = {peer: view.validation_dice(peer) for peer in (None, "site2", "site3")}
        images = torch.zeros(1, 1, 32, 32)
        self.predicted = {peer: view.predict(peer, images) for peer in ("site2", "site3")}
        return PeerTerm(square_of_logits, {"misalignment": {"site2": 0.3}}, {"site2": 0.25})


def square_of_logits(images, logits):
    return logits.square().mean()


def test_peers_that_can_be_used_add_a_term_and_what_is_found_of_them_is_reported(samples):
    """Site2's model is all zeros, site3's lacks an entry; Dice of a network here: 0.5 where it is zeros, else 1."""
    here, method = local(samples), Listens()
    received, buffers = here.task.parameters, here.task.buffers
    zeros = torch.zeros_like(received)
    peers = {"site2": PeerModel(zeros, buffers, 0.5), "site3": PeerModel(zeros[1:], buffers, 0.75)}

    def dice(network):
        return 1.0 if flat.get_parameters(network).any() else 0.5

    listening = replace(
        here, method=method, can=capabilities(method), task=replace(here.task, peers=peers), validation_dice=dice
    )
    with TestCase().assertLogs("fedmerit.trainers.monai.local_round") as logged:
        learned = listening.learn(received, None)
    assert "round 1: site3 is not available: PeerModel.parameters: shape" in logged.output[0]
    assert (method.view.round, method.view.weights, method.training) == (1, {"site2": 0.5}, False)
    assert method.dice == {None: 1.0, "site2": 0.5, "site3": None}
    assert method.predicted["site3"] is None
    assert method.predicted["site2"].shape == (1, 1, 32, 32)
    assert learned.pairs == {"misalignment": {"site2": 0.3}, "available": {"site2": 1.0, "site3": 0.0}}
    assert learned.weights == {"site2": 0.25}
    parameters, statistics, loss = trained_directly(here, received, buffers, extra_loss=square_of_logits)
    assert torch.equal(learned.trained, parameters)
    assert learned.loss == loss
    assert all(torch.equal(value, learned.buffers[name]) for name, value in statistics.items())
    assert not torch.equal(parameters, trained_directly(here, received, buffers)[0])


def test_where_nobody_shares_a_site_trains_as_every_site(samples):
    here = local(samples)
    learned = replace(here, method=Listens(), can=capabilities(Listens())).learn(here.task.parameters, None)
    assert torch.equal(learned.trained, local(samples).learn(here.task.parameters, None).trained)
    assert (learned.pairs, learned.weights) == ({}, {})


class Twice(TrainsLocally):
    """Trains what it received with a shift, and its own with statistics of its own and a term."""

    def train(self, view):
        self.view = view
        self.shifted = view.train(view.received, shift=torch.full_like(view.received, 0.5))
        others = {name: value + 1 for name, value in view.buffers.items()}
        self.drawn = view.train(view.received - 1, others, penalty=towards(view.received, 2.0))
        return LocalResult(self.shifted, {"sent": view.received + 2}, {"kept": view.received + 3}, self.drawn)


def test_a_method_trains_with_what_it_asks_for_and_its_second_model_stays(samples):
    """15 images in batches of 4: 4 steps."""
    here, method = local(samples, optimizer="sgd", batch_size=4), Twice()
    received, buffers = here.task.parameters, here.task.buffers
    sent = replace(
        here, method=method, can=capabilities(method), task=replace(here.task, vectors={"control": received + 5})
    )
    memory = Memory(received, received, buffers, kept={"before": received + 6}, own=(received + 7, buffers))
    learned = sent.learn(received, memory)
    assert (method.view.vectors, method.view.kept, method.view.own) == (sent.task.vectors, memory.kept, memory.own)
    shifted = trained_directly(here, received, buffers, shift=torch.full_like(received, 0.5))
    others = {name: value + 1 for name, value in buffers.items()}
    drawn = trained_directly(here, received - 1, others, penalty=towards(received, 2.0))
    assert torch.equal(learned.trained, shifted[0])
    assert torch.equal(learned.update, shifted[0] - received)
    assert learned.loss == shifted[2]
    assert torch.equal(learned.own[0], drawn[0])
    for given, expected in ((learned.buffers, shifted[1]), (learned.own[1], drawn[1])):
        assert all(torch.equal(value, given[name]) for name, value in expected.items())
    assert torch.equal(learned.vectors["sent"], received + 2)
    assert torch.equal(learned.kept["kept"], received + 3)
    assert (len(samples), method.shifted.steps) == (15, 4)
    assert method.shifted.learning_rate == learning_rate(here.config.training, 1, here.config.rounds)
    sent.learn(received, None)
    assert (method.view.kept, method.view.own) == ({}, None)  # of a site that remembers nothing


@pytest.fixture
def folder(tmp_path):
    return MemoryFolder(tmp_path / "site")


def memory_of(value):
    return Memory(torch.full((5,), value), torch.full((5,), value + 1), {"count": torch.tensor(3)}, {"other": 0.5})


def test_what_was_remembered_comes_back(folder):
    assert folder.read(0) is None
    assert folder.latest(3) is None
    folder.remember(0, memory_of(1.0))
    found = folder.read(0)
    assert torch.equal(found.received, torch.full((5,), 1.0))
    assert torch.equal(found.model, torch.full((5,), 2.0))
    assert found.buffers == {"count": torch.tensor(3)}
    assert found.weights == {"other": 0.5}
    assert torch.equal(folder.latest(4).trained, found.trained)


def test_that_round_and_the_one_before_are_kept(folder):
    for round in (0, 1, 4):
        folder.remember(round, memory_of(float(round)))
    assert [folder.read(round) is not None for round in range(5)] == [False, True, False, False, True]


def test_what_was_read_stays_when_its_file_is_written_again_or_goes(folder):
    """The vectors are mapped from the file."""
    folder.remember(0, memory_of(1.0))
    held = folder.read(0)
    folder.remember(0, replace(held, trained=held.received + 7))
    assert torch.equal(held.trained, torch.full((5,), 2.0))
    assert torch.equal(folder.read(0).trained, torch.full((5,), 8.0))
    held.received.add_(1)  # of the one read only
    assert torch.equal(folder.read(0).received, torch.full((5,), 1.0))
    folder.remember(1, memory_of(3.0))
    folder.remember(2, memory_of(4.0))
    assert folder.read(0) is None
    assert torch.equal(held.received, torch.full((5,), 2.0))
