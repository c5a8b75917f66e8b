"""A site under an attack: when it begins, what it remembers, what it leaves alone."""

from dataclasses import dataclass

import pytest
import torch
from playing import LAST, play, without_update

from fedmerit import flat
from fedmerit.capabilities import TrainsLocally, capabilities
from fedmerit.federation.site import Site
from fedmerit.methods.fedavg import FedAvg
from fedmerit.trainers.monai_trainer.networks import initial_network
from fedmerit.wire.messages import Evaluation, Task


def test_a_site_without_an_attack_is_left_as_it_is(open_site):
    assert type(open_site()) is Site


@pytest.mark.parametrize("kind", ["repeat", "zero", "delta-noise", "sign-flip", "inverted", "inflated"])
def test_rounds_before_the_first_are_honest_bit_for_bit(played, kind):
    honest, acted = played()[1], played(f"{kind}:from=2")[1]
    for round in (0, 1):
        assert torch.equal(acted[round].update, honest[round].update)
        assert without_update(acted[round]) == without_update(honest[round])
    lies_alone = kind == "inflated"
    assert torch.equal(acted[2].update, honest[2].update) == lies_alone
    assert (acted[2].num_samples == honest[2].num_samples) != lies_alone


@pytest.mark.parametrize("spec", ["noise", "delta-noise", "replay:from=2", "repeat", "label-noise:share=0.5"])
def test_a_site_that_is_opened_anew_and_asked_twice_sends_the_same(played, open_site, spec):
    class Anew:
        """Every task is answered by a site opened for it, as after a crash."""

        config = open_site(spec).config

        def answer(self, task):
            return open_site(spec).answer(task)

    again = play(Anew(), Anew())[1]
    assert all(torch.equal(one.update, other.update) for one, other in zip(played(spec)[1], again, strict=True))


def test_what_a_rider_remembers_is_what_it_sent(open_site, tmp_path):
    """FedCE's site half of the next round works with it: its claims are then true of the update it sent."""
    tasks, replies = play(open_site("sign-flip"))
    memory = torch.load(tmp_path / "sign-flip" / f"round_{LAST:05d}.pt", weights_only=True)
    assert torch.equal(memory["trained"], tasks[-1].parameters + replies[-1].update)


@pytest.fixture
def late_task(open_site):
    """Of a round whose round before the site knows nothing of."""
    network = initial_network(open_site().config.network, 0)
    return Task(2, flat.get_parameters(network), flat.get_buffers(network), 0.5, 0.5)


@pytest.mark.parametrize("spec", ["delta", "noise", "replay"])
def test_a_rider_that_lost_its_memory_trains(open_site, late_task, spec):
    assert torch.equal(open_site(spec).answer(late_task).update, open_site().answer(late_task).update)


def test_wrong_masks_leave_validation_and_tests_alone(open_site, folders):
    site = open_site("inverted")
    network = initial_network(site.config.network, 0)
    models, each = flat.get_parameters(network)[None], torch.eye(1, dtype=torch.float64)
    site.answer(Task(0, models[0], flat.get_buffers(network)))
    for split in ("validation", "testing"):
        said = site.answer(Evaluation(site.config.rounds, split, models, each, (flat.get_buffers(network),), each))
        voxels = [one.true_positives + one.false_negatives for one in said.overlaps[0]]
        assert voxels == [int(case.label.sum()) for case in folders["prostate"].cases(split)]


def test_the_trained_model_is_validated_where_the_run_asks_for_it(played):
    asked = {"validate_trained": True, "lr": 0.1}  # so that a round changes what is found
    replies = played("zero", **asked)[1]
    assert all(reply.trained_overlaps == reply.overlaps for reply in replies)
    honest = played(**asked)[1]
    assert [len(reply.trained_overlaps) for reply in honest] == [len(reply.overlaps) for reply in honest]
    assert honest[0].trained_overlaps != honest[0].overlaps
    assert played("zero")[1][0].trained_overlaps == ()


@dataclass(frozen=True)
class WithVectors(TrainsLocally, FedAvg):
    """A method whose sites send a vector beside their updates and have models of their own."""

    vectors = ("control",)
    keeps_own_model = True


def test_a_rider_that_does_not_train_sends_the_vectors_that_belong_to_the_method(open_site, late_task):
    """The server refuses an update that lacks them."""
    site = open_site("zero")
    site.method = WithVectors()
    site.can = capabilities(site.method)
    assert list(site.answer(late_task).vectors) == ["control"]
    assert not site.answer(late_task).vectors["control"].any()
    parameters, _ = site.memory.read(late_task.round).own
    assert torch.equal(parameters, late_task.parameters)
