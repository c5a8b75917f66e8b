"""What a network makes of images: overlaps, losses, masks."""

from collections.abc import Sequence

import numpy as np
import torch
from monai.losses import DiceLoss
from monai.metrics.confusion_matrix import get_confusion_matrix
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fedmerit.training.data import Case, Slices
from fedmerit.training.overlaps import Overlap
from fedmerit.training.precision import autocast, precision_of
from fedmerit.training.surfaces import measure_surfaces

EVALUATION_BATCH = 16  # slices


@torch.inference_mode()
def evaluate(
    network: nn.Module, cases: Sequence[Case], labels: Sequence[str], amp: bool = False, surfaces: bool = False
) -> list[Overlap]:
    """One `Overlap` per case and label, over all slices of the case: 3D Dice for volumes.

    With ``surfaces``, which takes its time, also how far those lie apart. Cases go by their position ("000", "001",
    ...), since results leave the site and names do not.
    """
    device = next(network.parameters()).device
    precision = precision_of(device, amp)
    network.eval()
    counts, distances = [], []
    for case in cases:
        predicted = np.zeros(case.label.shape, dtype=np.bool_)
        total = torch.zeros(len(labels), 4, device=device, dtype=torch.float64)
        for start in range(0, len(case.image), EVALUATION_BATCH):
            part = slice(start, start + EVALUATION_BATCH)
            images = torch.from_numpy(np.array(case.image[part])).to(device)
            masks = torch.from_numpy(np.array(case.label[part], dtype=np.float32)).to(device)
            with autocast(device, precision):
                logits = network(images)
            total += get_confusion_matrix((logits > 0).float(), masks).sum(dim=0)
            if surfaces:
                predicted[part] = (logits > 0).cpu().numpy()
        counts.append(total)
        none = [None] * len(labels)
        distances.append(measure_surfaces(predicted, case.label, case.spacing) if surfaces else none)
    if not counts:
        return []
    table = torch.stack(counts).round().long().tolist()  # (cases, labels, TP FP TN FN), fetched from the device once
    return [
        Overlap(f"{position:03d}", label, tp, fp, fn, surface)
        for position, (rows, of_case) in enumerate(zip(table, distances, strict=True))
        for label, (tp, fp, _, fn), surface in zip(labels, rows, of_case, strict=True)
    ]


@torch.inference_mode()
def image_losses(network: nn.Module, slices: Slices, amp: bool = False) -> Tensor:
    """(images,) `soft_dice_losses` of each image in eval mode; float64 on the CPU."""
    device = next(network.parameters()).device
    precision = precision_of(device, amp)
    network.eval()
    losses = []
    for images, masks in DataLoader(slices, batch_size=EVALUATION_BATCH):
        images, masks = images.to(device), masks.to(device)
        with autocast(device, precision):
            logits = network(images)
        losses.append(soft_dice_losses(logits.float(), masks))
    return torch.cat(losses).double().clamp(0, 1).cpu()


def soft_dice_losses(logits: Tensor, masks: Tensor) -> Tensor:
    """(batch,) soft Dice loss of logits and masks (batch, labels, h, w), 0 to 1, the mean over labels.

    Where the reference of a label is empty, it is 0 if the prediction is empty too, else 1.
    """
    loss: Tensor = DiceLoss(sigmoid=True, reduction="none")(logits, masks).flatten(start_dim=1)  # (batch, labels)
    predicted = (logits > 0).flatten(start_dim=2).any(dim=2)
    absent = ~masks.bool().flatten(start_dim=2).any(dim=2)
    return loss.where(~absent, predicted.float()).mean(dim=1)


@torch.inference_mode()
def predict(network: nn.Module, image: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Masks (slices, labels, h, w) of one case's image (slices, channels, h, w)."""
    masks: NDArray[np.bool_] = (logits_of(network, image) > 0).numpy()
    return masks


@torch.inference_mode()
def logits_of(network: nn.Module, image: NDArray[np.float32]) -> Tensor:
    """(slices, labels, h, w) on the CPU, of one case's image (slices, channels, h, w), in the batches of `evaluate`."""
    device = next(network.parameters()).device
    network.eval()
    parts = torch.split(torch.from_numpy(np.array(image)), EVALUATION_BATCH)
    return torch.cat([network(part.to(device)).cpu() for part in parts])
