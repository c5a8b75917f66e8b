"""Local training: loss, optimiser and batches of one site's round."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice, repeat

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, WeightedRandomSampler

from fedmerit.contract import flat
from fedmerit.contract.capabilities import ExtraLoss, Penalty
from fedmerit.plugins import Catalogue, get_part
from fedmerit.schema.configuration.settings import Training
from fedmerit.trainers.monai.augmentation import AUGMENTATIONS, Augmenter
from fedmerit.trainers.monai.networks import split_levels
from fedmerit.trainers.monai.prediction import autocast, choose_precision
from fedmerit.trainers.monai.samples import Samples
from fedmerit.trainers.training_checkpoint import Restorable, TrainingCheckpoint


def _dice() -> nn.Module:
    from monai.losses import DiceLoss

    dice: nn.Module = DiceLoss(sigmoid=True, batch=True)
    return dice


def _dice_ce() -> nn.Module:
    return _Sum(_dice(), nn.BCEWithLogitsLoss())


LOSSES: Catalogue[Callable[[], nn.Module]] = Catalogue(
    "losses", {"dice": _dice, "dice_ce": _dice_ce}, callable, "what gives, called without arguments, a loss"
)


def build_loss(name: str) -> nn.Module:
    """Of logits and masks (batch, labels, h, w): "dice", soft Dice in [0, 1]; "dice_ce", plus cross-entropy; others'.

    Raises:
        BadInput: there is none of this name.
    """
    return get_part(LOSSES, name, "loss")()


class _Sum(nn.Module):
    """The sum of two losses. (MONAI's DiceCELoss takes several channels for exclusive classes; ours overlap.)"""

    def __init__(self, *losses: nn.Module):
        super().__init__()
        self.losses = nn.ModuleList(losses)

    def forward(self, logits: Tensor, masks: Tensor) -> Tensor:
        return torch.stack([loss(logits, masks) for loss in self.losses]).sum()


def fixed_batches(samples: Samples, count: int, size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """At most ``count`` batches of ``size`` images and masks, spread evenly over the samples, as they are."""
    images = min(len(samples), count * size)
    chosen = Subset(samples, [place * len(samples) // images for place in range(images)])
    for batch, masks in DataLoader(chosen, batch_size=size):
        yield batch.to(device), masks.to(device)


def train(
    network: nn.Module,
    samples: Samples,
    training: Training,
    rate: float,
    seed: int,
    held: Mapping[nn.Parameter, Tensor] | None = None,
    extra_loss: ExtraLoss | None = None,
    penalty: Penalty | None = None,
    shift: Tensor | None = None,
    checkpoint: TrainingCheckpoint | None = None,
) -> float:
    """Train in place for one round, on the device the network is on; the mean loss of its batches.

    Args:
        network: gives logits (batch, labels, h, w); with deep supervision several of these, of any sizes, the first of
            the masks', which `split_levels` takes apart: each next counts half as much, 1/16 at least.
        samples: the site's training images.
        training: loss, optimiser and batches.
        rate: the round's learning rate, of `learning_rate`.
        seed: of the order of images and the augmentation.
        held: by parameter, bool in its shape: what the site holds of it; the rest is zero after every step. None: all.
        extra_loss: added to the run's, of the augmented batch.
        penalty: likewise, of the trainable parameters (d,); it does not count in the mean that is returned.
        shift: (d,) added to the gradient of every step.
        checkpoint: from which the training continues if it was cut short; None: it keeps none.
    """
    from monai.losses import DeepSupervisionLoss

    device = next(network.parameters()).device
    loss_function = build_loss(training.loss)
    of_levels = DeepSupervisionLoss(loss_function)
    optimizer = build_optimizer(network, training, rate)
    parameters = list(flat.trainable(network).values())
    if held is not None:  # without it β of a BatchNorm would move, and all by momentum
        optimizer.register_step_post_hook(lambda *_: _drop_neurons(held))
    transforms = AUGMENTATIONS.get(training.augmentation)
    augment = Augmenter(transforms, seed, device) if transforms else None
    precision = choose_precision(device, training.amp)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == torch.float16)
    shift = None if shift is None else shift.to(device)
    total = torch.zeros((), device=device)
    network.train()
    parts: list[Restorable] = [network, optimizer, scaler, *([augment] if augment else [])]
    done, steps = checkpoint.restore(total, *parts) if checkpoint else 0, count_steps(samples, training)
    for step, (images, masks) in enumerate(draw_batches(samples, training, seed, device, done), done + 1):
        if augment:
            images, masks = augment(images, masks)
        optimizer.zero_grad(set_to_none=True)
        with autocast(device, precision):
            logits, *others = split_levels(network(images), masks.ndim)
            loss = of_levels([logits, *others], masks) if others else loss_function(logits, masks)
            if extra_loss:
                loss = loss + extra_loss(images, logits)
        whole = loss + penalty(_vector(parameters)) if penalty else loss
        scaler.scale(whole).backward()
        if shift is not None or training.clip_norm:
            scaler.unscale_(optimizer)
        if shift is not None:
            _add_to_gradients(parameters, shift)
        if training.clip_norm:
            nn.utils.clip_grad_norm_(parameters, training.clip_norm)
        scaler.step(optimizer)
        scaler.update()
        total += loss.detach()
        if checkpoint:
            checkpoint.consider(step, steps, total, *parts)
    optimizer.zero_grad(set_to_none=True)  # a network may wait for its next round with many others
    return float(total) / steps


def draw_batches(
    samples: Samples, training: Training, seed: int, device: torch.device, done: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images and masks of every step of a round on ``device``, before the augmentation; without the first ``done``."""
    order = torch.Generator().manual_seed(seed)
    weighs = training.organ_share > 0 and not samples.roams
    loader: DataLoader[Tensor] = DataLoader(
        range(len(samples)),  # type: ignore[arg-type]  # their places: a batch is read at once
        batch_size=training.batch_size,
        shuffle=not weighs,
        sampler=_oversample_labels(samples, training.organ_share, order) if weighs else None,
        generator=order,
    )
    for step, places in enumerate(islice(chain.from_iterable(repeat(loader)), count_steps(samples, training))):
        if step >= done or samples.roams:  # what roams draws from ``order`` in every step
            batch = samples.draw(places, device, training.organ_share, order)
        if step >= done:
            yield batch


def _oversample_labels(samples: Samples, share: float, order: torch.Generator) -> WeightedRandomSampler:
    """As many samples as there are, drawn so that ``share`` of them, if not more, is expected to show a label."""
    shown = samples.shows_label
    present = max(share, float(shown.double().mean())) if shown.any() else 0.0
    weights = torch.where(shown, present / max(int(shown.sum()), 1), (1 - present) / max(int((~shown).sum()), 1))
    return WeightedRandomSampler(weights.tolist(), len(samples), generator=order)


BETAS = (0.9, 0.99)  # those of Jiang et al. 2023
MakeOptimizer = Callable[[Iterator[nn.Parameter], Training, float], torch.optim.Optimizer]


def _sgd(parameters: Iterator[nn.Parameter], training: Training, rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=rate, momentum=training.momentum, weight_decay=training.weight_decay)


def _adam(parameters: Iterator[nn.Parameter], training: Training, rate: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=rate, betas=BETAS, weight_decay=training.weight_decay, fused=True)


def _adamw(parameters: Iterator[nn.Parameter], training: Training, rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=rate, betas=BETAS, weight_decay=training.weight_decay, fused=True)


OPTIMIZERS: Catalogue[MakeOptimizer] = Catalogue(
    "optimizers",
    {"sgd": _sgd, "adam": _adam, "adamw": _adamw},
    callable,
    "what makes of parameters, the run's Training and a learning rate an optimiser",
)


def learning_rate(training: Training, round: int, rounds: int) -> float:
    """Of round t = ``round`` of T = ``rounds``, the same for all its steps."""
    done = round / rounds
    falling: Mapping[str, float] = {
        "constant": 1.0,
        "polynomial": math.pow(1 - done, 0.9),
        "cosine": (1 + math.cos(math.pi * done)) / 2,
        "step": training.decay ** (round // training.decay_every),
    }
    return training.lr * falling[training.schedule]


def build_optimizer(network: nn.Module, training: Training, rate: float) -> torch.optim.Optimizer:
    """A new one each round; `BadInput` if ``training`` names an unknown one."""
    return get_part(OPTIMIZERS, training.optimizer, "optimizer")(network.parameters(), training, rate)


def count_steps(samples: Samples, training: Training) -> int:
    """K, of the optimiser in a round."""
    return training.steps or -(-len(samples) // training.batch_size) * training.epochs


def _vector(parameters: Sequence[nn.Parameter]) -> Tensor:
    """(d,) with gradient, in the order of `flat.get_parameters`."""
    return torch.cat([parameter.reshape(-1) for parameter in parameters])


def _add_to_gradients(parameters: Sequence[nn.Parameter], shift: Tensor) -> None:
    pieces = torch.split(shift, [parameter.numel() for parameter in parameters])
    for parameter, piece in zip(parameters, pieces, strict=True):
        if parameter.grad is not None:
            parameter.grad += piece.view_as(parameter).to(parameter.grad)


@torch.no_grad()
def _drop_neurons(held: Mapping[nn.Parameter, Tensor]) -> None:
    for parameter, mask in held.items():
        parameter.mul_(mask)
