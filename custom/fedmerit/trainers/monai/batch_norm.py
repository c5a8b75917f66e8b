"""BatchNorm statistics estimated again: it needs no labels, so an unseen hospital can do it too."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader, Dataset

STATISTICS_BATCH = 16  # slices whose mean and variance are one of those averaged


def has_statistics(network: nn.Module) -> bool:
    """Whether it evaluates with statistics remembered from training."""
    return bool(_layers(network))


@torch.no_grad()
def estimate_statistics(network: nn.Module, images: Dataset[tuple[Tensor, Tensor]]) -> None:
    """Set the running statistics to those of one pass over ``images`` in training mode: cumulative averages."""
    layers = _layers(network)
    if not layers:
        return
    device = next(network.parameters()).device
    with _cumulative(layers):
        network.train()
        for batch, _ in DataLoader(images, batch_size=STATISTICS_BATCH):
            network(batch.to(device))
    network.eval()


def _layers(network: nn.Module) -> list[_BatchNorm]:
    return [module for module in network.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]


@contextmanager
def _cumulative(layers: list[_BatchNorm]) -> Iterator[None]:
    before = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # torch's word for it
    try:
        yield
    finally:
        for layer, momentum in zip(layers, before, strict=True):
            layer.momentum = momentum
