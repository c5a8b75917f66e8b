"""Patches of volumes, and what a network sees at a time: slices, or patches."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from monai.data.utils import dense_patch_slices
from monai.transforms import SpatialPad
from numpy.typing import NDArray
from torch import Tensor

from fedmerit.trainers.monai_trainer.data import Case
from fedmerit.trainers.monai_trainer.samples import Samples, Slices

Place = tuple[slice, ...]  # of a patch, in the slices, rows and columns of a volume


def build_samples(cases: Sequence[Case], patch: tuple[int, ...]) -> Samples:
    """What a network of ``patch`` (of `Network`) is trained on: the slices of ``cases``, or their patches."""
    return Patches(cases, patch) if patch else Slices(cases)


class Patches(Samples):
    """Patches that cover the training slices of some cases, evenly: they overlap where a side is no multiple.

    Pairs of (channels, slices, h, w) and (labels, slices, h, w) float32; what is shorter is padded by zeros.
    """

    def __init__(self, cases: Sequence[Case], patch: tuple[int, ...]):
        self.patch = patch
        self._pad = SpatialPad(patch)
        self.index = [(case, place) for case in cases for place in _places(case, patch)]

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def shows_label(self) -> Tensor:
        """(patches,) bool: whether a label is there at all."""
        return torch.tensor([bool(_cut(case, case.label, place).any()) for case, place in self.index])

    def __getitem__(self, item: int) -> tuple[Tensor, Tensor]:
        case, place = self.index[item]
        image, label = (
            self._pad(torch.from_numpy(_cut(case, array, place).astype(np.float32).swapaxes(0, 1)))
            for array in (case.image, case.label)
        )
        return image.as_tensor(), label.as_tensor()


def _places(case: Case, patch: tuple[int, ...]) -> list[Place]:
    slices = len(case.image) if case.slices is None else len(case.slices)
    if not slices:
        return []
    size = (slices, *case.image.shape[2:])
    inside = tuple(min(side, there) for side, there in zip(patch, size, strict=True))
    counts = [-(-there // side) for side, there in zip(inside, size, strict=True)]
    steps = [
        max(1, -(-(there - side) // (count - 1))) if count > 1 else side
        for side, there, count in zip(inside, size, counts, strict=True)
    ]
    return list(dense_patch_slices(size, inside, steps))


def _cut(case: Case, array: NDArray[Any], place: Place) -> NDArray[Any]:
    """(slices, planes, h, w) of one patch."""
    depth, rows, columns = place
    positions = depth if case.slices is None else list(case.slices[depth])
    return array[positions, :, rows, columns]
