"""The attack rebuilds an image if a plan gives it away; its repetition of the local steps is the product's training."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from run_factory import make_sites

from fedmerit.errors import BadInput
from fedmerit.schema.site_folder import open_sites
from fedmerit.trainers.monai.local_training import build_loss
from fedmerit_lab.privacy.gradient_inversion import (
    CASES,
    ImageSearch,
    LocalSteps,
    attack,
    best_likeness,
    connected_network,
    measure,
    summarise,
    train_round,
)


@pytest.fixture
def sites(tmp_path):
    """No two images alike: those of `make_sites` are the same in every split."""
    root = make_sites(tmp_path / "sites", ("Alder", "Birch"), size=32)
    random = np.random.default_rng(0)
    for file in sorted(root.glob("*/*_image.npy")):
        np.save(file, random.normal(size=np.load(file).shape).astype(np.float32))
    return root


def test_a_fully_connected_first_layer_gives_the_image_away(sites):
    training = train_round(CASES["connected-read"], open_sites(sites)[0], seed=0)
    (row,) = attack(CASES["connected-read"], training, "site", "random", ImageSearch(1, 0.0), seed=0)
    assert row["correlation"] > 0.9999
    assert row["start_correlation"] < 0.1


def test_optimised_images_are_those_of_the_update_too():
    draws = torch.Generator().manual_seed(0)
    image, start = (torch.randn(1, 1, 8, 8, generator=draws) for _ in range(2))
    mask = (torch.rand(1, 1, 8, 8, generator=draws) > 0.5).float()
    steps = LocalSteps(connected_network(image, mask, seed=0), build_loss("dice_ce"), "sgd", 1e-3)
    sent = steps.update([(image, mask)]).detach()
    (found,), distance = ImageSearch(200, variation=0.0).reconstruct(steps, sent, [start], [mask], (-4, 4))
    assert best_likeness(image[0], list(start))["correlation"] < 0.3
    assert best_likeness(image[0], list(found))["correlation"] > 0.999
    assert distance < 1e-3


@pytest.mark.parametrize("case", ["sgd-2", "default-patient"])
def test_the_attacker_repeats_the_site_s_own_steps(sites, case):
    """Of plain SGD and of Adam with augmentation: the same images and masks give the update that was sent."""
    training = train_round(replace(CASES[case], patients=1), open_sites(sites)[0], seed=0)
    noise = [(torch.randn_like(images), masks) for images, masks in training.batches]
    assert torch.cosine_similarity(training.steps.update(noise).detach(), training.update, dim=0) < 0.9
    for _ in range(2):  # and every time from the weights that the site received
        repeated = training.steps.update(training.batches).detach()
        assert torch.cosine_similarity(repeated, training.update, dim=0) > 0.99


def test_likeness_is_that_of_the_best_after_scale_and_shift():
    image = torch.rand(1, 16, 16, generator=torch.Generator().manual_seed(0))
    same = best_likeness(image, [torch.zeros_like(image), 3 - 2 * image])
    assert same["ssim"] == pytest.approx(1)
    assert same["psnr"] > 100
    assert same["correlation"] == 0  # its sign is kept: the negative is worse than a constant


def test_a_measured_attack_is_not_repeated_and_the_control_finds_nothing(sites, tmp_path):
    begun = []
    table = measure(tmp_path / "out", sites, ["connected-read"], [0, 1], ImageSearch(1, 0.0), begun.append)
    again = measure(tmp_path / "out", sites, ["connected-read"], [0, 1], ImageSearch(1, 0.0), pytest.fail)
    pd.testing.assert_frame_equal(table, again)
    summary = summarise(table).set_index(["update", "start"])
    assert len(begun) == 6
    assert summary.loc[("site", "random"), "matches"] == 2
    assert summary.loc[("random", "random"), "matches"] == 0
    with pytest.raises(BadInput, match="--cases 'other': unknown; expected one of connected-read"):
        measure(tmp_path / "out", sites, ["other"], [0], ImageSearch(1, 0.0), pytest.fail)
