"""Evaluation of models, and of neurons, as server and sites do it alike."""

import time
from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.data import Subset

from fedmerit import flat
from fedmerit.configuration.run import RunConfiguration
from fedmerit.training.data import Case, Samples
from fedmerit.training.networks import patch_of
from fedmerit.training.neurons import loss_increases
from fedmerit.training.patches import samples_of
from fedmerit.training.prediction import evaluate, image_losses
from fedmerit.training.statistics import estimate_statistics
from fedmerit.vectors import histogram
from fedmerit.wire.messages import Evaluated, Evaluation, Importance, ImportanceTask


def evaluate_models(
    network: nn.Module,
    cases: Sequence[Case],
    task: Evaluation,
    config: RunConfiguration,
    estimate_on: Samples | None = None,
) -> Evaluated:
    """Every model of ``task`` on ``cases``, one after the other in ``network``.

    With ``estimate_on``, BatchNorm statistics are not those of the task, but estimated on these images.
    """
    started = time.perf_counter()
    overlaps, losses = [], torch.zeros(len(task.mixtures), task.bins, dtype=torch.float64)
    for row, (mixture, shares) in enumerate(zip(task.mixtures, task.shares, strict=True)):
        flat.load(network, flat.mix(task.models, mixture), flat.average_buffers(task.buffers, shares))
        if estimate_on is not None:
            estimate_statistics(network, estimate_on)
        overlaps.append(tuple(evaluate(network, cases, config.network.labels, config.training.amp, task.final)))
        if task.bins:
            of_images = image_losses(network, samples_of(cases, config.network.patch), config.training.amp)
            losses[row] = histogram(of_images, task.bins)
    return Evaluated(task.round, tuple(overlaps), losses, time.perf_counter() - started)


def measure_importance(network: nn.Module, cases: Sequence[Case], task: ImportanceTask) -> Importance:
    """The neurons of the model of ``task`` on images evenly spaced over ``cases``."""
    started = time.perf_counter()
    flat.load(network, task.model, task.buffers)
    samples = samples_of(cases, patch_of(network))
    number = min(task.images, len(samples))
    chosen = Subset(samples, [place * len(samples) // number for place in range(number)])
    increases = loss_increases(network, chosen, task.order)
    return Importance(task.round, increases, number, time.perf_counter() - started)
