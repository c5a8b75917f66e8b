"""Masks, the soft Dice loss of single images, and mixed precision."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedmerit.schema.site_folder import Case
from fedmerit.trainers.monai import prediction
from fedmerit.trainers.monai.prediction import (
    choose_precision,
    evaluate,
    evaluate_with_losses,
    image_losses,
    keep_largest_components,
    predict,
)
from fedmerit.trainers.monai.samples import Slices

SMOOTHING = 1e-5  # MONAI's, in numerator and denominator


class AsTheyAre(nn.Module):
    """Takes the image's channels for logits; anything but eval mode spoils them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.batches: list[int] = []
        self.mirrored, self.largest = False, False

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.batches.append(len(images))
        return images * self.scale if not self.training else images * float("nan")


def stored(folder: Path, name: str, image: np.ndarray, label: np.ndarray, slices=None) -> Case:
    np.save(folder / f"{name}_image.npy", image.astype(np.float32))
    np.save(folder / f"{name}_label.npy", label.astype(np.uint8))
    return Case(name, name, folder / f"{name}_image.npy", folder / f"{name}_label.npy", slices=slices)


def literal(logits: np.ndarray, reference: np.ndarray) -> float:
    """Of one image, (labels, h, w) each: label by label, then the mean."""
    losses = []
    for z, g in zip(logits.astype(np.float64), reference.astype(np.float64), strict=True):
        p = 1 / (1 + np.exp(-z))
        if g.any():
            losses.append(1 - (2 * (p * g).sum() + SMOOTHING) / (p.sum() + g.sum() + SMOOTHING))
        else:
            losses.append(1.0 if (z > 0).any() else 0.0)
    return sum(losses) / len(losses)


def test_losses_are_soft_dice_image_by_image(tmp_path):
    random = np.random.default_rng(0)
    image, label = random.normal(size=(21, 2, 6, 5)), random.integers(0, 2, size=(21, 2, 6, 5))
    label[3], label[7, 1] = 0, 0  # no reference at all, and none of one label
    label[8, 0], image[8, 0] = 0, -1  # neither reference nor prediction
    cases = [
        stored(tmp_path, "long", image[:19], label[:19]),  # more than go into a batch
        stored(tmp_path, "short", image[19:], label[19:], slices=(1,)),
    ]
    network = AsTheyAre()
    losses = image_losses(network.train(), Slices(cases))
    expected = [literal(image[place], label[place]) for place in (*range(19), 20)]
    assert losses.dtype == torch.float64
    assert losses.tolist() == pytest.approx(expected, abs=1e-6)  # the logits are float32
    assert network.batches == [8, 8, 4]
    assert not losses.requires_grad


class LeftIsHigher(AsTheyAre):
    """Adds to the left half of what it is shown."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        higher = torch.zeros(images.shape[-1])
        higher[: images.shape[-1] // 2] = 1.0
        return super().forward(images) + higher


def test_masks_as_they_are_used_see_the_mirror_image_too(tmp_path):
    network, image = LeftIsHigher().eval(), np.full((3, 1, 4, 6), -0.4, np.float32)
    assert predict(network, image)[..., :3].all()
    assert not predict(network, image)[..., 3:].any()
    network.mirrored = True  # -0.4 + 1 and -0.4: each side sees both
    assert predict(network, image).all()
    assert not predict(network, image - 0.2).any()
    case = stored(tmp_path, "one", image, np.ones_like(image))
    (seen,), (used,) = evaluate(network, [case], ("disc",)), evaluate(network, [case], ("disc",), final=True)
    assert (seen.true_positives, seen.false_negatives) == (36, 36)  # of a round: by the network's logits only
    assert (used.true_positives, used.false_negatives) == (72, 0)


def test_of_each_label_of_a_case_the_largest_part_is_kept():
    masks = np.zeros((3, 3, 6, 8), np.bool_)
    masks[0, 0, :2, :2] = masks[1, 0, 2, 2] = True  # 4 + 1 voxels, over two slices by a corner
    masks[2, 0, 5, :4] = masks[2, 1, 0, 0] = True  # 4 of another part, and one voxel of another label
    kept = keep_largest_components(masks)
    assert kept.sum(axis=(0, 2, 3)).tolist() == [5, 1, 0]  # a label of one voxel, and one of none, stay
    assert kept[1, 0, 2, 2]
    assert not kept[2, 0].any()


def test_final_overlaps_count_what_predict_makes(tmp_path):
    random = np.random.default_rng(0)
    image, label = random.normal(-1.5, 1, size=(25, 2, 9, 8)), random.integers(0, 2, size=(25, 2, 9, 8))
    cases = [stored(tmp_path, "long", image[:19], label[:19]), stored(tmp_path, "short", image[19:], label[19:])]
    network = LeftIsHigher()
    network.mirrored = network.largest = True
    found = evaluate(network, cases, ("disc", "cup"), final=True)
    for overlap in found:
        case, place = cases[int(overlap.case)], ("disc", "cup").index(overlap.label)
        mask, there = predict(network, case.image)[:, place], case.label[:, place] > 0
        reported = (overlap.true_positives, overlap.false_positives, overlap.false_negatives)
        assert reported == ((mask & there).sum(), (mask & ~there).sum(), (~mask & there).sum())
        assert sum(reported[:2]) > 0
    network.largest = False
    every_part = evaluate(network, cases, ("disc", "cup"), final=True)
    assert all(more.dice != one.dice for more, one in zip(every_part, found, strict=True))
    assert [(one.case, one.label) for one in found] == [(f"00{n}", name) for n in (0, 1) for name in ("disc", "cup")]


class SeesPrecision(LeftIsHigher):
    """Notes whether it is called in mixed precision."""

    def __init__(self):
        super().__init__()
        self.mixed = []

    def forward(self, images):
        self.mixed.append(torch.is_autocast_enabled("cpu"))
        return super().forward(images)


def test_final_models_are_tested_in_float32_as_predict_computes(tmp_path):
    image, network = np.ones((2, 1, 4, 6), np.float32), SeesPrecision()
    case = stored(tmp_path, "one", image, image)
    evaluate(network, [case], ("disc",), amp=True)
    evaluate(network, [case], ("disc",), amp=True, final=True)
    predict(network, image)
    assert network.mixed == [True, False, False]


def test_overlaps_and_losses_of_one_pass_are_those_of_two(tmp_path):
    random = np.random.default_rng(0)
    image, label = random.normal(size=(25, 2, 6, 5)), random.integers(0, 2, size=(25, 2, 6, 5))
    cases = [
        stored(tmp_path, "long", image[:19], label[:19]),
        stored(tmp_path, "chosen", image[19:23], label[19:23], slices=(3, 1)),
        stored(tmp_path, "short", image[23:], label[23:]),
    ]
    network = AsTheyAre()
    overlaps, losses = evaluate_with_losses(network, cases, ("disc", "cup"))
    assert network.batches == [8, 8, 8, 1]
    assert overlaps == evaluate(network, cases, ("disc", "cup"))
    assert torch.equal(losses, image_losses(network, Slices(cases)))


CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("device", "known", "expected"),
    [
        (CPU, True, torch.bfloat16),
        (CPU, False, torch.bfloat16),
        (GPU, True, torch.bfloat16),
        (GPU, False, torch.float16),
    ],
)
def test_it_is_bfloat16_but_on_graphics_cards_that_do_not_know_it(monkeypatch, device, known, expected):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: known)
    assert choose_precision(device, amp=True) is expected
    assert choose_precision(device, amp=False) is None


def test_cases_that_stay_on_the_device_are_read_once(tmp_path, monkeypatch):
    """With room for its images, a device keeps cases for the models to come; results stay the same."""
    random = np.random.default_rng(0)
    arrays = [(random.normal(size=(size, 2, 6, 5)), random.integers(0, 2, size=(size, 2, 6, 5))) for size in (3, 9, 1)]
    cases = [stored(tmp_path, f"case{place}", *pair) for place, pair in enumerate(arrays)]
    expected = evaluate(AsTheyAre(), cases, ("disc", "cup"))
    monkeypatch.setattr(prediction, "fit_on_gpu", lambda size, device: True)
    assert evaluate(AsTheyAre(), cases, ("disc", "cup")) == expected
    for case in cases:
        np.save(case.image_file, np.zeros(case.image.shape, dtype=np.float32))
    assert evaluate(AsTheyAre(), cases, ("disc", "cup")) == expected
    read_again = [replace(case) for case in cases]
    assert evaluate(AsTheyAre(), read_again, ("disc", "cup")) != expected  # as on a CPU
