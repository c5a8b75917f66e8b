"""What a method is told of the network."""

import torch
from torch import nn

from fedmerit.federation.network_layout import read_layout


class Embedded(nn.Module):
    """As a network of others may be: it takes images of one size alone."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(1, 4, 1)
        self.places = nn.Parameter(torch.zeros(4, 128, 128))
        self.head = nn.Conv2d(4, 1, 1)

    def forward(self, images):
        return self.head(self.embed(images) + self.places)


def test_no_image_is_sent_through_a_network_whose_neurons_nobody_allocates():
    layout = read_layout(Embedded())
    assert (layout.owners == -1).all()
    assert layout.owners.shape == (sum(layout.tensor_sizes),)


def test_a_network_without_convolutions_has_no_neurons():
    network = nn.Linear(3, 2)
    assert (read_layout(network, with_neurons=True).owners == -1).all()
    assert read_layout(network).outputs.numel() == 0
