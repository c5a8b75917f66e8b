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
from fedmerit.training.data import Case, Slices
from fedmerit.training.neurons import loss_increases
from fedmerit.training.prediction import evaluate, image_losses
from fedmerit.training.statistics import estimate_statistics
from fedmerit.vectors import histogram
from fedmerit.wire.messages import Evaluated, Evaluation, Importance, ImportanceTask


def evaluate_models(
    network: nn.Module,
    cases: Sequence[Case],
    task: Evaluation,
    config: RunConfiguration,
    estimate_on: Slices | None = None,
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
            of_images = image_losses(network, Slices(cases), config.training.amp)
            losses[row] = histogram(of_images, task.bins)
    return Evaluated(task.round, tuple(overlaps), losses, time.perf_counter() - started)


def candidate_task(
    candidates: Candidates,
    statistics: Sequence[Buffers],
    sent_out: Buffers,
    round: int,
    split: str,
    ledger: str = GENESIS,
) -> Evaluation:
    """The evaluation of candidate models on a split, each with the mean of its sites' trained BatchNorm ``statistics``.

    One that no site has a share in gets those that were ``sent_out``.
    """
    of_nobody = (~candidates.shares.any(dim=1, keepdim=True)).double()
    shares = torch.cat([candidates.shares, of_nobody], dim=1)
    used = shares.any(dim=0).nonzero().flatten().tolist()
    there = [*statistics, sent_out]
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
    slices = Slices(cases)
    number = min(task.images, len(slices))
    chosen = Subset(slices, [place * len(slices) // number for place in range(number)])
    increases = loss_increases(network, chosen, task.order)
    return Importance(task.round, increases, number, time.perf_counter() - started)
