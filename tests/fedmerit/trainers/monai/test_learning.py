import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from monai.metrics import DiceMetric
from torch import nn
from torch.nn.functional import interpolate

from fedmerit.contract import flat
from fedmerit.errors import BadInput
from fedmerit.schema.configuration.run import make_configuration
from fedmerit.schema.configuration.settings import OPTIMIZERS, Network, Training
from fedmerit.schema.site_folder import Case
from fedmerit.trainers.factory import check_training, initial_network
from fedmerit.trainers.monai import local_training
from fedmerit.trainers.monai.local_training import build_loss, count_steps, learning_rate, train
from fedmerit.trainers.monai.prediction import EVALUATION_BATCH, evaluate
from fedmerit.trainers.monai.samples import Slices
from fedmerit.trust import ALL, TRUST

NETWORK = Network(in_channels=1, labels=("disc", "cup"), architecture="unet", width=2, depth=3)
TRAINING = Training(batch_size=4, augmentation="none")


@dataclass(frozen=True)
class Volume(Case):
    """A case that lies in memory."""

    image: np.ndarray = None
    label: np.ndarray = None


def volume(image, label):
    """image (slices, channels, h, w), label (slices, labels, h, w)."""
    return Volume("", "", "", "", image=image.astype(np.float32), label=label.astype(np.uint8))


def random_volume(seed, slices=6, labels=2, size=16, share=0.3):
    random = np.random.default_rng(seed)
    image = random.normal(size=(slices, 1, size, size))
    return volume(image, random.random((slices, labels, size, size)) < share)


@pytest.mark.parametrize(
    ("part", "made"),
    [
        ("loss", lambda: lambda logits, masks: (logits - masks).square()),
        ("loss", lambda: lambda logits, masks: 1.0),
        ("loss", lambda: lambda logits, masks: None),
        ("loss", lambda: lambda logits, masks: logits.detach().sum()),
        ("loss", lambda: lambda logits, masks: logits.log().sum()),
        ("loss", lambda: lambda logits: logits.sum()),
        ("loss", lambda weight: nn.BCEWithLogitsLoss()),
        ("loss", lambda: nn.CrossEntropyLoss(weight=torch.ones(3))),  # there are two labels
        ("optimizer", lambda parameters, training, rate: None),
        ("optimizer", lambda parameters, training, rate: torch.optim.LBFGS(parameters, lr=rate)),
        ("optimizer", lambda parameters: torch.optim.SGD(parameters)),
    ],
)
def test_losses_and_optimizers_of_others_are_tried_before_a_run(monkeypatch, part, made):
    catalogue, name = {"loss": (local_training.LOSSES, "dice"), "optimizer": (local_training.OPTIMIZERS, "sgd")}[part]
    monkeypatch.setitem(catalogue, name, made)
    config = make_configuration("fedavg", "t", 1, 0, {"in_channels": 1, "labels": ["disc", "cup"]}, {part: name})
    with pytest.raises(BadInput, match=f"^{part} '{name}': .*; expected what "):
        check_training(config, (32, 32))


class Threshold(nn.Module):
    """Logits: the image above each of some levels, (batch, 1, h, w) to (batch, levels, h, w)."""

    def __init__(self, *levels):
        super().__init__()
        self.levels = nn.Parameter(torch.tensor(levels))

    def forward(self, image):
        return image - self.levels[None, :, None, None]


@pytest.mark.parametrize("slices", [1, 5, EVALUATION_BATCH, EVALUATION_BATCH + 1, 2 * EVALUATION_BATCH + 3])
def test_dice_of_a_case_is_monais_over_the_whole_volume(slices):
    cases = [random_volume(seed, slices) for seed in range(3)]  # (slices, 2, 16, 16)
    overlaps = evaluate(Threshold(0.5, -0.2), cases, ("disc", "cup"))
    metric = DiceMetric(reduction="none")
    for case in cases:
        predicted = (torch.from_numpy(case.image) > torch.tensor([0.5, -0.2])[None, :, None, None]).float()
        metric(predicted.transpose(0, 1)[None], torch.from_numpy(case.label).transpose(0, 1)[None])
    expected = metric.aggregate()  # (cases, labels)
    assert [(o.case, o.label) for o in overlaps] == [(f"{c:03d}", label) for c in range(3) for label in ("disc", "cup")]
    assert [overlap.dice for overlap in overlaps] == pytest.approx(expected.flatten().tolist(), abs=1e-6)


def test_cases_of_few_slices_are_evaluated_together():
    sizes = [1, 2, EVALUATION_BATCH, 1, 3]
    cases = [random_volume(seed, slices) for seed, slices in enumerate(sizes)]
    network, passes = Threshold(0.5, -0.2), []
    network.register_forward_pre_hook(lambda module, given: passes.append(len(given[0])))
    together = evaluate(network, cases, ("disc", "cup"), final=True)
    assert passes == [EVALUATION_BATCH, sum(sizes) - EVALUATION_BATCH]
    evaluate(network, cases, ("disc", "cup"), amp=True)
    assert passes[2:] == [sum(sizes)]  # up to twice as many
    single = [evaluate(network, [case], ("disc", "cup"), final=True) for case in cases]
    assert [replace(one, case="") for one in together] == [replace(one, case="") for each in single for one in each]


def test_loss_explicitly():
    """Logits (2, 1, 1, 2) = (0, ln 3; 0, ln 3), masks (1, 1; 0, 0), so p = (1/2, 3/4; 1/2, 3/4).

    Soft Dice over the batch: 1 - 2 Σpy / (Σp + Σy) = 1 - 2.5 / (2.5 + 2) = 4/9, smoothing of 1e-5 aside.
    Cross-entropy: -(ln 1/2 + ln 3/4 + ln 1/2 + ln 1/4) / 4.
    """
    logits = torch.tensor([0.0, math.log(3), 0.0, math.log(3)]).view(2, 1, 1, 2)
    masks = torch.tensor([1.0, 1.0, 0.0, 0.0]).view(2, 1, 1, 2)
    cross_entropy = -sum(math.log(p) for p in (1 / 2, 3 / 4, 1 / 2, 1 / 4)) / 4
    assert build_loss("dice")(logits, masks).item() == pytest.approx(4 / 9, abs=1e-5)
    assert build_loss("dice_ce")(logits, masks).item() == pytest.approx(4 / 9 + cross_entropy, abs=1e-5)


def test_loss_of_several_labels_is_the_mean_over_labels():
    random = torch.Generator().manual_seed(0)
    logits, masks = torch.randn(3, 2, 4, 4, generator=random), torch.rand(3, 2, 4, 4, generator=random).round()
    for name in ("dice", "dice_ce"):
        loss = build_loss(name)
        each = [loss(logits[:, k : k + 1], masks[:, k : k + 1]).item() for k in range(2)]
        assert loss(logits, masks).item() == pytest.approx(sum(each) / 2, abs=1e-6)


@pytest.fixture
def slices():
    """Ten training slices (1, 16, 16) of two cases."""
    return Slices([random_volume(0, 6), random_volume(1, 4)])


def trained(slices, training=TRAINING, seed=1, network=NETWORK):
    """The vector and loss after one round from a fixed start."""
    start = initial_network(network, 0)
    loss = train(start, slices, training, training.lr, seed)
    return flat.get_parameters(start), loss


@pytest.mark.parametrize("augmentation", ["none", "strong"])
def test_training_repeats_for_a_seed_whatever_the_global_random_state(slices, augmentation):
    training = replace(TRAINING, augmentation=augmentation)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    vector, loss = trained(slices, training)
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    again, loss_again = trained(slices, training)
    assert torch.equal(vector, again)
    assert loss == loss_again
    other, _ = trained(slices, training, seed=2)
    assert not torch.equal(vector, other)


def test_training_and_building_leave_the_global_random_state_only(slices):
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    trained(slices, replace(TRAINING, augmentation="strong"))
    assert torch.equal(torch.get_rng_state(), state)
    assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002


def test_the_initial_network_depends_on_its_seed_only():
    torch.manual_seed(0)
    first = flat.get_parameters(initial_network(NETWORK, 3))
    torch.manual_seed(1)
    assert torch.equal(flat.get_parameters(initial_network(NETWORK, 3)), first)
    assert not torch.equal(flat.get_parameters(initial_network(NETWORK, 4)), first)


def test_no_gradient_outlives_the_round(slices):
    network = initial_network(NETWORK, 0)
    train(network, slices, TRAINING, 1e-3, 0)
    assert all(parameter.grad is None for parameter in network.parameters())


def test_the_loss_is_the_mean_over_batches(slices):
    """Ten slices in batches of 10: with learning rate 0 that batch's loss is the loss of the start."""
    network = initial_network(NETWORK, 0)
    images, masks = (torch.stack(parts) for parts in zip(*slices, strict=True))
    expected = build_loss("dice_ce")(network.train()(images), masks).item()
    _, loss = trained(slices, replace(TRAINING, batch_size=10, lr=1e-30))
    assert loss == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("network", [NETWORK, replace(NETWORK, norm="group")], ids=["batch", "group"])
def test_mixed_precision_runs_on_a_cpu(slices, network):
    vector, loss = trained(slices, replace(TRAINING, amp=True), network=network)
    plain, plain_loss = trained(slices, network=network)
    assert vector.dtype == torch.float32
    assert vector.isfinite().all()
    assert loss == pytest.approx(plain_loss, abs=0.05)
    assert not torch.equal(vector, plain)
    overlaps = evaluate(initial_network(network, 0), [random_volume(0)], NETWORK.labels, amp=True)
    assert len(overlaps) == 2


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"schedule": "constant"}, [1, 1, 1, 1]),
        ({"schedule": "polynomial"}, [1, 0.75**0.9, 0.5**0.9, 0.25**0.9]),
        ({"schedule": "cosine"}, [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]),
        ({"schedule": "step", "decay": 0.5, "decay_every": 2}, [1, 1, 0.5, 0.5]),
    ],
)
def test_the_learning_rate_follows_its_schedule(changes, expected):
    training = replace(TRAINING, lr=0.1, **changes)
    assert [learning_rate(training, round, 4) for round in range(4)] == pytest.approx([0.1 * rate for rate in expected])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_is_that_of_torchs_optimiser(slices, optimizer):
    training = replace(TRAINING, optimizer=optimizer, momentum=0.9, weight_decay=0.1, batch_size=10, steps=1)
    kinds = {
        "sgd": partial(torch.optim.SGD, momentum=0.9, weight_decay=0.1),
        "adam": partial(torch.optim.Adam, betas=(0.9, 0.99), weight_decay=0.1),
        "adamw": partial(torch.optim.AdamW, betas=(0.9, 0.99), weight_decay=0.1),
    }
    reference = initial_network(NETWORK, 0)
    step = kinds[optimizer](reference.parameters(), lr=0.02)
    ((images, masks),) = local_training.draw_batches(slices, training, 1, torch.device("cpu"))
    build_loss("dice_ce")(reference(images), masks).backward()
    step.step()
    ours = initial_network(NETWORK, 0)
    train(ours, slices, training, 0.02, seed=1)
    torch.testing.assert_close(flat.get_parameters(ours), flat.get_parameters(reference))


def test_a_long_gradient_is_cut(slices):
    """With SGD a step is the learning rate times the gradient, whose norm over all parameters is at most its bound."""
    start = initial_network(NETWORK, 0)
    before = flat.get_parameters(start)
    train(start, slices, replace(TRAINING, optimizer="sgd", batch_size=10, clip_norm=1e-3), 1.0, seed=1)
    assert float((flat.get_parameters(start) - before).norm()) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(("changes", "expected"), [({}, 3), ({"epochs": 2}, 6), ({"steps": 5}, 5), ({"steps": 1}, 1)])
def test_a_round_has_its_epochs_or_its_steps(slices, changes, expected):
    training = replace(TRAINING, **changes)
    network, seen = initial_network(NETWORK, 0), []
    network.register_forward_hook(lambda *_: seen.append(1))
    train(network, slices, training, 1e-3, seed=0)
    assert len(seen) == count_steps(slices, training) == expected


def test_samples_that_stay_on_a_device_are_read_once_and_are_the_same(slices, monkeypatch):
    cpu, places, read = torch.device("cpu"), torch.tensor([3, 0, 7]), []
    expected = Slices(slices.cases).batch(places, cpu)
    staying, one = Slices(slices.cases), Slices.__getitem__
    monkeypatch.setattr(Slices, "_fit", lambda self, device: True)
    monkeypatch.setattr(Slices, "__getitem__", lambda self, place: (read.append(place), one(self, place))[1])
    for _ in range(2):
        for found, wanted in zip(staying.batch(places, cpu), expected, strict=True):
            assert found.dtype == wanted.dtype == torch.float32
            assert torch.equal(found, wanted)
    assert read == list(range(len(staying)))


def test_slices_that_show_an_organ_are_drawn_as_often_as_asked():
    label = np.zeros((20, 2, 16, 16))
    label[:2, 0, 4:8, 4:8] = 1
    slices = Slices([volume(np.zeros((20, 1, 16, 16)), label)])
    assert slices.shows_label.tolist() == [True] * 2 + [False] * 18
    training = replace(TRAINING, organ_share=0.5, epochs=20)
    drawn = local_training.draw_batches(slices, training, 0, torch.device("cpu"))
    shown = [bool(mask.any()) for _, masks in drawn for mask in masks]
    assert len(shown) == 400
    assert np.mean(shown) == pytest.approx(0.5, abs=0.08)


def test_deep_supervision_weighs_every_head(slices):
    network = Network(1, ("disc", "cup"), "dynunet", 2, 3, arguments={"deep_supervision": True, "deep_supr_num": 1})
    start = initial_network(network, 0)
    before = flat.get_parameters(start)
    loss = train(start, slices, TRAINING, 1e-2, seed=0)
    assert math.isfinite(loss)
    moved = flat.named(start, flat.get_parameters(start) - before)
    assert all(moved[name].any() for name in moved if name.startswith("deep_supervision_heads"))
    assert start.eval()(torch.zeros(1, 1, 16, 16)).shape == (1, 2, 16, 16)


class Levels(nn.Module):
    """Logits of three sizes, as a network of others may give them, in evaluation, too."""

    kind = list

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(nn.Conv2d(1, 2, 1) for _ in range(3))

    def forward(self, images):
        return self.kind(head(images[..., :: 2**level, :: 2**level]) for level, head in enumerate(self.heads))


class Tuple(Levels):
    kind = tuple


@pytest.mark.parametrize("kind", [Levels, Tuple])
def test_levels_of_other_sizes_count_half_as_much_each(kind, slices, monkeypatch):
    """1, 1/2 and 1/4 of the loss of each, of the masks' nearest pixels: explicitly before the only step."""
    monkeypatch.setenv(TRUST, ALL)
    network = Network(1, ("disc", "cup"), f"{__name__}:{kind.__name__}")
    built = initial_network(network, 0)
    plain = replace(TRAINING, loss="dice", batch_size=len(slices), augmentation="none", epochs=1)
    images, masks = (torch.stack([pair[part] for pair in slices]) for part in (0, 1))
    with torch.no_grad():
        sizes = [interpolate(masks.float(), size=level.shape[2:], mode="nearest-exact") for level in built(images)]
        losses = [build_loss("dice")(*pair) for pair in zip(built(images), sizes, strict=True)]
    before = flat.get_parameters(built)
    loss = train(built, slices, plain, 1e-2, seed=0)
    assert loss == pytest.approx(float(losses[0] + losses[1] / 2 + losses[2] / 4), rel=1e-5)
    assert all(part.any() for part in flat.named(built, flat.get_parameters(built) - before).values())
    images = torch.randn(1, 1, 16, 16)
    assert torch.equal(built.eval()(images), built.heads[0](images))  # evaluation takes the first
