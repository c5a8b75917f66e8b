"""What a site says of itself that is not so."""

import torch
from playing import LAST, config_of

from fedmerit import flat
from fedmerit.attacks.attacker_site import wrap_attacker
from fedmerit.attacks.false_claims import favoured_models
from fedmerit.federation.site import Site
from fedmerit.trainers.monai_trainer.networks import initial_network
from fedmerit.trainers.monai_trainer.overlaps import mean_dice
from fedmerit.wire.inspection import check_enrolment
from fedmerit.wire.messages import EnrolmentTask, Evaluation, Task


def test_inflated_claims_are_at_their_best_and_the_update_is_honest(played):
    honest, lying = played()[1], played("inflated")[1]
    for truth, lie in zip(honest, lying, strict=True):
        assert torch.equal(truth.update, lie.update)
        assert lie.num_samples == 10 * truth.num_samples
        assert lie.values.keys() == truth.values.keys()
    assert lying[0].values == {}
    assert all(reply.values == {"cosine": -1.0, "minus_error": 1.0} for reply in lying[1:])


def test_one_claim_alone(played):
    honest, lying = played()[1][1], played("inflated:what=minus_error")[1][1]
    assert lying.num_samples == honest.num_samples
    assert lying.values == {"cosine": honest.values["cosine"], "minus_error": 1.0}


def test_an_invented_count_is_committed_to_so_that_later_claims_agree(played, folders, tmp_path):
    folder = folders["prostate"]
    site = wrap_attacker(Site(folder, config_of(folder), tmp_path, "cpu"), "inflated:what=num_samples")
    told = site.answer(EnrolmentTask(0))
    assert check_enrolment(told, 0) is None
    assert told.slices["training"] == played("inflated:what=num_samples")[1][0].num_samples == 80


def test_a_rider_that_sends_zeros_can_claim_an_error(played):
    replies = played("zero-inflated")[1]
    assert all(not reply.update.any() for reply in replies)
    assert all(reply.values["minus_error"] == 1.0 and reply.num_samples == 8 for reply in replies[1:])


def test_who_rigs_an_evaluation_praises_its_friends_models_alone(folders, tmp_path):
    folder = folders["prostate"]
    names = ["A", "B", "C"]
    honest = Site(folder, config_of(folder, guard="on"), tmp_path, "cpu", participants=names)
    network = initial_network(honest.config.network, 0)
    models = flat.get_parameters(network).repeat(3, 1)
    shares = 1 - torch.eye(3, dtype=torch.float64)  # models without each site
    task = Evaluation(0, "validation", models, torch.eye(3).double(), (flat.get_buffers(network),) * 3, shares / 2)
    honest.answer(Task(0, models[0], task.buffers[0]))
    liar = wrap_attacker(honest, "rigged:friends=A+B")
    assert [mean_dice(of_model) for of_model in liar.answer(task).overlaps] == [0.0, 0.0, 1.0]
    last = Evaluation(LAST + 1, "testing", models[:1], torch.eye(1).double(), task.buffers[:1], torch.eye(1).double())
    assert liar.answer(last).overlaps == honest.answer(last).overlaps


def test_of_coalitions_those_with_a_friend_are_praised():
    members = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 1]], dtype=torch.bool)
    assert favoured_models(members, [0, 2]).tolist() == [False, True, False, True]
