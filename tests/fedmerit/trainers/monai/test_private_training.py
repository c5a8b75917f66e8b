"""DP-SGD at a site: what a patient can change, noise that repeats, and what it is accounted for."""

import math
import subprocess
import sys

import pytest
import torch
from pretending import tiny_plan
from torch import nn

from fedmerit.contract import flat
from fedmerit.contract.capabilities import capabilities
from fedmerit.errors import BadInput
from fedmerit.schema.configuration.settings import Privacy
from fedmerit.schema.messages import Task
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.trainers.factory import initial_network
from fedmerit.trainers.monai.local_round import LocalRound
from fedmerit.trainers.monai.local_training import build_loss
from fedmerit.trainers.monai.private_training import KeyStream, PrivateTraining
from fedmerit.trainers.monai.samples import build_samples
from fedmerit.trainers.monai.trainer import ImageTrainer
from fedmerit.trainers.privacy_budget import Mechanism, plan_mechanism, spent_epsilon

CLIP = 0.01


@pytest.fixture(scope="module")
def cases(sites):
    return SiteFolder(sites / "site1").cases("training")


def gradient(cases, steps=1, rate=1.0, expected=10.0):
    """Return (d,) the noisy gradient of the last step, as a sum over patients."""
    samples, network = build_samples(cases, ()), initial_network(tiny_plan(norm="instance").network, 0)
    private = PrivateTraining(samples, Privacy(dp_noise=1.0, dp_clip=CLIP), Mechanism(1.0, rate, 1), "key")
    optimizer, loss = torch.optim.SGD(network.parameters(), 0.1), build_loss("dice_ce")
    draws = private.draw_places()
    for step in range(1, steps + 1):
        places = next(draws)
        batch = samples.batch(places, torch.device("cpu")) if len(places) else (torch.zeros(0), torch.zeros(0))
        private.add_gradients(step, optimizer, lambda images, masks: loss(network(images), masks), *batch)
    patients = len({case.patient for case in cases})
    return torch.cat([parameter.grad.flatten() for parameter in network.parameters()]) * rate * patients


def test_private_training_bounds_what_a_patient_changes(cases):
    patients = sorted({case.patient for case in cases})
    fewer = [case for case in cases if case.patient != patients[-1]]  # the last one: the others draw the same numbers
    difference = (gradient(cases) - gradient(fewer)).norm()
    assert 0.9 * CLIP < difference < 1.01 * CLIP  # a gradient of a soft Dice over the batch would move the others', too


def test_private_training_of_spoiled_images_keeps_the_bound(cases):
    samples, network = build_samples(cases, ()), nn.Linear(2, 1)
    private = PrivateTraining(samples, Privacy(dp_noise=1e-9, dp_clip=CLIP), Mechanism(1e-9, 1.0, 1), "key")
    images, optimizer = torch.ones(len(next(private.draw_places())), 2), torch.optim.SGD(network.parameters(), 1.0)
    images[0] = math.nan
    private.add_gradients(1, optimizer, lambda x, y: network(x).square().sum(), images, images)
    assert network.weight.grad.isfinite().all()
    assert float(network.weight.grad.norm()) <= CLIP


def test_draw_places_takes_patients_at_the_rate(cases):
    samples = build_samples(cases, ())
    private = PrivateTraining(samples, Privacy(dp_noise=1.0, dp_slices=2), Mechanism(1.0, 0.25, 1), "key")
    draws = private.draw_places()
    drawn = [[samples.index[int(place)][0].patient for place in next(draws)] for _ in range(400)]
    patients = {case.patient for case in cases}
    rates = [sum(patient in step for step in drawn) / len(drawn) for patient in patients]
    assert max(abs(rate - 0.25) for rate in rates) < 0.1  # 4.6 standard deviations
    assert {step.count(patient) for step in drawn for patient in step} == {2}
    assert [] in drawn or len(patients) > 8


def test_private_training_of_no_patient_is_only_noise(cases):
    noise = gradient(cases, rate=1e-9) / CLIP
    assert float(noise.std()) == pytest.approx(1.0, abs=0.2)
    assert not torch.equal(noise, gradient(cases, steps=2, rate=1e-9) / CLIP)  # each step has its own


def test_key_stream_is_normal_and_follows_from_the_key():
    first, again, other = (KeyStream(key).normal(20_001) for key in ("a", "a", "b"))
    assert (first == again).all()
    assert (abs(first.mean()), first.std()) == pytest.approx((0.0, 1.0), abs=0.03)
    assert abs((first * other).mean()) < 0.03


def local(samples, name="site1", **more):
    config = tiny_plan("fedavg", augmentation="light", norm="instance", dp_noise=1.0, **more)
    network, method = initial_network(config.network, 0), config.build_method()
    task = Task(1, flat.get_parameters(network), {})
    run = config, method, capabilities(method), network, samples, torch.device("cpu")
    return LocalRound(*run, name, lambda network: 0.5, task, mechanism=Mechanism(1.0, 0.5, 4))


def test_private_round_repeats_and_another_site_has_other_noise(cases):
    samples = build_samples(cases, ())
    learned, again, other = (local(samples, name) for name in ("site1", "site1", "site1/secret"))
    first = learned.learn(learned.task.parameters, None)
    assert torch.equal(first.trained, again.learn(again.task.parameters, None).trained)
    assert not torch.equal(first.trained, other.learn(other.task.parameters, None).trained)
    assert math.isnan(first.loss)  # it is of training images, without noise


def test_plan_mechanism_spends_the_target_epsilon():
    config = tiny_plan("fedavg", rounds=2, dp_epsilon=8, norm="instance", steps=10, batch_size=4)
    mechanism = plan_mechanism(config, 600, 40, "a")
    spent = spent_epsilon([mechanism] * 2, 1e-3)
    assert (mechanism.rate, mechanism.steps) == (0.1, 10)
    assert 7.9 < spent <= 8
    assert spent_epsilon([mechanism] * 3, 1e-3) > spent
    assert spent_epsilon([], 1e-3) == 0
    with pytest.raises(BadInput, match=r"dp_delta=0.001: site a trains on 1000 patients"):
        plan_mechanism(config, 1000, 1000, "a")


@pytest.mark.parametrize(
    ("method", "settings", "reason"),
    [
        ("pooled", {}, "images of all sites at once"),
        ("ditto", {}, "a second model"),
        ("cycle", {}, "predictions of their peers"),
        ("qfedavg", {}, "losses on training images"),
        ("fedave", {}, "losses on training images"),
        ("fedavg", {"organ_share": 0.5}, "set organ_share=0"),
        ("fedavg", {"amp": True}, "set amp=false"),
        ("fedavg", {"dp_noise": 1.0}, "leave one out"),
    ],
)
def test_plan_with_privacy_refuses_what_would_leave_without_noise(method, settings, reason):
    with pytest.raises(BadInput, match=reason):
        tiny_plan(method, dp_epsilon=8, **settings)


def test_plan_without_noise_refuses_other_settings_of_privacy():
    with pytest.raises(BadInput, match="dp_clip: has no effect without"):
        tiny_plan("fedavg", dp_clip=2)
    assert "privacy" not in tiny_plan("fedavg").to_dict()
    assert tiny_plan("fedavg", dp_noise=1).to_dict()["privacy"]["dp_noise"] == 1


def test_site_refuses_privacy_with_batch_norm(sites, tmp_path):
    config = tiny_plan("fedavg", dp_noise=1.0, norm="batch")
    with pytest.raises(BadInput, match="the network has BatchNorm"):
        ImageTrainer(SiteFolder(sites / "site1"), config, tmp_path, "cpu")


@pytest.mark.slow
def test_load_opacus_leaves_the_logging_of_the_process_unchanged():
    program = "import logging, fedmerit.trainers.monai.private_training as _; root = logging.root; "
    program += "print(root.handlers, root.level)"
    ended = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["[]", "30"]
