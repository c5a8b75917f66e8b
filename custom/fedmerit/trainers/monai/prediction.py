"""What a network makes of images: overlaps, losses, masks; in mixed precision if asked."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import accumulate
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmerit.contract.method import DECIMALS
from fedmerit.schema.scores import Overlap, Surface
from fedmerit.schema.site_folder import Case
from fedmerit.trainers.monai.networks import is_mirrored, keeps_largest_component, patch_size
from fedmerit.trainers.monai.samples import Samples, build_samples, fit_on_gpu
from fedmerit.trainers.monai.surfaces import measure_surfaces

EVALUATION_BATCH = 8  # slices; with more, a CPU allocates feature maps each time and takes a fifth longer
GPU_BATCH = 32  # on a GPU a pass takes as long as its launch does, of 8 slices as of 32
Masks = NDArray[np.bool_]  # (slices, labels, height, width)


@torch.inference_mode()
def evaluate(
    network: nn.Module, cases: Sequence[Case], labels: Sequence[str], amp: bool = False, final: bool = False
) -> list[Overlap]:
    """Return one `Overlap` per case and label, over all slices of the case: 3D Dice for volumes.

    Masks are where logits are above 0; those of a ``final`` model are as `predict` makes them, in float32, and it is
    measured how far their surfaces lie from the reference's. That takes more than twice as long, and is not for every
    round. Cases go by their position ("000", "001", ...), since results leave the site and names do not.
    """
    device = next(network.parameters()).device
    found = _WholeCases(cases, labels, keeps_largest_component(network)) if final else _Counts(cases, labels, device)
    for places, logits, masks in _passes(network, cases, amp and not final, mirrored=final and is_mirrored(network)):
        found.add(places, logits > 0, masks)
    return found.overlaps()


@torch.inference_mode()
def evaluate_softly(
    network: nn.Module, cases: Sequence[Case], labels: Sequence[str], amp: bool = False
) -> list[Overlap]:
    """Return one `Overlap` per case and label with its soft Dice, 2 Σ p g / (Σ p + Σ g), over all slices of the case.

    p are the predicted probabilities and g the masks. There is none where the reference is empty.
    """
    sums = torch.zeros(len(cases), len(labels), 3, dtype=torch.float64)  # Σ p g, Σ p, Σ g
    for places, logits, masks in _passes(network, cases, amp):
        predicted, reference = logits.float().sigmoid(), masks.float()
        parts = torch.stack([predicted * reference, predicted, reference]).flatten(start_dim=3).sum(dim=3)
        sizes = [part.stop - part.start for _, part in places]
        by_case = torch.split(parts.permute(1, 2, 0).double().cpu(), sizes)  # (slices, labels, 3) each
        for (place, _), of_case in zip(places, by_case, strict=True):
            sums[place] += of_case.sum(dim=0)
    dice = (
        (2 * sums[..., 0] / (sums[..., 1] + sums[..., 2])).clamp(0, 1).round(decimals=DECIMALS)
    )  # as it leaves a site
    return [
        Overlap(f"{position:03d}", label, 0, 0, 0, patient=case.number, score=score if there else None)
        for position, case in enumerate(cases)
        for label, score, there in zip(
            labels, dice[position].tolist(), (sums[position, :, 2] > 0).tolist(), strict=True
        )
    ]


@torch.inference_mode()
def evaluate_with_losses(
    network: nn.Module, cases: Sequence[Case], labels: Sequence[str], amp: bool = False
) -> tuple[list[Overlap], Tensor]:
    """Return what `evaluate` gives, and what `image_losses` of the images to train on.

    Of a network of slices in one pass.
    """
    if patch := patch_size(network):
        return evaluate(network, cases, labels, amp), image_losses(network, build_samples(cases, patch), amp)
    counts, losses = _Counts(cases, labels, next(network.parameters()).device), list[Tensor]()
    for places, logits, masks in _passes(network, cases, amp):
        counts.add(places, logits > 0, masks)
        losses.append(soft_dice_losses(logits.float(), masks.float()))
    starts = list(accumulate((len(case.image) for case in cases), initial=0))
    of_images = [
        start + position
        for start, case in zip(starts, cases, strict=False)
        for position in (range(len(case.image)) if case.slices is None else case.slices)
    ]
    return counts.overlaps(), _clamp_losses(losses)[of_images]


def _passes(
    network: nn.Module, cases: Sequence[Case], amp: bool, mirrored: bool = False
) -> Iterator[tuple[list[tuple[int, slice]], Tensor, Tensor]]:
    """Yield parts of ``cases`` by position, logits of them in eval mode, and their masks, uint8 and of the same
    shape.
    """
    device = next(network.parameters()).device
    precision = choose_precision(device, amp)
    network.eval()
    stay = fit_on_gpu(sum(case.image.nbytes + case.label.nbytes for case in cases), device)
    volumes = ([(place, slice(0, len(case.image)))] for place, case in enumerate(cases))
    for places in volumes if patch_size(network) else _batches(cases, batch_size(device, precision)):
        images, masks = _load([(cases[place], part) for place, part in places], device, stay)
        with autocast(device, precision):
            logits = predict_logits(network, images, mirrored)
        yield places, logits, masks


# by case, its image as read from the file, and image and mask on a GPU
_on_gpu: WeakKeyDictionary[Case, tuple[NDArray[np.float32], Tensor, Tensor]] = WeakKeyDictionary()


def _load(parts: Sequence[tuple[Case, slice]], device: torch.device, stay: bool) -> tuple[Tensor, Tensor]:
    """Return images and masks of slices of cases on ``device``, where whole cases ``stay`` for models to come."""
    if not stay:
        images = np.concatenate([case.image[part] for case, part in parts])
        masks = np.concatenate([case.label[part] for case, part in parts])
        return torch.from_numpy(images).to(device), torch.from_numpy(masks).to(device)
    pairs = [(*_keep(case, device), part) for case, part in parts]
    return torch.cat([image[part] for image, _, part in pairs]), torch.cat([mask[part] for _, mask, part in pairs])


def _keep(case: Case, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return image and mask of a case on ``device``; an equal case that was read again is copied again."""
    read, *there = _on_gpu.get(case, (None,))
    if read is not case.image or there[0].device != device:
        there = [torch.tensor(array, device=device) for array in (case.image, case.label)]
        _on_gpu[case] = case.image, there[0], there[1]
    return there[0], there[1]


class _Counts:
    """A table of the voxels of each case and label, prediction against reference, added up part by part on a device."""

    def __init__(self, cases: Sequence[Case], labels: Sequence[str], device: torch.device):
        self.cases, self.labels = cases, labels
        self.table = torch.zeros(len(cases), len(labels), 4, device=device, dtype=torch.float64)  # TP FP TN FN

    def add(self, places: Sequence[tuple[int, slice]], found: Tensor, masks: Tensor) -> None:
        """Add predictions bool and masks (slices, labels, h, w) of parts of cases."""
        from monai.metrics.confusion_matrix import get_confusion_matrix

        of_slices: Tensor = get_confusion_matrix(found.float(), masks.float()).double()
        sizes = [part.stop - part.start for _, part in places]
        for (place, _), of_case in zip(places, torch.split(of_slices, sizes), strict=True):
            self.table[place] += of_case.sum(dim=0)

    def overlaps(self) -> list[Overlap]:
        """Return the overlaps by case and label."""
        table = self.table.round().long().tolist()  # fetched from the device once
        return [
            Overlap(f"{position:03d}", label, tp, fp, fn, patient=case.number)
            for position, (case, rows) in enumerate(zip(self.cases, table, strict=True))
            for label, (tp, fp, _, fn) in zip(self.labels, rows, strict=True)
        ]


class _WholeCases:
    """The masks of each case, kept until all of it is predicted, and compared with the reference then."""

    def __init__(self, cases: Sequence[Case], labels: Sequence[str], largest: bool):
        self.cases, self.labels, self.largest = cases, labels, largest
        self.predicted = [np.zeros(case.label.shape, dtype=np.bool_) for case in cases]

    def add(self, places: Sequence[tuple[int, slice]], found: Tensor, masks: Tensor) -> None:
        """Add the masks of some slices."""
        sizes = [part.stop - part.start for _, part in places]
        for (place, part), shown in zip(places, torch.split(found.cpu(), sizes), strict=True):
            self.predicted[place][part] = shown.numpy()

    def overlaps(self) -> list[Overlap]:
        """Return, by case and label, with their surfaces."""
        counts, surfaces = _Counts(self.cases, self.labels, torch.device("cpu")), list[Surface | None]()
        for place, (case, predicted) in enumerate(zip(self.cases, self.predicted, strict=True)):
            masks = keep_largest_components(predicted) if self.largest else predicted
            whole = [(place, slice(0, len(masks)))]
            counts.add(whole, torch.from_numpy(masks), torch.from_numpy(np.array(case.label)))
            surfaces += measure_surfaces(masks, case.label, case.spacing)
        return [replace(one, surface=surface) for one, surface in zip(counts.overlaps(), surfaces, strict=True)]


def batch_size(device: torch.device, precision: torch.dtype | None = None) -> int:
    """Return slices of a pass in evaluation mode: on a CPU twice as many where a value has half the bytes."""
    return GPU_BATCH if device.type != "cpu" else EVALUATION_BATCH * (2 if precision else 1)


def _batches(cases: Sequence[Case], most: int) -> Iterator[list[tuple[int, slice]]]:
    """Yield all slices in their order, as parts of cases by position, ``most`` together: cases may be one slice."""
    batch, room = list[tuple[int, slice]](), most
    for place, case in enumerate(cases):
        start, size = 0, len(case.image)
        while start < size:
            part = slice(start, min(size, start + room))
            batch.append((place, part))
            room -= part.stop - start
            start = part.stop
            if not room:
                yield batch
                batch, room = [], most
    if batch:
        yield batch


def predict_logits(network: nn.Module, images: Tensor, mirrored: bool = False) -> Tensor:
    """Return (slices, labels, h, w) of slices (slices, channels, h, w), by a network of volumes of one whole volume.

    That sees its patches one after the other, half of each in the next; logits where they overlap are weighed by a
    Gaussian (MONAI's `sliding_window_inference`). With ``mirrored`` the mean of those of the images and, turned back,
    of the images with left and right exchanged.
    """
    if mirrored:
        return (predict_logits(network, images) + predict_logits(network, images.flip(-1)).flip(-1)) / 2
    patch = patch_size(network)
    if not patch:
        logits: Tensor = network(images)
        return logits
    from monai.inferers.utils import sliding_window_inference

    volume = images.transpose(0, 1)[None]
    seen: Tensor = sliding_window_inference(volume, patch, 1, network, overlap=0.5, mode="gaussian")
    return seen[0].transpose(0, 1)


@torch.inference_mode()
def image_losses(network: nn.Module, samples: Samples, amp: bool = False) -> Tensor:
    """Return (images,) `soft_dice_losses` of each image in eval mode; float64 on the CPU."""
    device = next(network.parameters()).device
    precision = choose_precision(device, amp)
    network.eval()
    losses = []
    for places in torch.split(torch.arange(len(samples)), batch_size(device, precision)):
        images, masks = samples.batch(places, device)
        with autocast(device, precision):
            logits = network(images)
        losses.append(soft_dice_losses(logits.float(), masks))
    return _clamp_losses(losses)


def _clamp_losses(losses: Sequence[Tensor]) -> Tensor:
    """Return (images,) float64 on the CPU, 0 to 1, of those of batches."""
    return torch.cat(list(losses)).double().clamp(0, 1).cpu()


def soft_dice_losses(logits: Tensor, masks: Tensor) -> Tensor:
    """Return (batch,) soft Dice loss of logits and masks (batch, labels, ...), 0 to 1, the mean over labels.

    Where the reference of a label is empty, it is 0 if the prediction is empty too, else 1.
    """
    from monai.losses import DiceLoss

    loss: Tensor = DiceLoss(sigmoid=True, reduction="none")(logits, masks).flatten(start_dim=1)  # (batch, labels)
    predicted = (logits > 0).flatten(start_dim=2).any(dim=2)
    absent = ~masks.bool().flatten(start_dim=2).any(dim=2)
    return loss.where(~absent, predicted.float()).mean(dim=1)


def predict(network: nn.Module, image: NDArray[np.float32]) -> Masks:
    """Return masks (slices, labels, h, w) of one case's image (slices, channels, h, w), as its network's description
    says.
    """
    masks: Masks = (predict_case_logits(network, image) > 0).numpy()
    return keep_largest_components(masks) if keeps_largest_component(network) else masks


@torch.inference_mode()
def predict_case_logits(network: nn.Module, image: NDArray[np.float32]) -> Tensor:
    """Return (slices, labels, h, w) on the CPU, of one case's image (slices, channels, h, w), in the batches of
    `evaluate`.

    Mirrored if the network's description says so.
    """
    device = next(network.parameters()).device
    network.eval()
    slices = torch.from_numpy(np.array(image))
    parts = [slices] if patch_size(network) else torch.split(slices, batch_size(device))
    mirrored = is_mirrored(network)
    return torch.cat([predict_logits(network, part.to(device), mirrored).cpu() for part in parts])


def keep_largest_components(masks: Masks) -> Masks:
    """Keep of each label of a case (slices, labels, h, w) the largest part of voxels that touch, even at a corner."""
    from monai.transforms.utils import get_largest_connected_component_mask

    parts = [get_largest_connected_component_mask(masks[:, label]) for label in range(masks.shape[1])]
    return np.stack(parts, axis=1)


def choose_precision(device: torch.device, amp: bool) -> torch.dtype | None:
    """Return what to compute in on ``device``; None: float32 throughout."""
    if not amp:
        return None
    return torch.float16 if device.type == "cuda" and not torch.cuda.is_bf16_supported() else torch.bfloat16


def autocast(device: torch.device, precision: torch.dtype | None) -> Any:
    """Return the context in which to compute in ``precision``, as `choose_precision` gave it."""
    if precision is None:
        return nullcontext()
    return torch.autocast(device.type, precision, cache_enabled=device.type == "cpu")  # a captured step may not use it
