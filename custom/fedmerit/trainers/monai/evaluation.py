"""Evaluation of models and neurons on images, and BatchNorm statistics estimated on images without their masks."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader, Dataset, Subset

from fedmerit.contract import flat
from fedmerit.contract.flat import Buffers
from fedmerit.contract.vectors import histogram
from fedmerit.evidence.digests import digest, tensors_digest
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.messages import Evaluated, Evaluation, Importance, ImportanceTask, Purpose
from fedmerit.schema.scores import Overlap
from fedmerit.schema.site_folder import Case
from fedmerit.trainers.monai.cuda_graphs import captured_passes
from fedmerit.trainers.monai.networks import patch_size
from fedmerit.trainers.monai.neurons import loss_increases
from fedmerit.trainers.monai.prediction import evaluate, evaluate_softly, evaluate_with_losses
from fedmerit.trainers.monai.samples import Samples, build_samples

STATISTICS_BATCH = 16  # slices whose mean and variance are one of those averaged


def has_statistics(network: nn.Module) -> bool:
    """Return whether it evaluates with statistics remembered from training."""
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


KEPT = 64  # last evaluations that are remembered


@dataclass(frozen=True)
class ModelEvaluation:
    """The results of a model on some images."""

    overlaps: tuple[Overlap, ...]  # by case and label
    losses: Tensor | None = None  # (images,) soft Dice, float64, if they were asked for


class Evaluations:
    """An evaluator of models that remembers the last `KEPT` results by model and images."""

    def __init__(self, config: RunConfiguration):
        self._labels, self._amp, self._capture = config.network.labels, config.training.amp, config.training.capture
        self._found: dict[tuple[object, ...], ModelEvaluation] = {}

    def evaluate(
        self,
        network: nn.Module,
        parameters: Tensor,
        buffers: Buffers,
        cases: Sequence[Case],
        final: bool = False,
        losses: bool = False,
        soft: bool = False,
    ) -> ModelEvaluation:
        """Return results of the model ``parameters`` (d,) and ``buffers``, which is loaded into ``network`` if
        necessary.
        """
        model, images = (digest(parameters), tensors_digest(buffers.items())), [case.image_file for case in cases]
        key = model, tuple(images), final, losses, soft
        found = self._found.pop(key, None)
        if found is None:
            flat.load(network, parameters, buffers)
            found = self.evaluate_now(network, cases, final, losses, soft)
        self._found[key] = found
        if len(self._found) > KEPT:
            del self._found[next(iter(self._found))]
        return found

    def evaluate_now(
        self, network: nn.Module, cases: Sequence[Case], final: bool = False, losses: bool = False, soft: bool = False
    ) -> ModelEvaluation:
        """Return results of ``network``; ``final`` models have neither ``losses`` nor ``soft`` scores."""
        with captured_passes(network) if self._capture else nullcontext():
            if soft:
                return ModelEvaluation(tuple(evaluate_softly(network, cases, self._labels, self._amp)))
            if not losses:
                return ModelEvaluation(tuple(evaluate(network, cases, self._labels, self._amp, final)))
            overlaps, of_images = evaluate_with_losses(network, cases, self._labels, self._amp)
            return ModelEvaluation(tuple(overlaps), of_images)


def evaluate_models(
    network: nn.Module,
    cases: Sequence[Case],
    task: Evaluation,
    config: RunConfiguration,
    estimate_on: Samples | None = None,
    evaluations: Evaluations | None = None,
) -> Evaluated:
    """Evaluate every model of ``task`` on ``cases``, one after the other in ``network``, equal ones once.

    With ``estimate_on``, BatchNorm statistics are not those of the task, but estimated on these images. Results that
    ``evaluations`` remember are not computed again.
    """
    started = time.perf_counter()
    kind = task.purpose is Purpose.FINAL, task.bins > 0, task.soft
    known = evaluations or Evaluations(config)
    overlaps, losses = [], torch.zeros(len(task.mixtures), task.bins, dtype=torch.float64)
    for row, (mixture, shares) in enumerate(zip(task.mixtures, task.shares, strict=True)):
        model = flat.mix(task.models, mixture), flat.average_buffers(task.buffers, shares)
        if estimate_on is not None:
            flat.load(network, *model)
            estimate_statistics(network, estimate_on)
            found = known.evaluate_now(network, cases, *kind)
        else:
            found = known.evaluate(network, *model, cases, *kind)
        overlaps.append(found.overlaps)
        if found.losses is not None:
            losses[row] = histogram(found.losses, task.bins)
    return Evaluated(task.round, tuple(overlaps), losses, time.perf_counter() - started)


def measure_importance(network: nn.Module, cases: Sequence[Case], task: ImportanceTask) -> Importance:
    """Return importance of the neurons of ``task``'s model on images evenly spaced over ``cases``."""
    started = time.perf_counter()
    flat.load(network, task.model, task.buffers)
    samples = build_samples(cases, patch_size(network))
    number = min(task.images, len(samples))
    chosen = Subset(samples, [place * len(samples) // number for place in range(number)])
    increases = loss_increases(network, chosen, task.order)
    return Importance(task.round, increases, number, time.perf_counter() - started)
