"""Evaluation of models and neurons, as server and sites both do it, and the BatchNorm statistics it uses.

`statistics_rule` is the one place that decides by the run's ``statistics``. It names the rule of a round for the
models that sites are sent, for FedCE's model without a site and for candidates alike; `candidate_statistics` applies
it to models that nobody trained. n sites.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from fedmerit.contract import flat
from fedmerit.contract.capabilities import Candidates
from fedmerit.contract.flat import Buffers
from fedmerit.contract.method import Method
from fedmerit.contract.vectors import histogram
from fedmerit.evidence.digests import digest, tensors_digest
from fedmerit.evidence.ledger import GENESIS
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.configuration.settings import Training
from fedmerit.schema.messages import Evaluated, Evaluation, Importance, ImportanceTask, Purpose
from fedmerit.schema.scores import Overlap
from fedmerit.schema.site_folder import Case
from fedmerit.trainers.monai.batch_norm import estimate_statistics
from fedmerit.trainers.monai.networks import patch_size
from fedmerit.trainers.monai.neurons import loss_increases
from fedmerit.trainers.monai.patches import build_samples
from fedmerit.trainers.monai.prediction import evaluate, evaluate_with_losses
from fedmerit.trainers.monai.samples import Samples


def statistics_rule(training: Training, round: int, by_outcome: str = "models") -> str:
    """The rule for the statistics that ``round`` gives.

    Args:
        by_outcome: `Outcome.statistics`, which ``statistics=method`` follows.

    Returns:
        "models", "own", "initial" as in `Outcome.statistics`; "mean" by data share; "weights"; "recalibrated"; or
        "frozen": those of the round before.
    """
    rule = by_outcome if training.statistics == "method" else training.statistics
    if rule == "shared" or (rule == "frozen" and round < training.frozen_from):
        rule = "mean"
    if by_outcome == "initial" and rule != "frozen":  # sites start again: no model has what they trained
        return "initial"
    return rule


def estimates_statistics(training: Training) -> bool:
    """Whether models that nobody trained are evaluated with statistics estimated on the evaluating side's images."""
    return training.statistics == "recalibrated"


@dataclass(frozen=True)
class RoundStatistics:
    """The statistics to choose from when a round's candidates are evaluated."""

    trained: Sequence[Buffers]  # (n,) of each site's reply; empty ones of absent sites
    sent_out: Buffers  # the mean, before this round's
    held: Sequence[Buffers] | None = None  # (n,) of each site's model when it was sent; None: all had those sent out
    weights: Tensor | None = None  # (n,) of the round's aggregation; None: not known yet


def candidate_statistics(
    candidates: Candidates, there: RoundStatistics, rule: str, evaluator: int | None = None
) -> tuple[tuple[Buffers, ...], Tensor]:
    """The statistics that k candidates are evaluated with.

    A candidate has the mean of its sites' trained ones by `Candidates.shares`, so one site's model has that site's; by
    rule "weights" the mean by the sites' weights, once these are known; by rule "own", for several sites, those that
    the evaluating site trained; by rule "frozen" those sent out. A candidate that no site has a share in has, by rule
    "own", also the evaluating site's; else those sent out, or those held by `Candidates.received`.

    Args:
        candidates: the models.
        there: the statistics there are.
        rule: of `statistics_rule`.
        evaluator: the row of the site that evaluates them; None: the server, on its own images.

    Returns:
        b sets of statistics, and (k, b) float64 the shares to mix them by, rows sum to 1.
    """
    shares = _by_rule(candidates, there, rule, evaluator)
    held, received = list(there.held or ()), torch.zeros(len(shares), len(there.held or ()), dtype=torch.float64)
    if there.held is not None and candidates.received is not None:
        received = candidates.received * ~shares.any(dim=1, keepdim=True)
    left = ~(shares.any(dim=1, keepdim=True) | received.any(dim=1, keepdim=True))
    shares = torch.cat([shares, received, left.double()], dim=1)
    used = shares.any(dim=0).nonzero().flatten().tolist()
    sets = [*there.trained, *held, there.sent_out]
    return tuple(sets[place] for place in used), shares[:, used]


def _by_rule(candidates: Candidates, there: RoundStatistics, rule: str, evaluator: int | None) -> Tensor:
    """(k, n) shares of the sites' trained statistics; rows of 0: none of them."""
    shares = candidates.shares
    if rule == "frozen":
        return torch.zeros_like(shares)
    if rule == "weights" and there.weights is not None:
        weighed = there.weights.nan_to_num(0.0) * (shares > 0)
        totals = weighed.sum(dim=1, keepdim=True)
        return torch.where(totals > 0, weighed / totals.where(totals > 0, 1.0), shares)
    if rule == "own" and evaluator is not None and there.trained[evaluator]:
        keeps = (shares > 0).sum(dim=1) == 1
        if candidates.received is not None:  # models that sites received, with the statistics sent with them
            keeps |= candidates.received.any(dim=1)
        own = torch.eye(shares.shape[1], dtype=torch.float64)[evaluator]
        return shares.where(keeps[:, None], own)
    return shares


def candidate_statistics_rule(training: Training, round: int, method: Method) -> str:
    """`statistics_rule` before a round has an outcome."""
    return statistics_rule(training, round, "own" if method.own_statistics else "models")


KEPT = 64  # last evaluations that are remembered


@dataclass(frozen=True)
class ModelEvaluation:
    """The results of a model on some images."""

    overlaps: tuple[Overlap, ...]  # by case and label
    losses: Tensor | None = None  # (images,) soft Dice, float64, if they were asked for


class Evaluations:
    """Evaluates models, and remembers the last `KEPT` results by model and images."""

    def __init__(self, config: RunConfiguration):
        self._labels, self._amp = config.network.labels, config.training.amp
        self._found: dict[tuple[object, ...], ModelEvaluation] = {}

    def evaluate(
        self,
        network: nn.Module,
        parameters: Tensor,
        buffers: Buffers,
        cases: Sequence[Case],
        final: bool = False,
        losses: bool = False,
    ) -> ModelEvaluation:
        """Results of the model ``parameters`` (d,) and ``buffers``, which is loaded into ``network`` if necessary."""
        model, images = (digest(parameters), tensors_digest(buffers.items())), [case.image_file for case in cases]
        key = model, tuple(images), final, losses
        found = self._found.pop(key, None)
        if found is None:
            flat.load(network, parameters, buffers)
            found = self.evaluate_now(network, cases, final, losses)
        self._found[key] = found
        if len(self._found) > KEPT:
            del self._found[next(iter(self._found))]
        return found

    def evaluate_now(
        self, network: nn.Module, cases: Sequence[Case], final: bool = False, losses: bool = False
    ) -> ModelEvaluation:
        """Results of ``network``; only a round's models have ``losses``, not ``final`` ones."""
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
    final = task.purpose is Purpose.FINAL
    known = evaluations or Evaluations(config)
    overlaps, losses = [], torch.zeros(len(task.mixtures), task.bins, dtype=torch.float64)
    for row, (mixture, shares) in enumerate(zip(task.mixtures, task.shares, strict=True)):
        model = flat.mix(task.models, mixture), flat.average_buffers(task.buffers, shares)
        if estimate_on is not None:
            flat.load(network, *model)
            estimate_statistics(network, estimate_on)
            found = known.evaluate_now(network, cases, final, task.bins > 0)
        else:
            found = known.evaluate(network, *model, cases, final, task.bins > 0)
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
    """The evaluation of candidate models on a split, with ``statistics`` of `candidate_statistics`."""
    models, mixtures, bins = candidates.models, candidates.mixtures, candidates.bins
    return Evaluation(round, split, models, mixtures, *statistics, bins, ledger=ledger)


def measure_importance(network: nn.Module, cases: Sequence[Case], task: ImportanceTask) -> Importance:
    """Importance of the neurons of ``task``'s model on images evenly spaced over ``cases``."""
    started = time.perf_counter()
    flat.load(network, task.model, task.buffers)
    samples = build_samples(cases, patch_size(network))
    number = min(task.images, len(samples))
    chosen = Subset(samples, [place * len(samples) // number for place in range(number)])
    increases = loss_increases(network, chosen, task.order)
    return Importance(task.round, increases, number, time.perf_counter() - started)
