"""What is refused before a run: images that a network cannot take, networks that cannot be trained."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedmerit.configuration.run import Network
from fedmerit.errors import BadInput
from fedmerit.trainers.monai_trainer import network_checks
from fedmerit.trainers.monai_trainer.network_checks import check_image_size, require_repeatable
from fedmerit.trainers.monai_trainer.networks import initial_network

DYNUNET, SWINUNETR, BASICUNET = (
    Network(1, ("disc", "cup"), architecture, width, depth)
    for architecture, width, depth in [("dynunet", 4, 3), ("swinunetr", 12, 3), ("basicunet", 4, 5)]
)


def test_the_size_of_images_follows_the_depth():
    check_image_size(DYNUNET, (8, 12))
    with pytest.raises(BadInput, match="multiples of 4"):
        check_image_size(DYNUNET, (10, 12))
    with pytest.raises(BadInput, match=r"dynunet of depth 3 needs .* run with --set depth"):
        check_image_size(DYNUNET, (10, 12))
    with pytest.raises(BadInput, match=r"swinunetr needs multiples of 32, at least 64; prepare with another --size$"):
        check_image_size(SWINUNETR, (48, 48))
    with pytest.raises(BadInput, match=r"swinunetr needs multiples of 32x32x32; choose another$"):
        check_image_size(replace(SWINUNETR, patch=(8, 16, 16)), (64, 64))


def test_a_network_of_one_depth_has_no_other():
    check_image_size(BASICUNET, (32, 32))
    with pytest.raises(BadInput, match="depth=4: basicunet has 5 levels; leave it out"):
        check_image_size(replace(BASICUNET, depth=4), (32, 32))


class Trained(nn.Module):
    """Right in evaluation; in training it gives what is wrong with it."""

    def __init__(self, in_channels, out_channels, wrong):
        super().__init__()
        self.head, self.wrong = nn.Conv2d(in_channels, out_channels, 1), wrong

    def forward(self, images):
        """Logits, or else."""
        logits = self.head(images)
        of = {
            "dict": lambda: {"logits": logits},
            "loss": lambda: (logits, logits.mean()),
            "labels": lambda: [logits, logits[:, :1]],
            "small first": lambda: [logits[..., ::2, ::2], logits],
            "empty": list,
        }
        return of[self.wrong]() if self.training else logits


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("dict", "makes dict of two images in training"),
        ("loss", r"makes \(2, 2, 16, 16\), \(\) of two images"),
        ("labels", r"makes \(2, 2, 16, 16\), \(2, 1, 16, 16\) of two images"),
        ("small first", r"makes \(2, 2, 8, 8\), \(2, 2, 16, 16\) of two images"),
        ("empty", "makes nothing of two images"),
    ],
)
def test_what_cannot_be_trained_on_is_told_before_a_run(wrong, told):
    network = Network(1, ("disc", "cup"), f"{__name__}:Trained", arguments={"wrong": wrong})
    with pytest.raises(BadInput, match=rf"{told}.*; expected logits of shape \(2, 2, 16, 16\), or a list of logits"):
        check_image_size(network, (16, 16))


class Noisy(nn.Conv2d):
    """Adds noise to its logits in training."""

    def __init__(self):
        super().__init__(1, 1, 1)

    def forward(self, images):
        logits = super().forward(images)
        return logits + torch.randn_like(logits) if self.training else logits


def test_looking_at_a_network_of_others_draws_nothing():
    before = torch.get_rng_state()
    check_image_size(Network(1, ("disc",), f"{__name__}:Noisy"), (32, 32))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("architecture", "arguments", "told"),
    [
        ("unet", {"dropout": 0.2}, "drops 0.2 at random"),
        ("segresnet", {"dropout_prob": 0.1}, "drops 0.1 at random"),
        ("swinunetr", {"dropout_path_rate": 0.3}, "at random"),
    ],
)
def test_layers_that_drop_at_random_are_refused(architecture, arguments, told):
    plain = Network(1, ("disc",), architecture, width=12 if architecture == "swinunetr" else 8)
    drops = replace(plain, arguments=arguments)
    with pytest.raises(BadInput, match=told):
        require_repeatable(drops, initial_network(drops, 0))
    require_repeatable(plain, initial_network(plain, 0))


def test_sizes_are_looked_at_without_building_a_network(monkeypatch):
    """Of MONAI's own: every site asks."""
    monkeypatch.setattr(network_checks, "initial_network", None)
    check_image_size(DYNUNET, (8, 12))
