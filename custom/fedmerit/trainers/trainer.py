"""The seam at a site: what trains and evaluates there, whatever it does it with.

Above it are logs, budgets, ciphertexts and NVFlare, of which a trainer knows nothing; below it are images or a script.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from fedmerit.contract.flat import Buffers
from fedmerit.schema.messages import Evaluated, Evaluation, Importance, ImportanceTask, Task
from fedmerit.trainers.memory import Learned, Memory, Trained
from fedmerit.trainers.step_commitments import RoundCommitments, RoundStart, WorkFolder

Model = tuple[Tensor, Buffers]  # (d,), and its statistics


@dataclass(frozen=True)
class Holdings:
    """A site's cases, as it commits to them when it enrols."""

    cases: Mapping[str, int]  # by split
    slices: Mapping[str, int]  # by split; of training what the trainer trains on
    identities: Iterable[bytes]  # what identifies each training case; only digests of it leave the site
    preparation: str = ""  # digest of how the images were prepared; "": not known
    channel_names: tuple[str, ...] = ()  # of the images, in order; (): not stated
    modality: str = ""  # of the images; "": not stated
    secret: str = ""  # what only this site knows, for sites without a key
    samples: str = ""  # Merkle root over the salted digests of the training images and masks; "": not known


@dataclass(frozen=True)
class TrainingImages:
    """A site's training images for a plan."""

    images: int  # or patches; only those with a label if the plan prefers these
    patients: tuple[int, ...]  # images of each patient, the most first
    voxels: int  # in all images; of patches in their cases
    sides: tuple[int, ...]  # of what the network sees at once: rows and columns, or a patch

    def count_patients(self, images: int | None = None) -> int:
        """Return how many patients to expect behind so many images, drawn without replacement; None: all images.

        A patient with n of N images is missing among m with probability C(N - n, m) / C(N, m) (hypergeometric).
        """
        if images is None or images >= self.images:
            return len(self.patients)
        expected = sum(1 - _missing(count, self.images, images) for count in self.patients)
        return math.floor(expected + 1e-9)


def _missing(count: int, total: int, drawn: int) -> float:
    """Return the probability that none of ``count`` of ``total`` images is among ``drawn`` of them."""
    if drawn > total - count:
        return 0.0
    terms = math.lgamma(total - count + 1), math.lgamma(total - drawn + 1)
    others = math.lgamma(total - count - drawn + 1), math.lgamma(total + 1)
    return math.exp(sum(terms) - sum(others))


class Evaluator(Protocol):
    """An evaluator of models on images: a site's trainer, or the server on its own images."""

    def evaluate(self, task: Evaluation) -> Evaluated:
        """Return scores of every model of ``task``, from 0 to 1."""

    def measure_importance(self, task: ImportanceTask) -> Importance:
        """Return how much the loss on one split rises without each neuron of a model."""


class Trainer(Evaluator, Protocol):
    """A trainer and evaluator at one site.

    Every trainer trains. A run asks it for nothing that it is known not to do.
    """

    name: str  # of the site

    def train(self, task: Task, received: Tensor, memory: Memory | None, question: str) -> Trained:
        """Train for a round.

        Args:
            task: the server's.
            received: (d,) the model to train from.
            memory: of the round before; None if the site was away.
            question: digest of all that the answer depends on.
        """

    def holdings(self, round: int) -> Holdings:
        """Return what the site commits to when it enrols in ``round``."""

    def estimate(self, task: Evaluation) -> Evaluated:
        """Estimate BatchNorm statistics of one model on the site's training images."""

    def finish(self, task: Evaluation, given: Model, below: Path) -> Evaluated:
        """Select the site's final model, ``given`` being the one received; save it in folder ``below``."""

    def save(self, folder: Path, name: str, model: Model) -> None:
        """Save a model as ``name``.pt in a folder."""


class RepeatingTrainer(Trainer, Protocol):
    """A trainer that commits to the steps of its rounds, and repeats them."""

    work: WorkFolder | None

    @property
    def device(self) -> torch.device:
        """The device that it trains on."""

    def repeat(self, start: RoundStart, leaves: int | None) -> tuple[RoundCommitments, Learned | None]:
        """Train a round again from its start, up to a number of leaves; None: to its end."""
