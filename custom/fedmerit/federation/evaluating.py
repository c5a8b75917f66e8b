"""Evaluation of models, and of neurons, as server and sites do it alike."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from fedmerit import flat
from fedmerit.capabilities.candidates import Candidates
from fedmerit.configuration.run import RunConfiguration
from fedmerit.flat import Buffers
from fedmerit.records.ledger import GENESIS, digest, digest_of_tensors
from fedmerit.training.data import Case, Samples
from fedmerit.training.networks import patch_of
from fedmerit.training.neurons import loss_increases
from fedmerit.training.overlaps import Overlap
from fedmerit.training.patches import samples_of
from fedmerit.training.prediction import evaluate, evaluate_with_losses
from fedmerit.training.statistics import estimate_statistics
from fedmerit.vectors import histogram
from fedmerit.wire.messages import Evaluated, Evaluation, Importance, ImportanceTask, Purpose

KEPT = 64  # models of which it is remembered what was found


@dataclass(frozen=True)
class Found:
    """What a model makes of some images."""

    overlaps: tuple[Overlap, ...]  # by case and label
    losses: Tensor | None = None  # (images,) soft Dice, float64, where they were asked for


class Evaluations:
    """What models make of images; of one equal to one of the last `KEPT`, on the same images, what was found then.

    Args:
        config: the run.
    """

    def __init__(self, config: RunConfiguration):
        self._labels, self._amp = config.network.labels, config.training.amp
        self._found: dict[tuple[object, ...], Found] = {}

    def of(
        self,
        network: nn.Module,
        parameters: Tensor,
        buffers: Buffers,
        cases: Sequence[Case],
        final: bool = False,
        losses: bool = False,
    ) -> Found:
        """Of the model ``parameters`` (d,) and ``buffers``, which is loaded into ``network`` where it has to be."""
        model, images = (digest(parameters), digest_of_tensors(buffers.items())), [case.image_file for case in cases]
        key = model, tuple(images), final, losses
        found = self._found.pop(key, None)
        if found is None:
            flat.load(network, parameters, buffers)
            found = self.now(network, cases, final, losses)
        self._found[key] = found
        if len(self._found) > KEPT:
            del self._found[next(iter(self._found))]
        return found

    def now(self, network: nn.Module, cases: Sequence[Case], final: bool = False, losses: bool = False) -> Found:
        """Of ``network`` as it is; ``losses`` are those of a round's models, of ``final`` ones nobody asks for any."""
        if not losses:
            return Found(tuple(evaluate(network, cases, self._labels, self._amp, final)))
        overlaps, of_images = evaluate_with_losses(network, cases, self._labels, self._amp)
        return Found(tuple(overlaps), of_images)


def evaluate_models(
    network: nn.Module,
    cases: Sequence[Case],
    task: Evaluation,
    config: RunConfiguration,
    estimate_on: Samples | None = None,
    evaluations: Evaluations | None = None,
) -> Evaluated:
    """Every model of ``task`` on ``cases``, one after the other in ``network``, equal ones once.

    With ``estimate_on``, BatchNorm statistics are not those of the task, but estimated on these images. Of models
    that ``evaluations`` remember nothing is done.
    """
    started = time.perf_counter()
    final = task.purpose is Purpose.FINAL
    known = evaluations or Evaluations(config)
    overlaps, losses = [], torch.zeros(len(task.mixtures), task.bins, dtype=torch.float64)
    for row, (mixture, shares) in enumerate(zip(task.mixtures, task.shares, strict=True)):
        model = flat.mix(task.models, mixture), flat.average_buffers(task.buffers, shares)
        if estimate_on is not None:
            flat.load(network, *model)
            estimate_statistics(network, estimate_on)
            found = known.now(network, cases, final, task.bins > 0)
        else:
            found = known.of(network, *model, cases, final, task.bins > 0)
        overlaps.append(found.overlaps)
        if found.losses is not None:
            losses[row] = histogram(found.losses, task.bins)
    return Evaluated(task.round, tuple(overlaps), losses, time.perf_counter() - started)


def candidate_task(
    candidates: Candidates,
    statistics: tuple[tuple[Buffers, ...], Tensor],
    round: int,
    split: str,
    ledger: str = GENESIS,
) -> Evaluation:
    """The evaluation of candidate models on a split, with ``statistics`` of `statistics_rules.of_candidates`."""
    buffers, shares = statistics
    return Evaluation(
        round=round,
        split=split,
        models=candidates.models,
        mixtures=candidates.mixtures,
        buffers=buffers,
        shares=shares,
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
