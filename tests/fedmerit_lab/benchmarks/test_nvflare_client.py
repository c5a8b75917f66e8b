"""The client of the benchmarks' peer: its network, its data, its Dice."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from run_factory import make_sites
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedmerit.configuration.run import Network
from fedmerit.trainers.monai_trainer.data import open_sites
from fedmerit.trainers.monai_trainer.networks import build_network
from fedmerit_lab.benchmarks.nvflare_client import PeerNetwork, in_memory, validate


def test_the_network_is_the_runs():
    description = Network(in_channels=1, labels=("disc", "cup"), architecture="unet", width=2, depth=2)
    peer, own = PeerNetwork(json.dumps(asdict(description))), build_network(description)
    own.load_state_dict({name.removeprefix("network."): tensor for name, tensor in peer.state_dict().items()})
    images = torch.randn(3, 1, 16, 16)
    logits = peer.eval()(images)
    assert logits.shape == (3, 2, 16, 16)
    torch.testing.assert_close(logits, own.eval()(images))


def test_all_slices_of_a_split_are_in_memory(tmp_path):
    (site,) = open_sites(make_sites(tmp_path / "sites", ("Alder",), size=16))
    images, masks = in_memory(site.cases("training")).tensors
    assert images.shape == masks.shape == (15, 1, 16, 16)
    np.testing.assert_array_equal(images[3:6], np.load(site.path / "training1_image.npy"))
    np.testing.assert_array_equal(masks[3:6], np.load(site.path / "training1_label.npy"))


def test_dice_is_of_all_images_together():
    """Above 0 is predicted: 3 pixels of which 2 are in masks of 4 in all, over two batches: 4 / 7."""
    images = torch.tensor([[1.0, 2.0, -1.0], [-1.0, -1.0, 0.5], [-1.0, -1.0, -1.0]])[:, None, None]
    masks = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0]])[:, None, None]
    network = nn.Identity().train()
    assert validate(network, DataLoader(TensorDataset(images, masks), batch_size=2)) == pytest.approx(4 / 7)
    assert not network.training
    nothing = TensorDataset(-images.abs(), torch.zeros_like(masks))
    assert validate(network, DataLoader(nothing, batch_size=2)) == 1
