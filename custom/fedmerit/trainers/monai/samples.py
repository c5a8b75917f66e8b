"""What a network is trained on: slices of a site's training cases, or patches, in batches on the training device."""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from fedmerit.schema.site_folder import Case

RESIDENT_SHARE = 1 / 32  # of a GPU's free memory that the samples of one site may take, to stay there


def fit_on_gpu(size: int, device: torch.device) -> bool:
    """Return whether images of one site, ``size`` [bytes] of them, may stay on ``device``: a GPU with room."""
    return device.type == "cuda" and size <= RESIDENT_SHARE * torch.cuda.mem_get_info(device)[0]


class Samples(Dataset[tuple[Tensor, Tensor]], ABC):
    """A set of what a network is trained on, one of a batch at a time.

    Pairs of float32 (channels, ...) and (labels, ...).
    """

    roams = False  # whether steps of training see something else than the samples, of the same cases
    index: list[tuple[Case, Any]]  # of each its case, and where it lies in it
    _resident: tuple[Tensor, Tensor] | None = None  # all images, and their masks as uint8, on a GPU

    def batch(self, places: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return images (batch, channels, ...) and masks (batch, labels, ...) at ``places`` (batch,), on ``device``.

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
        """Return what a step of training sees of ``places``; ``share`` and ``order`` are of samples that roam."""
        return self.batch(places, device)

    def _fit(self, device: torch.device) -> bool:
        image, mask = self[0]
        return fit_on_gpu(len(self) * (image.nbytes + mask.numel()), device)

    @cached_property
    def digests(self) -> list[bytes]:
        """The SHA-256 of image and mask of each sample; of samples that roam, of the case that they are drawn from."""
        if not self.roams:
            return [_pair_digest(*(tensor.numpy() for tensor in self[place])) for place in range(len(self))]
        cases = {case: _pair_digest(case.image, case.label) for case in {case for case, _ in self.index}}
        return [cases[case] for case, _ in self.index]

    @abstractmethod
    def __len__(self) -> int:
        """Return how many there are."""

    @property
    @abstractmethod
    def shows_label(self) -> Tensor:
        """(images,) bool: whether a label is there at all."""


def _pair_digest(image: NDArray[Any], mask: NDArray[Any]) -> bytes:
    whole = hashlib.sha256()
    for array in (image, mask):
        whole.update(f"{array.dtype} {list(array.shape)}\n".encode())
        whole.update(np.ascontiguousarray(array).data)
    return whole.digest()


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


Place = tuple[slice, ...]  # of a patch, in the slices, rows and columns of a volume


def build_samples(cases: Sequence[Case], patch: tuple[int, ...]) -> Samples:
    """Return what a network with this ``patch`` is trained on: the slices of ``cases``, or their patches."""
    return Patches(cases, patch) if patch else Slices(cases)


class Patches(Samples):
    """A set of patches that cover the training slices of some cases, evenly: they overlap where a side is no multiple.

    Pairs of (channels, slices, h, w) and (labels, slices, h, w) float32; what is shorter is padded by zeros. A step of
    training sees as many patches of each case, but anywhere in it.
    """

    roams = True

    def __init__(self, cases: Sequence[Case], patch: tuple[int, ...]):
        from monai.transforms import SpatialPad

        self.patch = patch
        self._pad = SpatialPad(patch)
        self._labelled: dict[Case, NDArray[np.int64]] = {}  # voxels, counted along the training slices
        self.index = [(case, place) for case in cases for place in _places(case, patch)]

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def shows_label(self) -> Tensor:
        """(patches,) bool: whether a label is there at all."""
        return torch.tensor([bool(_cut(case, case.label, place).any()) for case, place in self.index])

    def __getitem__(self, item: int) -> tuple[Tensor, Tensor]:
        return self._pair(*self.index[item])

    def draw(self, places: Tensor, device: torch.device, share: float, order: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return patches of the cases at ``places``, each by chance of ``share`` about a labelled voxel, else about
        any.
        """
        cases = [self.index[place][0] for place in places.tolist()]
        images, masks = default_collate([self._pair(case, self._drawn_place(case, share, order)) for case in cases])
        return images.to(device), masks.to(device)

    def _drawn_place(self, case: Case, share: float, order: torch.Generator) -> Place:
        from monai.transforms.utils import correct_crop_centers

        size = _size(case)
        inside = tuple(min(side, there) for side, there in zip(self.patch, size, strict=True))
        if case not in self._labelled:
            label = case.label if case.slices is None else case.label[list(case.slices)]
            self._labelled[case] = np.flatnonzero(label.any(axis=1))
        labelled = self._labelled[case]
        about_label = float(torch.rand((), generator=order)) < share and len(labelled) > 0
        drawn = int(torch.randint(len(labelled) if about_label else math.prod(size), (), generator=order))
        voxel = np.unravel_index(labelled[drawn] if about_label else drawn, size)
        middle = correct_crop_centers([int(one) for one in voxel], inside, size)
        starts = [one - side // 2 for one, side in zip(middle, inside, strict=True)]
        return tuple(slice(start, start + side) for start, side in zip(starts, inside, strict=True))

    def _pair(self, case: Case, place: Place) -> tuple[Tensor, Tensor]:
        image, label = (
            self._pad(torch.from_numpy(_cut(case, array, place).astype(np.float32).swapaxes(0, 1)))
            for array in (case.image, case.label)
        )
        return image.as_tensor(), label.as_tensor()


def _size(case: Case) -> tuple[int, ...]:
    """Return slices to train on, rows and columns."""
    return len(case.image) if case.slices is None else len(case.slices), *case.image.shape[2:]


def _places(case: Case, patch: tuple[int, ...]) -> list[Place]:
    from monai.data.utils import dense_patch_slices

    size = _size(case)
    if not size[0]:
        return []
    inside = tuple(min(side, there) for side, there in zip(patch, size, strict=True))
    counts = [-(-there // side) for side, there in zip(inside, size, strict=True)]
    steps = [
        max(1, -(-(there - side) // (count - 1))) if count > 1 else side
        for side, there, count in zip(inside, size, counts, strict=True)
    ]
    return list(dense_patch_slices(size, inside, steps))


def _cut(case: Case, array: NDArray[Any], place: Place) -> NDArray[Any]:
    """Return (slices, planes, h, w) of one patch."""
    depth, rows, columns = place
    positions = depth if case.slices is None else list(case.slices[depth])
    return array[positions, :, rows, columns]
