from dataclasses import replace

import numpy as np
import pytest
import torch

from fedmerit.errors import BadInput
from fedmerit.schema.configuration.settings import Network, Training
from fedmerit.schema.site_folder import Case
from fedmerit.trainers.factory import build_network, initial_network
from fedmerit.trainers.monai.augmentation import STRONG, Augmenter
from fedmerit.trainers.monai.local_training import train
from fedmerit.trainers.monai.network_checks import check_image_size
from fedmerit.trainers.monai.networks import estimate_cost, patch_size
from fedmerit.trainers.monai.neurons import layers, loss_increases
from fedmerit.trainers.monai.prediction import evaluate, predict
from fedmerit.trainers.monai.samples import Patches, build_samples

NETWORK = Network(1, ("organ",), width=4, depth=3, patch=(8, 16, 16))


@pytest.fixture
def case(tmp_path):
    """A ball of 1 in a volume of 11 slices of 32 x 24, noise around it."""
    generator = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(np.arange(11), np.arange(32), np.arange(24), indexing="ij"))
    ball = ((grid - np.array([5, 14, 12])[:, None, None, None]) ** 2 / np.array([9, 49, 49])[:, None, None, None]).sum(
        0
    ) < 1
    np.save(tmp_path / "image.npy", (ball + 0.2 * generator.standard_normal(ball.shape))[:, None].astype(np.float32))
    np.save(tmp_path / "label.npy", ball[:, None].astype(np.uint8))
    return Case("case", "patient", tmp_path / "image.npy", tmp_path / "label.npy", spacing=(3.0, 1.0, 1.0))


def test_patches_cover_every_voxel_of_the_slices_to_train_on(case):
    for some in (case, replace(case, slices=(0, 2, 4, 5, 6, 7, 8, 9, 10))):
        seen = np.zeros(case.label.shape, bool)
        patches = Patches([some], NETWORK.patch)
        for (_, place), (image, label) in zip(patches.index, patches, strict=True):
            positions = np.arange(11)[place[0]] if some.slices is None else np.array(some.slices)[place[0]]
            cut = case.image[positions, :, place[1], place[2]].swapaxes(0, 1)
            assert torch.equal(image, torch.from_numpy(cut))
            assert label.shape == (1, 8, 16, 16)
            seen[positions, :, place[1], place[2]] = True
        assert seen[list(some.slices or range(11))].all()
    assert seen[[1, 3]].sum() == 0
    assert len(Patches([replace(case, slices=())], NETWORK.patch)) == 0


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_step_sees_patches_anywhere_in_the_volume_or_about_the_organ(case, share):
    some = replace(case, slices=tuple(range(1, 11)))
    patches = Patches([some], (4, 6, 6))
    order = torch.Generator().manual_seed(0)
    images, masks = patches.draw(torch.zeros(200, dtype=torch.int64), torch.device("cpu"), share, order)
    again = patches.draw(torch.zeros(200, dtype=torch.int64), torch.device("cpu"), share, order.manual_seed(0))
    assert torch.equal(images, again[0])
    windows = np.lib.stride_tricks.sliding_window_view(case.image[1:, 0], (4, 6, 6)).reshape(-1, 4 * 36)
    known = {one.tobytes() for one in windows}
    seen = {one.numpy().tobytes() for one in images.reshape(200, -1)}
    assert seen <= known
    assert len(seen) > 100
    shown = masks.flatten(1).any(dim=1).double().mean()
    assert shown == 1 if share else 0 < shown < 0.9


def test_a_volume_of_fewer_slices_than_a_patch_is_padded(case):
    image, label = Patches([replace(case, slices=(3, 4))], (8, 32, 24))[0]
    assert image.shape == label.shape == (1, 8, 32, 24)
    assert torch.equal(image[:, 3:5], torch.from_numpy(np.array(case.image[3:5]).swapaxes(0, 1)))
    assert not image[:, [0, 1, 2, 5, 6, 7]].any()


def test_a_network_of_volumes_learns_a_ball_and_predicts_the_whole_volume(case):
    network = initial_network(NETWORK, 0)
    samples = build_samples([case], NETWORK.patch)
    settings = Training(batch_size=2, epochs=8, lr=1e-2, augmentation="light")
    before, after = (train(network, samples, settings, settings.lr, seed) for seed in (0, 1))
    assert after < before
    (overlap,) = evaluate(network, [case], NETWORK.labels, final=True)
    mask = predict(network, case.image)
    assert mask.shape == case.label.shape
    assert overlap.true_positives == (mask & case.label.astype(bool)).sum()
    assert overlap.dice > 0.8
    assert overlap.surface.unit == "mm"


def test_all_slices_of_a_patch_move_alike():
    image = torch.rand(1, 1, 1, 16, 16, generator=torch.Generator().manual_seed(0)).expand(2, 1, 4, 16, 16)
    recipe = replace(STRONG, noise=None)
    images, masks = Augmenter(recipe, 3, torch.device("cpu"))(image.clone(), (image > 0.5).float())
    assert images.shape == masks.shape == image.shape
    assert not torch.equal(images, image)
    for moved in (images, masks):
        assert torch.equal(moved, moved[:, :, :1].expand_as(moved))


def test_a_short_side_is_halved_when_the_others_have_come_down_to_it():
    network = Network(1, ("organ",), width=4, depth=5, patch=(16, 64, 64))
    built = build_network(network)
    kernels = [
        tuple(block.conv1.conv.kernel_size) for block in (built.input_block, *built.downsamples, built.bottleneck)
    ]
    strides = [tuple(block.conv1.conv.stride) for block in (built.input_block, *built.downsamples, built.bottleneck)]
    assert kernels == [(1, 3, 3), (1, 3, 3), (3, 3, 3), (3, 3, 3), (3, 3, 3)]
    assert strides == [(1, 1, 1), (1, 2, 2), (1, 2, 2), (2, 2, 2), (2, 2, 2)]
    assert patch_size(built) == network.patch
    assert estimate_cost(network, (128, 128)).operations > 0


@pytest.mark.parametrize(
    ("patch", "reported"),
    [((16, 64), "three sides"), ((16, 60, 64), "multiples of 4x8x16"), ((18, 64, 64), "multiples of 4x16x16")],
)
def test_a_patch_that_the_network_cannot_halve_is_refused(patch, reported):
    with pytest.raises(BadInput, match=reported):
        check_image_size(Network(1, ("organ",), depth=5, patch=patch), (128, 128))


@pytest.mark.parametrize("order", ["exact", "taylor"])
def test_neurons_of_volumes_have_an_importance(case, order):
    network = build_network(NETWORK)
    increases = loss_increases(network, build_samples([case], NETWORK.patch), order)
    assert len(increases) == sum(layer.count for layer in layers(network))
    assert increases.any()
