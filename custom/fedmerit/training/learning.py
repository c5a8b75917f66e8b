"""Local training: MONAI's loss and transforms, put together for one site."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from monai.losses import DiceLoss
from monai.transforms import (
    Compose,
    RandAdjustContrastd,
    RandAffined,
    RandFlipd,
    RandGaussianNoised,
)
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from fedmerit import flat
from fedmerit.capabilities.local_training import Penalty
from fedmerit.capabilities.peer_learning import ExtraLoss
from fedmerit.configuration.run import Training
from fedmerit.training.data import Slices
from fedmerit.training.precision import autocast, precision_of


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
    penalty: Penalty | None = None,
    shift: Tensor | None = None,
) -> float:
    """Train in place for one round, on the device the network is on; the mean loss of its batches.

    Args:
        network: gives logits (batch, labels, h, w).
        slices: the site's training images.
        training: loss, optimiser and batches.
        seed: of the order of images and the augmentation.
        held: by parameter, bool in its shape: what the site holds of it; the rest is zero after every step. None: all.
        extra_loss: added to the run's, of the batch as it is trained on.
        penalty: likewise, of the trainable parameters (d,); it does not count in the mean that is returned.
        shift: (d,) added to the gradient of every step.
    """
    device = next(network.parameters()).device
    loss_function = build_loss(training.loss)
    optimizer = build_optimizer(network, training)
    parameters = list(flat.trainable(network).values())
    if held is not None:  # without it β of a BatchNorm would move, and all by momentum
        optimizer.register_step_post_hook(lambda *_: _drop(held))
    loader = DataLoader(
        Augmented(slices, seed) if training.augment else slices,
        batch_size=training.batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
        pin_memory=device.type == "cuda",
    )
    precision = precision_of(device, training.amp)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == torch.float16)
    total = torch.zeros((), device=device)
    network.train()
    for _ in range(training.epochs):
        for images, masks in loader:
            images, masks = images.to(device, non_blocking=True), masks.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            with autocast(device, precision):
                logits = network(images)
                loss = loss_function(logits, masks)
                if extra_loss:
                    loss = loss + extra_loss(images, logits)
            whole = loss + penalty(_vector(parameters)) if penalty else loss
            scaler.scale(whole).backward()
            if shift is not None:
                scaler.unscale_(optimizer)
                _add_to_gradients(parameters, shift)
            scaler.step(optimizer)
            scaler.update()
            total += loss.detach()
    return float(total) / (len(loader) * training.epochs)


def build_optimizer(network: nn.Module, training: Training) -> torch.optim.Optimizer:
    """ "adam", with the betas of Jiang et al. 2023, or "sgd", without momentum; made anew each round."""
    if training.optimizer == "sgd":
        return torch.optim.SGD(network.parameters(), lr=training.lr)
    return torch.optim.Adam(network.parameters(), lr=training.lr, betas=(0.9, 0.99))


def steps_of(slices: Slices, training: Training) -> int:
    """K, of the optimiser in a round."""
    return -(-len(slices) // training.batch_size) * training.epochs


def _vector(parameters: Sequence[nn.Parameter]) -> Tensor:
    """(d,) with gradient, in the order of `flat.get_parameters`."""
    return torch.cat([parameter.reshape(-1) for parameter in parameters])


def _add_to_gradients(parameters: Sequence[nn.Parameter], shift: Tensor) -> None:
    pieces = torch.split(shift, [parameter.numel() for parameter in parameters])
    for parameter, piece in zip(parameters, pieces, strict=True):
        if parameter.grad is not None:
            parameter.grad += piece.view_as(parameter).to(parameter.grad)


@torch.no_grad()
def _drop(held: Mapping[nn.Parameter, Tensor]) -> None:
    for parameter, mask in held.items():
        parameter.mul_(mask)
