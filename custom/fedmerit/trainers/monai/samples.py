"""What a network is trained on: the slices, or parts, of a site's training cases, in batches on the training device."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from fedmerit.schema.site_folder import Case

RESIDENT_SHARE = 1 / 32  # of a GPU's free memory that the samples of one site may take, to stay there


class Samples(Dataset[tuple[Tensor, Tensor]], ABC):
    """What a network is trained on, one of a batch at a time: pairs of float32 (channels, ...) and (labels, ...)."""

    roams = False  # whether steps of training see something else than the samples, of the same cases
    index: list[tuple[Case, Any]]  # of each its case, and where it lies in it
    _resident: tuple[Tensor, Tensor] | None = None  # all images, and their masks as uint8, on a GPU

    def batch(self, places: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """Images (batch, channels, ...) and masks (batch, labels, ...) at ``places`` (batch,), on ``device``.

        All of them stay on a GPU that has room, from the first batch on.
        """
        if self._resident is None and self._fit(device):
            images, masks = zip(*(self[place] for place in range(len(self))), strict=True)
            self._resident = torch.stack(images).to(device), torch.stack(masks).byte().to(device)
        if self._resident is None or self._resident[0].device.type != device.type:
            images, masks = default_collate([self[place] for place in places.tolist()])
            return images.to(device), masks.to(device)
        where = places.to(device, non_blocking=True)
        return self._resident[0][where], self._resident[1][where].float()

    def draw(self, places: Tensor, device: torch.device, share: float, order: torch.Generator) -> tuple[Tensor, Tensor]:
        """What a step of training sees of ``places``; ``share`` and ``order`` are of samples that roam."""
        return self.batch(places, device)

    def _fit(self, device: torch.device) -> bool:
        if device.type != "cuda":
            return False
        image, mask = self[0]
        return len(self) * (image.nbytes + mask.numel()) <= RESIDENT_SHARE * torch.cuda.mem_get_info(device)[0]

    @abstractmethod
    def __len__(self) -> int:
        """How many there are."""

    @property
    @abstractmethod
    def shows_label(self) -> Tensor:
        """(images,) bool: whether a label is there at all."""


class Slices(Samples):
    """The training slices of some cases as ((channels, h, w) float32, (labels, h, w) float32) pairs."""

    def __init__(self, cases: Sequence[Case]):
        self.cases = cases
        self.index = [
            (case, position)
            for case in cases
            for position in (range(len(case.image)) if case.slices is None else case.slices)
        ]

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def shows_label(self) -> Tensor:
        """(slices,) bool: whether a label is there at all."""
        return torch.tensor([bool(case.label[position].any()) for case, position in self.index])

    def __getitem__(self, item: int) -> tuple[Tensor, Tensor]:
        case, position = self.index[item]
        image = torch.from_numpy(np.array(case.image[position]))
        label = torch.from_numpy(np.array(case.label[position], dtype=np.float32))
        return image, label
