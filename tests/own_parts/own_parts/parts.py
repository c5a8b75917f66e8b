"""A method, a network, a loss, an optimiser, a reader, an attack and a metric."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import nn

from fedmerit.contract.method import GlobalModel, Method, MethodSummary, Outcome
from fedmerit.contract.vectors import share
from fedmerit.schema.rules import About, Number
from fedmerit_data.raw_cases import Decoded, RawCase, RawSite
from fedmerit_data.readers.kind import Kind
from fedmerit_lab.attacks.attack import Attack


@dataclass(frozen=True)
class Evenly(Method):
    """Every site counts alike, whatever it has."""

    about: ClassVar[MethodSummary] = MethodSummary(contribution="none", weights="alike", paper="none")
    step: Annotated[float, Number(above=0), About("how far the model goes along the mean update")] = 1.0

    def round(self, state, updates, reports):
        """w + step * mean of the updates."""
        weights = share(torch.ones_like(reports.num_samples), reports.present)
        model = state.model + (self.step * weights @ updates.double()).to(state.model)
        return GlobalModel(model), Outcome(torch.zeros_like(weights), torch.zeros_like(weights), weights, model)


class OneLayer(nn.Module):
    """Two convolutions."""

    def __init__(self, in_channels, out_channels, width=4):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(in_channels, width, 5, padding=2), nn.ReLU(), nn.Conv2d(width, out_channels, 1)
        )

    def forward(self, images):
        """Logits."""
        return self.body(images)


class Squared(nn.Module):
    """Brier score."""

    def forward(self, logits, masks):
        """Mean squared error of probabilities."""
        return (logits.sigmoid() - masks).square().mean()


def nesterov(parameters, training, rate):
    """SGD with Nesterov momentum."""
    return torch.optim.SGD(parameters, lr=rate, momentum=0.9, nesterov=True)


@dataclass(frozen=True, kw_only=True)
class Halved(Attack):
    """Sends half of the last step."""

    earliest: ClassVar[int] = 1

    def update(self, view):
        """(d,)."""
        return view.step / 2


def find_sites(source: Path) -> list[RawSite]:
    """SITE/CASE.npz with image and mask (height, width)."""
    return [
        RawSite(
            folder.name, tuple(RawCase(f.stem, f"{folder.name}-{f.stem}", f, f) for f in sorted(folder.glob("*.npz")))
        )
        for folder in sorted(source.iterdir())
        if folder.is_dir()
    ]


def decode(case: RawCase) -> Decoded:
    """One slice."""
    arrays = np.load(case.image)
    return Decoded(arrays["image"][None, None].astype(np.float32), arrays["mask"][None, None].astype(np.uint8))


ARRAYS = Kind(
    description="SITE/CASE.npz",
    task="blobs",
    labels=("blob",),
    channels=1,
    find_sites=find_sites,
    decode=decode,
    normalisation="mri",
    field_of_view=None,
    licence="generated",
)


def volume_error(prediction, reference, spacing):
    """Predicted volume as a share of the reference's, minus 1."""
    return None if not reference.any() else prediction.sum() / reference.sum() - 1
