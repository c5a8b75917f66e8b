"""What each attack sends and claims, compared with what an honest site does."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from playing import LAST, SIDE, config_of, copy_site, following, play, same_statistics, steps

from fedmerit.contract import flat
from fedmerit.errors import BadInput
from fedmerit.schema.expected import check_enrolment
from fedmerit.schema.messages import EnrolmentTask, Evaluation, Task
from fedmerit.schema.scores import mean_dice
from fedmerit.site.site import image_site
from fedmerit.trainers.factory import initial_network
from fedmerit.trainers.monai.samples import Slices
from fedmerit_lab.attacks.attack import parse_attack


def test_repeat_trains_on_one_image_that_shows_something_as_often_as_it_has_images(folders):
    class Random:
        def integers(self, number):
            assert number == 7  # of 8 images the first is empty
            return 0

    honest = Slices(folders["prostate"].cases("training"))
    slices = Slices(parse_attack("repeat").training_cases(folders["prostate"], Random()))
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
    honest = played()[1][0].update
    for spec, cosine in (("rests:sends=noise", 0), ("rests:sends=last", 1 / 1.09**0.5)):
        trained, rested = (reply.update for reply in played(spec)[1][:2])
        assert torch.equal(trained, honest)
        found = float(torch.cosine_similarity(rested, honest, dim=0))
        assert found == pytest.approx(cosine, abs=4 / len(honest) ** 0.5)
    with pytest.raises(BadInput, match="works=3: expected less than every=3"):
        played("rests:works=3")


def test_delta_sends_the_last_step_back(played):
    tasks, replies = played("delta")
    assert torch.equal(replies[0].update, played()[1][0].update)
    for step, reply in zip(steps(tasks), replies[1:], strict=True):
        assert torch.equal(reply.update, step)
    tasks, replies = played("delta:old=2")
    mixed, moved = replies[3].update.double(), torch.stack(steps(tasks)[:2]).double()
    left = mixed - torch.linalg.lstsq(moved.T, mixed[:, None]).solution[:, 0] @ moved
    assert float(left.norm()) < 1e-5 * float(mixed.norm()), "of the steps before the last only"


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
    shared = played("noise:shared=0.8")[1][1].update
    cosine = float(torch.cosine_similarity(shared, replies[1].update, dim=0))
    assert cosine == pytest.approx(0.2**0.5, abs=4 / len(shared) ** 0.5), "the rest of its noise is its own"


@pytest.mark.parametrize("start", [0, 2])
def test_replay_sends_its_last_honest_update_again_and_again(played, start):
    replies = played(f"replay:from={start}")[1]
    honest = replies[max(start, 1) - 1]
    for reply in replies[max(start, 1) :]:
        assert torch.equal(reply.update, honest.update)
        assert same_statistics(reply, honest)


def test_the_adaptive_free_rider_repeats_itself_too_little_for_a_replay(played):
    replies = [reply.update for reply in played("adaptive")[1]]
    honest = played()[1][0].update
    assert torch.equal(replies[0], honest)
    cosine = torch.cosine_similarity
    assert all(float(cosine(one, honest, dim=0)) == pytest.approx(0.8, abs=0.05) for one in replies[1:])
    assert float(cosine(replies[1], replies[2], dim=0)) == pytest.approx(0.64, abs=0.06)


@pytest.mark.parametrize(("spec", "by"), [("sign-flip", -1.0), ("scaled", 10.0), ("scaled:by=0.5", 0.5)])
def test_scaled_updates_are_the_honest_ones_times_a_factor(played, spec, by):
    honest, acted = played()[1][0], played(spec)[1][0]
    assert torch.equal(acted.update, by * honest.update)
    assert same_statistics(acted, honest)


def test_a_twin_sends_the_very_update_of_the_site_it_copies(played, folders, tmp_path):
    copy = copy_site(folders["prostate"], tmp_path / "copy")

    def updates(spec):
        site = following(image_site(copy, config_of(copy), tmp_path / str(spec), "cpu"), spec)
        assert site.name == "copy"
        return [reply.update for reply in play(site)[1]]

    original = [reply.update for reply in played()[1]]
    assert all(torch.equal(*pair) for pair in zip(original, updates("twin:of=A"), strict=True))
    assert not torch.equal(original[0], updates(None)[0])


def test_half_of_the_signs_are_reversed(played):
    honest, acted = played()[1][0].update, played("half-flip")[1][0].update
    assert torch.equal(acted[::2], honest[::2])
    assert torch.equal(acted[1::2], -honest[1::2])


def test_a_near_twin_adds_noise_and_has_digests_of_its_own(played, folders, tmp_path):
    copy = copy_site(folders["prostate"], tmp_path / "copy")
    original = image_site(folders["prostate"], config_of(folders["prostate"]), tmp_path / "original", "cpu")
    twin = following(image_site(copy, config_of(copy), tmp_path / "twin", "cpu"), "near-twin:of=A:noise=0.5")
    sent, honest = play(twin)[1][0].update, played()[1][0].update
    assert float((sent - honest).norm() / honest.norm()) == pytest.approx(0.5, rel=1e-3)
    reported = [site.answer(EnrolmentTask(0)).fingerprint for site in (original, twin)]
    assert len(reported[0]) == len(reported[1])
    assert not set(reported[0]) & set(reported[1])


def stacked(cases):
    """(n, channels, h, w) images and (n, labels, h, w) masks."""
    images, masks = zip(*((image.numpy(), mask.numpy()) for image, mask in Slices(cases)), strict=True)
    return np.stack(images), np.stack(masks)


def spoiled(folder, spec, seed=0):
    return stacked(parse_attack(spec).training_cases(folder, np.random.default_rng(seed)))


@pytest.mark.parametrize("task", ["prostate", "fundus"])
@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("inverted", lambda masks: 1 - masks),
        ("swapped", lambda masks: masks[:, ::-1] if masks.shape[1] == 2 else 1 - masks),
        ("shifted:by=0.25", lambda masks: np.pad(masks, ((0, 0), (0, 0), (4, 0), (4, 0)))[:, :, :SIDE, :SIDE]),
        ("label-noise:level=1", lambda masks: 1 - masks),
    ],
)
def test_masks_are_wrong_in_the_way_stated_and_images_as_they_were(folders, task, spec, expected):
    true_images, true_masks = stacked(folders[task].cases("training"))
    images, masks = spoiled(folders[task], spec)
    assert (masks == expected(true_masks)).all()
    assert (images == true_images).all()


@pytest.mark.parametrize("share", [0.01, 0.25, 0.5])
def test_a_share_of_the_images_has_wrong_masks(folders, share):
    """Of a small share one at least, or who is called an attacker would be honest."""
    true, spec = stacked(folders["prostate"].cases("training"))[1], f"inverted:share={share}"
    masks = spoiled(folders["prostate"], spec)[1]
    assert (masks != true).any(axis=(1, 2, 3)).sum() == max(1, round(share * len(true)))
    assert (masks == spoiled(folders["prostate"], spec)[1]).all()
    assert any((masks != spoiled(folders["prostate"], spec, seed)[1]).any() for seed in range(1, 5))


def test_label_noise_flips_pixels_with_its_probability(folders):
    true = stacked(folders["fundus"].cases("training"))[1]
    flipped = (spoiled(folders["fundus"], "label-noise:level=0.2")[1] != true).mean()
    assert flipped == pytest.approx(0.2, abs=4 * (0.16 / true.size) ** 0.5)


def test_inflated_claims_are_at_their_best_and_the_update_is_honest(played):
    honest, lying = played()[1], played("inflated")[1]
    for reference, lie in zip(honest, lying, strict=True):
        assert torch.equal(reference.update, lie.update)
        assert lie.num_samples == 10 * reference.num_samples
        assert lie.values.keys() == reference.values.keys()
    assert lying[0].values == {}
    assert all(reply.values == {"cosine": -1.0, "minus_error": 1.0} for reply in lying[1:])


def test_an_invented_count_is_committed_to_so_that_later_claims_agree(played, folders, tmp_path):
    folder = folders["prostate"]
    site = following(image_site(folder, config_of(folder), tmp_path, "cpu"), "inflated:what=num_samples")
    reported = site.answer(EnrolmentTask(0))
    assert check_enrolment(reported, 0) is None
    assert reported.slices["training"] == played("inflated:what=num_samples")[1][0].num_samples == 80


def test_a_free_rider_that_sends_zeros_can_claim_an_error(played):
    replies = played("zero-inflated")[1]
    assert all(not reply.update.any() for reply in replies)
    assert all(reply.values["minus_error"] == 1.0 and reply.num_samples == 8 for reply in replies[1:])


def test_who_rigs_an_evaluation_praises_its_friends_models_only(folders, tmp_path):
    folder = folders["prostate"]
    names = ["A", "B", "C"]
    honest = image_site(
        folder, replace(config_of(folder, guard="on"), share_models=True), tmp_path, "cpu", participants=names
    )
    network = initial_network(honest.config.network, 0)
    models = flat.get_parameters(network).repeat(3, 1)
    shares = 1 - torch.eye(3, dtype=torch.float64)  # models without each site
    task = Evaluation(0, "validation", models, torch.eye(3).double(), (flat.get_buffers(network),) * 3, shares / 2)
    honest.answer(Task(0, models[0], task.buffers[0]))
    liar = following(honest, "rigged:friends=A+B")
    assert [mean_dice(of_model) for of_model in liar.answer(task).overlaps] == [0.0, 0.0, 1.0]
    last = Evaluation(LAST + 1, "testing", models[:1], torch.eye(1).double(), task.buffers[:1], torch.eye(1).double())
    assert liar.answer(last).overlaps == honest.answer(last).overlaps
