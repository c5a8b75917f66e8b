"""What free riders send, compared with what they would have sent."""

import math

import numpy as np
import pytest
import torch
from playing import same_statistics, steps

from fedmerit.attacks.catalogue import parse
from fedmerit.errors import BadInput
from fedmerit.trainers.monai_trainer.data import Slices


def test_repeat_trains_on_one_image_that_shows_something_as_often_as_it_has_images(folders):
    class Random:
        def integers(self, number):
            assert number == 7  # of 8 images the first is empty
            return 0

    honest = Slices(folders["prostate"].cases("training"))
    slices = Slices(parse("repeat").training_cases(folders["prostate"], Random()))
    assert len(slices) == len(honest) == 8
    for pair in slices:
        assert all(torch.equal(part, other) for part, other in zip(pair, honest[1], strict=True))


def test_zero_sends_nothing_and_the_statistics_it_received(played):
    tasks, replies = played("zero")
    for task, reply in zip(tasks, replies, strict=True):
        assert not reply.update.any()
        assert same_statistics(reply, task)
        assert math.isnan(reply.train_loss)


def test_who_rests_trains_some_rounds_of_so_many(played):
    for spec, every, works in (("rests", 3, 1), ("rests:every=2", 2, 1), ("rests:works=2", 3, 2)):
        _, replies = played(spec)
        assert [bool(reply.update.any()) for reply in replies] == [t % every < works for t in range(len(replies))]
        assert torch.equal(replies[0].update, played()[1][0].update)
    with pytest.raises(BadInput, match="works=3: expected less than every=3"):
        played("rests:works=3")


def test_delta_sends_the_last_step_back(played):
    tasks, replies = played("delta")
    assert torch.equal(replies[0].update, played()[1][0].update)
    for step, reply in zip(steps(tasks), replies[1:], strict=True):
        assert torch.equal(reply.update, step)


@pytest.mark.parametrize(("spec", "noise"), [("delta-noise", 0.5), ("delta:noise=2.0", 2.0)])
def test_delta_with_noise_has_the_cosine_that_it_states(played, spec, noise):
    tasks, replies = played(spec)
    for step, reply in zip(steps(tasks), replies[1:], strict=True):
        added = reply.update - step
        assert float(added.norm() / step.norm()) == pytest.approx(noise, rel=1e-5)
        cosine = float(torch.cosine_similarity(reply.update, step, dim=0))
        assert cosine == pytest.approx(1 / (1 + noise**2) ** 0.5, abs=3 / len(step) ** 0.5)


def test_noise_has_the_norm_that_an_honest_update_had_for_a_step_of_that_length(played):
    tasks, replies = played("noise")
    honest = played()[1][0].update
    assert torch.equal(replies[0].update, honest)
    moved = steps(tasks)
    ratio = float(honest.double().norm() / moved[0].double().norm())
    for step, reply in zip(moved, replies[1:], strict=True):
        assert float(reply.update.norm()) == pytest.approx(ratio * float(step.norm()), rel=1e-5)
        assert abs(float(torch.cosine_similarity(reply.update, step, dim=0))) < 4 / len(step) ** 0.5
    assert not torch.equal(replies[1].update / replies[1].update.norm(), replies[2].update / replies[2].update.norm())


@pytest.mark.parametrize("start", [0, 2])
def test_replay_sends_its_last_honest_update_again_and_again(played, start):
    replies = played(f"replay:from={start}")[1]
    honest = replies[max(start, 1) - 1]
    for reply in replies[max(start, 1) :]:
        assert torch.equal(reply.update, honest.update)
        assert same_statistics(reply, honest)


def test_partial_training_is_on_some_images_and_claims_all(played, folders):
    cases = parse("partial:share=0.25").training_cases(folders["prostate"], np.random.default_rng(0))
    assert len(Slices(cases)) == 2
    honest, acted = played()[1][0], played("partial:share=0.25")[1][0]
    assert acted.num_samples == honest.num_samples
    assert 0 < float(acted.update.norm()) != float(honest.update.norm())


def test_the_adaptive_rider_repeats_itself_too_little_for_a_replay(played):
    replies = [reply.update for reply in played("adaptive")[1]]
    honest = played()[1][0].update
    assert torch.equal(replies[0], honest)
    cosine = torch.cosine_similarity
    assert all(float(cosine(one, honest, dim=0)) == pytest.approx(0.8, abs=0.05) for one in replies[1:])
    assert float(cosine(replies[1], replies[2], dim=0)) == pytest.approx(0.64, abs=0.06)
