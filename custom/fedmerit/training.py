"""Network, loss, local training and Dice: MONAI's, put together for one site."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.losses import DiceLoss
from monai.metrics.confusion_matrix import get_confusion_matrix
from monai.networks.nets import UNet
from monai.transforms import (
    Compose,
    RandAdjustContrastd,
    RandAffined,
    RandFlipd,
    RandGaussianNoised,
)
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from fedmerit.core import ExtraLoss
from fedmerit.data import Case, Slices
from fedmerit.errors import BadInput
from fedmerit.files import read_json, write_atomically, write_json
from fedmerit.plan import Network, Training

EVALUATION_BATCH = 16  # slices


def random_seed(*parts: object) -> int:
    """A 63-bit seed from (seed, site, round) or the like, the same on every machine."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:8]) >> 1


def build_network(network: Network, device: torch.device | None = None) -> nn.Module:
    """MONAI's 2D U-Net: (batch, in_channels, h, w) to logits (batch, labels, h, w).

    On a ``device`` to work on, its weights lie channels last: an epoch on a CPU takes 3/4 of its time.
    """
    unet: nn.Module = UNet(
        spatial_dims=2,
        in_channels=network.in_channels,
        out_channels=len(network.labels),
        channels=[network.width * 2**level for level in range(network.depth)],
        strides=[2] * (network.depth - 1),
        num_res_units=network.residual_units,
        norm=("group", {"num_groups": 1}) if network.norm == "group" else network.norm,
    )
    return unet if device is None else unet.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]


def initial_network(network: Network, seed: int) -> nn.Module:
    """The network every run with this seed starts from; leaves the global random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random_seed(seed, "initial model"))
        return build_network(network)


def check_image_size(network: Network, image_size: tuple[int, int]) -> None:
    """`BadInput` where the U-Net cannot halve an image ``depth - 1`` times."""
    step = 2 ** (network.depth - 1)
    if any(side % step or side < 2 * step for side in image_size):
        raise BadInput(
            f"image size {image_size[0]}x{image_size[1]}: a U-Net of depth {network.depth} needs multiples of {step}, "
            f"at least {2 * step}; prepare with another --size or run with --set depth=..."
        )


def save_network(folder: Path, name: str, network: nn.Module, description: Network) -> None:
    """``name``.pt, a plain state_dict, and model.json, which rebuilds the network."""
    write_json(folder / "model.json", asdict(description))
    write_atomically(folder / f"{name}.pt", lambda file: torch.save(network.state_dict(), file))


def load_network(folder: Path, name: str = "global") -> nn.Module:
    """The network that `save_network` wrote, on the CPU, to evaluate; `BadInput` naming a missing or spoiled file."""
    description = read_json(folder / "model.json")
    network = build_network(Network(**description | {"labels": tuple(description["labels"])}))
    path = folder / f"{name}.pt"
    if not path.exists():
        raise BadInput(f"{path}: file not found; expected the model of a finished run")
    try:
        network.load_state_dict(torch.load(path, weights_only=True, map_location="cpu"))
    except Exception as error:  # of whatever kind torch's unpickler meets in a spoiled file
        raise BadInput(f"{path}: not a model that model.json describes ({type(error).__name__})") from error
    return network.eval()


def build_loss(name: str) -> nn.Module:
    """Of logits and masks (batch, labels, h, w): "dice", soft Dice in [0, 1], or "dice_ce", plus cross-entropy."""
    dice = DiceLoss(sigmoid=True, batch=True)
    return dice if name == "dice" else _Sum(dice, nn.BCEWithLogitsLoss())


class _Sum(nn.Module):
    """The sum of two losses. (MONAI's DiceCELoss takes several channels for exclusive classes; ours overlap.)"""

    def __init__(self, *losses: nn.Module):
        super().__init__()
        self.losses = nn.ModuleList(losses)

    def forward(self, logits: Tensor, masks: Tensor) -> Tensor:
        return torch.stack([loss(logits, masks) for loss in self.losses]).sum()


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Slices under random transforms drawn from one seed."""

    def __init__(self, slices: Slices, seed: int):
        self.slices = slices
        both = ("image", "label")
        self.transform = Compose(
            [
                RandFlipd(both, prob=0.5, spatial_axis=1),
                RandAffined(
                    both,
                    prob=0.5,
                    rotate_range=0.2,
                    scale_range=0.1,
                    mode=("bilinear", "nearest"),
                    padding_mode="border",
                ),
                RandGaussianNoised("image", prob=0.2, std=0.1),
                RandAdjustContrastd("image", prob=0.2, gamma=(0.7, 1.5)),
            ]
        ).set_random_state(seed % 2**32)

    def __len__(self) -> int:
        return len(self.slices)

    def __getitem__(self, item: int) -> tuple[Tensor, Tensor]:
        image, label = self.slices[item]
        result: Any = self.transform({"image": image, "label": label})
        return torch.as_tensor(result["image"]), torch.as_tensor(result["label"])


def fixed_batches(slices: Slices, count: int, size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """At most ``count`` batches of ``size`` images and masks, spread evenly over the slices, as they are."""
    images = min(len(slices), count * size)
    chosen = Subset(slices, [place * len(slices) // images for place in range(images)])
    for batch, masks in DataLoader(chosen, batch_size=size):
        yield batch.to(device), masks.to(device)


def train(
    network: nn.Module,
    slices: Slices,
    training: Training,
    seed: int,
    held: Mapping[nn.Parameter, Tensor] | None = None,
    extra_loss: ExtraLoss | None = None,
) -> float:
    """Train in place for one round, on the device the network is on; the mean loss of its batches.

    Args:
        network: gives logits (batch, labels, h, w).
        slices: the site's training images.
        training: loss, optimiser and batches.
        seed: of the order of images and the augmentation.
        held: by parameter, bool in its shape: what the site holds of it; the rest is zero after every step. None: all.
        extra_loss: added to the plan's, of the batch as it is trained on.
    """
    device = next(network.parameters()).device
    loss_function = build_loss(training.loss)
    optimizer = torch.optim.Adam(network.parameters(), lr=training.lr, betas=(0.9, 0.99))
    if held is not None:  # without it β of a BatchNorm would move, and all by momentum
        optimizer.register_step_post_hook(lambda *_: _drop(held))
    loader = DataLoader(
        Augmented(slices, seed) if training.augment else slices,
        batch_size=training.batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
        pin_memory=device.type == "cuda",
    )
    precision = _precision(device, training.amp)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == torch.float16)
    total = torch.zeros((), device=device)
    network.train()
    for _ in range(training.epochs):
        for images, masks in loader:
            images, masks = images.to(device, non_blocking=True), masks.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            with _autocast(device, precision):
                logits = network(images)
                loss = loss_function(logits, masks)
                if extra_loss:
                    loss = loss + extra_loss(images, logits)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            total += loss.detach()
    return float(total) / (len(loader) * training.epochs)


@torch.no_grad()
def _drop(held: Mapping[nn.Parameter, Tensor]) -> None:
    for parameter, mask in held.items():
        parameter.mul_(mask)


def _precision(device: torch.device, amp: bool) -> torch.dtype | None:
    if not amp:
        return None
    return torch.float16 if device.type == "cuda" and not torch.cuda.is_bf16_supported() else torch.bfloat16


def _autocast(device: torch.device, precision: torch.dtype | None) -> Any:
    return nullcontext() if precision is None else torch.autocast(device.type, precision)


@dataclass(frozen=True)
class Overlap:
    """Voxels of one case and label, prediction against reference."""

    case: str  # its position in the split
    label: str
    true_positives: int
    false_positives: int
    false_negatives: int

    @property
    def dice(self) -> float | None:
        """2 TP / (2 TP + FP + FN); None where reference and prediction are both empty."""
        size = 2 * self.true_positives + self.false_positives + self.false_negatives
        return 2 * self.true_positives / size if size else None


def mean_dice(overlaps: Iterable[Overlap]) -> float:
    """Mean over cases and labels, those that are empty in both left out; 0 where all are."""
    values = [overlap.dice for overlap in overlaps]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else 0.0


@torch.inference_mode()
def evaluate(network: nn.Module, cases: Sequence[Case], labels: Sequence[str], amp: bool = False) -> list[Overlap]:
    """One `Overlap` per case and label, over all slices of the case: 3D Dice for volumes.

    Cases go by their position ("000", "001", ...), since results leave the site and names do not.
    """
    device = next(network.parameters()).device
    precision = _precision(device, amp)
    network.eval()
    counts = []
    for case in cases:
        total = torch.zeros(len(labels), 4, device=device, dtype=torch.float64)
        for start in range(0, len(case.image), EVALUATION_BATCH):
            part = slice(start, start + EVALUATION_BATCH)
            images = torch.from_numpy(np.array(case.image[part])).to(device)
            masks = torch.from_numpy(np.array(case.label[part], dtype=np.float32)).to(device)
            with _autocast(device, precision):
                logits = network(images)
            total += get_confusion_matrix((logits > 0).float(), masks).sum(dim=0)
        counts.append(total)
    if not counts:
        return []
    table = torch.stack(counts).round().long().tolist()  # (cases, labels, TP FP TN FN), fetched from the device once
    return [
        Overlap(f"{position:03d}", label, tp, fp, fn)
        for position, rows in enumerate(table)
        for label, (tp, fp, _, fn) in zip(labels, rows, strict=True)
    ]


@torch.inference_mode()
def image_losses(network: nn.Module, slices: Slices, amp: bool = False) -> Tensor:
    """(images,) `soft_dice_losses` of each image in eval mode; float64 on the CPU."""
    device = next(network.parameters()).device
    precision = _precision(device, amp)
    network.eval()
    losses = []
    for images, masks in DataLoader(slices, batch_size=EVALUATION_BATCH):
        images, masks = images.to(device), masks.to(device)
        with _autocast(device, precision):
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
    device = next(network.parameters()).device
    network.eval()
    parts = torch.split(torch.from_numpy(np.array(image)), EVALUATION_BATCH)
    masks: NDArray[np.bool_] = torch.cat([network(part.to(device)) > 0 for part in parts]).cpu().numpy()
    return masks
