"""BatchNorm statistics estimated again."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedmerit.configuration.run import Network
from fedmerit.trainers.monai_trainer.batch_norm import estimate_statistics, has_statistics
from fedmerit.trainers.monai_trainer.networks import initial_network


def images(count=40):
    return 3 + 2 * torch.randn(count, 1, 16, 16, generator=torch.Generator().manual_seed(0))


def test_statistics_are_those_of_the_images_whatever_was_remembered():
    network = nn.Sequential(nn.BatchNorm2d(1))
    network[0].running_mean.fill_(100)
    rows = images(48)  # three batches of one size: the mean of their means is that of all
    estimate_statistics(network, TensorDataset(rows, rows))
    torch.testing.assert_close(network[0].running_mean, rows.mean().view(1))
    torch.testing.assert_close(network[0].running_var, rows.var().view(1), rtol=1e-2, atol=0)
    assert network[0].momentum == 0.1  # as it was
    assert not network.training


def test_weights_stay_and_the_order_of_runs_does_not_matter():
    network = initial_network(Network(1, ("disc",), "unet", 2, 3), 0)
    weights = {name: value.clone() for name, value in network.named_parameters()}
    data = TensorDataset(images(), images())
    estimate_statistics(network, data)
    first = {name: value.clone() for name, value in network.named_buffers()}
    estimate_statistics(network, data)
    assert all(torch.equal(value, first[name]) for name, value in network.named_buffers())
    assert all(torch.equal(value, weights[name]) for name, value in network.named_parameters())


def test_without_batch_norm_there_is_nothing_to_estimate():
    network = initial_network(Network(1, ("disc",), "dynunet", 2, 3), 0)
    assert not has_statistics(network)
    estimate_statistics(network, TensorDataset(images(2), images(2)))
    assert has_statistics(initial_network(Network(1, ("disc",), "unet", 2, 3), 0))
