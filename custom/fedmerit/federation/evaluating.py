"""Evaluation of models, and of neurons, as server and sites do it alike."""

import time
from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.data import Subset

from fedmerit import flat
from fedmerit.capabilities.candidates import Candidates
from fedmerit.configuration.run import RunConfiguration
from fedmerit.flat import Buffers
from fedmerit.records.ledger import GENESIS
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


def candidate_task(
    candidates: Candidates,
    trained: Sequence[Buffers],
    sent_out: Buffers,
    held: Sequence[Buffers] | None,
    round: int,
    split: str,
    ledger: str = GENESIS,
) -> Evaluation:
    """The evaluation of candidate models on a split.

    Each has the mean of its sites' ``trained`` BatchNorm statistics; one that no site has a share in those that were
    ``sent_out``, or of those that sites ``held`` the mean by `Candidates.received`.
    """
    beside, shares = [sent_out], (~candidates.shares.any(dim=1, keepdim=True)).double()
    if held is not None and candidates.received is not None:
        beside, shares = list(held), candidates.received
    shares = torch.cat([candidates.shares, shares], dim=1)
    used = shares.any(dim=0).nonzero().flatten().tolist()
    there = [*trained, *beside]
    return Evaluation(
        round=round,
        split=split,
        models=candidates.models,
        mixtures=candidates.mixtures,
        buffers=tuple(there[place] for place in used),
        shares=shares[:, used],
        bins=candidates.bins,
        ledger=ledger,
    )


def measure_importance(network: nn.Module, cases: Sequence[Case], task: ImportanceTask) -> Importance:
    """The neurons of the model of ``task`` on images evenly spaced over ``cases``."""
    started = time.perf_counter()
    flat.load(network, task.model, task.buffers)
    samples = samples_of(cases, patch_of(network))
    number = min(task.images, len(samples))
    chosen = Subset(samples, [place * len(samples) // number for place in range(number)])
    increases = loss_increases(network, chosen, task.order)
    return Importance(task.round, increases, number, time.perf_counter() - started)
