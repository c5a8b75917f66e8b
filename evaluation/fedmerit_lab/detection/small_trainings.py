"""Small real trainings: n sites that each train one hidden layer on images of their own, all at once.

Images of `SIDE` x `SIDE` pixels are of `CLASSES` classes: a smooth template of the class, a smooth deviation of the
image, white noise. A site differs from the others by its mix of classes and its scanner. Ten steps of SGD for all sites
take milliseconds, so that hundreds of federations can be trained.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

SIDE, CLASSES, HIDDEN, WAVES = 12, 10, 24, 5
PIXELS = SIDE * SIDE
SIZES = (PIXELS * HIDDEN, HIDDEN, HIDDEN * CLASSES, CLASSES)  # of the parts of the vector
SIZE = sum(SIZES)  # d
VALIDATION = 40  # images of each site
LEAST_PROBABILITY = 1e-3  # of an image's class: less counts as this


@dataclass(frozen=True)
class SiteData:
    """A site's images, training ones first."""

    images: NDArray[np.float32]  # (images, PIXELS)
    labels: NDArray[np.int64]  # (images,)
    validation: NDArray[np.float32]  # (VALIDATION, PIXELS)
    validation_labels: NDArray[np.int64]
    batch_size: int = 16

    @property
    def count(self) -> int:
        """The training images."""
        return len(self.labels)

    def pick(self, chosen: NDArray[np.int64]) -> "SiteData":
        """Return with these training images only."""
        return replace(self, images=self.images[chosen], labels=self.labels[chosen])


def smooth_fields(count: int, random: Generator) -> NDArray[np.float64]:
    """Return (count, PIXELS) random images of low frequencies, of variance 1."""
    places = (np.arange(SIDE) + 0.5) * np.pi / SIDE
    waves = np.cos(np.outer(np.arange(WAVES), places))
    fields = np.einsum("nuv,ui,vj->nij", random.normal(size=(count, WAVES, WAVES)), waves, waves)
    fields = fields.reshape(count, PIXELS)
    scaled: NDArray[np.float64] = fields / fields.std(axis=1, keepdims=True)
    return scaled


def generate_sites(counts: Sequence[int], concentration: float, random: Generator) -> list[SiteData]:
    """Return sites of so many training images; ``concentration`` of the Dirichlet distribution of their classes."""
    templates = smooth_fields(CLASSES, random)
    return [_generate(templates, count, random.dirichlet(np.full(CLASSES, concentration)), random) for count in counts]


def generate_images(count: int, data: Generator, random: Generator) -> tuple[Tensor, Tensor]:
    """Return (count, PIXELS) images and (count,) classes in equal shares, in turn of four scanners.

    ``data`` is the generator that `generate_sites` begins with, of the same templates; ``random`` draws the images.
    """
    templates, equal = smooth_fields(CLASSES, data), np.full(CLASSES, 1 / CLASSES)
    parts = [_generate(templates, count // 4 + (place < count % 4), equal, random) for place in range(4)]
    images, labels = (np.concatenate([getattr(part, name) for part in parts]) for name in ("images", "labels"))
    return torch.from_numpy(images), torch.from_numpy(labels)


def soft_scores(models: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """Return (k, images) float64 scores of ``models`` (k, d), 0 to 1: 1 less the cross-entropy by the largest counted.

    That is of a probability of `LEAST_PROBABILITY`.
    """
    found = torch.log_softmax(logits(models.float(), images), dim=2)
    own = found.gather(2, labels.expand(len(models), -1)[..., None])[..., 0].double()
    return (1 - own / math.log(LEAST_PROBABILITY)).clamp(0, 1)


def _generate(templates: NDArray[np.float64], count: int, mix: NDArray[np.float64], random: Generator) -> SiteData:
    total = count + VALIDATION
    labels = random.choice(CLASSES, size=total, p=mix)
    gain, offset = 1 + 0.15 * random.normal(), 0.15 * random.normal()
    images = templates[labels] + 1.6 * smooth_fields(total, random) + 1.0 * random.normal(size=(total, PIXELS))
    shown: NDArray[np.float32] = (gain * images + offset).astype(np.float32)
    return SiteData(shown[:count], labels[:count], shown[count:], labels[count:])


@dataclass(frozen=True)
class Recipe:
    """A recipe of the local training of a round."""

    steps: int = 10
    lr: float = 0.1
    adam: bool = False


def initial_model(random: Generator) -> Tensor:
    """Return (d,) the model that all sites begin with."""
    first = random.normal(size=SIZES[0]) / PIXELS**0.5
    second = random.normal(size=SIZES[2]) / HIDDEN**0.5
    return torch.from_numpy(np.concatenate([first, np.zeros(SIZES[1]), second, np.zeros(SIZES[3])])).float()


def _split(models: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    first, bias, second, last = torch.split(models, list(SIZES), dim=1)
    return first.view(-1, PIXELS, HIDDEN), bias[:, None], second.view(-1, HIDDEN, CLASSES), last[:, None]


def logits(models: Tensor, images: Tensor) -> Tensor:
    """Return (k, images, CLASSES) of ``models`` (k, d) on ``images`` (images, PIXELS) or (k, images, PIXELS)."""
    first, bias, second, last = _split(models)
    return torch.relu(images @ first + bias) @ second + last


def _gradients(models: Tensor, images: Tensor, targets: Tensor, share: Tensor) -> Tensor:
    """Return (n, d) of the mean cross-entropy; ``share`` (n, batch, 1) of each image in its site's mean."""
    first, bias, second, last = _split(models)
    hidden = torch.relu(images @ first + bias)
    errors = (torch.softmax(hidden @ second + last, dim=2) - targets) * share
    back = (errors @ second.mT) * (hidden > 0)
    parts = (images.mT @ back, back.sum(dim=1), hidden.mT @ errors, errors.sum(dim=1))
    return torch.cat([part.flatten(1) for part in parts], dim=1)


def train(start: Tensor, sites: Sequence[SiteData], recipe: Recipe, randoms: Sequence[Generator]) -> Tensor:
    """Return (n, d) float32 updates of all sites from ``start`` (n, d); each draws its batches by its own generator."""
    models, largest = start.clone(), max(site.batch_size for site in sites)
    mean, square = torch.zeros_like(start), torch.zeros_like(start)
    picks = [
        random.integers(site.count, size=(recipe.steps, site.batch_size))
        for site, random in zip(sites, randoms, strict=True)
    ]
    share = torch.zeros(len(sites), largest, 1)
    images = torch.zeros(recipe.steps, len(sites), largest, PIXELS)
    targets = torch.zeros(recipe.steps, len(sites), largest, CLASSES)
    for row, (site, chosen) in enumerate(zip(sites, picks, strict=True)):
        size = site.batch_size
        share[row, :size] = 1 / size
        images[:, row, :size] = torch.from_numpy(site.images[chosen])
        targets[:, row, :size] = torch.eye(CLASSES)[torch.from_numpy(site.labels[chosen])]
    for step in range(recipe.steps):
        gradients = _gradients(models, images[step], targets[step], share)
        if recipe.adam:
            mean, square = 0.9 * mean + 0.1 * gradients, 0.99 * square + 0.01 * gradients.square()
            age = step + 1
            gradients = (mean / (1 - 0.9**age)) / ((square / (1 - 0.99**age)).sqrt() + 1e-8)
        models = models - recipe.lr * gradients
    return models - start


def accuracies(models: Tensor, sites: Sequence[SiteData]) -> Tensor:
    """Return (n, k) float64 accuracies of ``models`` (k, d) on each site's validation images."""
    images = torch.from_numpy(np.concatenate([site.validation for site in sites]))
    labels = torch.from_numpy(np.concatenate([site.validation_labels for site in sites]))
    right = (logits(models.float(), images).argmax(dim=2) == labels).double()
    return right.view(len(models), len(sites), VALIDATION).mean(dim=2).T
