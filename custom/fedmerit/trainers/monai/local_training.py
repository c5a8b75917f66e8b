"""Local training: loss, optimizer, batches and steps of one site's round."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, WeightedRandomSampler

from fedmerit.contract import flat
from fedmerit.contract.capabilities import ExtraLoss, Penalty
from fedmerit.errors import BadInput
from fedmerit.plugins import Catalogue, get_part
from fedmerit.schema.configuration.settings import Training
from fedmerit.trainers.monai.augmentation import AUGMENTATIONS, Augmenter
from fedmerit.trainers.monai.cuda_graphs import CAPTURING, captured_steps, forget_steps
from fedmerit.trainers.monai.generators import make_generator
from fedmerit.trainers.monai.networks import split_levels
from fedmerit.trainers.monai.prediction import autocast, choose_precision
from fedmerit.trainers.monai.samples import Samples
from fedmerit.trainers.privacy_budget import steps_per_round
from fedmerit.trainers.step_commitments import TrainingCommitments
from fedmerit.trainers.training_checkpoint import Restorable, TrainingCheckpoint

if TYPE_CHECKING:
    from fedmerit.trainers.monai.private_training import PrivateTraining


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
    """Return the loss registered as ``name``, of logits and masks (batch, labels, h, w).

    Built in are "dice" (soft Dice, in [0, 1]) and "dice_ce" (soft Dice plus binary cross-entropy).

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
    """Yield at most ``count`` batches of ``size`` images and masks, spread evenly over the samples, as they are."""
    images = min(len(samples), count * size)
    chosen = Subset(samples, [place * len(samples) // images for place in range(images)])
    for batch, masks in DataLoader(chosen, batch_size=size):
        yield batch.to(device), masks.to(device)


def train(
    network: nn.Module,
    samples: Samples,
    training: Training,
    rate: float,
    seed: int | str,
    held: Mapping[nn.Parameter, Tensor] | None = None,
    extra_loss: ExtraLoss | None = None,
    penalty: Penalty | None = None,
    shift: Tensor | None = None,
    checkpoint: TrainingCheckpoint | None = None,
    commitments: TrainingCommitments | None = None,
    private: "PrivateTraining | None" = None,
) -> float:
    """Train in place for one round, on the device the network is on; the mean loss of its batches, NaN if private.

    Args:
        network: gives logits (batch, labels, h, w); with deep supervision several of these, of any sizes, the first of
            the masks', which `split_levels` takes apart: each next counts half as much, 1/16 at least.
        samples: the site's training images.
        training: loss, optimiser and batches.
        rate: the round's learning rate, of `learning_rate`.
        seed: of the order of images and the augmentation, as of `make_generator`.
        held: by parameter, bool in its shape: what the site holds of it; the rest is zero after every step. None: all.
        extra_loss: added to the run's, of the augmented batch.
        penalty: likewise, of the trainable parameters (d,); it does not count in the mean that is returned.
        shift: (d,) added to the gradient of every step.
        checkpoint: from which the training continues if it was cut short; None: it keeps none.
        commitments: digests of the states after some steps; None: none are made.
        private: draws patients, and gives noisy gradients of them; None: gradients are those of batches.
    """
    from monai.losses import DeepSupervisionLoss

    device = next(network.parameters()).device
    loss_function = build_loss(training.loss)
    of_levels = DeepSupervisionLoss(loss_function)
    parameters = list(flat.trainable(network).values())
    transforms = AUGMENTATIONS.get(training.augmentation)
    augment = Augmenter(transforms, seed, device) if transforms else None
    precision = choose_precision(device, training.amp)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == torch.float16)
    shift = None if shift is None else shift.to(device)
    changes_with_rounds = any(part is not None for part in (held, extra_loss, penalty, shift, private))
    captured = None
    if training.capture and device.type in CAPTURING and not changes_with_rounds and not scaler.is_enabled():
        captured = captured_steps(network, training, lambda: build_optimizer(network, training, rate))
        captured.begin(rate)
    optimizer = captured.optimizer if captured else build_optimizer(network, training, rate)
    if held is not None:  # without it β of a BatchNorm would move, and all by momentum
        optimizer.register_step_post_hook(lambda *_: _drop_neurons(held))
    total = captured.total if captured else torch.zeros((), device=device)
    network.train()
    parts: list[Restorable] = [network, optimizer, scaler, *([augment] if augment else [])]
    kept = [*parts, *([commitments] if commitments else [])]
    done, steps = checkpoint.restore(total, *kept) if checkpoint else 0, count_steps(samples, training)
    if captured and done:  # the optimizer's state has another place
        forget_steps(network)
        captured = None
    note = commitments.note_batch if commitments else None
    drawn = private.draw_places() if private else None

    def batch_loss(images: Tensor, masks: Tensor) -> Tensor:
        with autocast(device, precision):
            logits, *others = split_levels(network(images), masks.ndim)
            loss: Tensor = of_levels([logits, *others], masks) if others else loss_function(logits, masks)
            return loss + extra_loss(images, logits) if extra_loss else loss

    def step_on(images: Tensor, masks: Tensor, *chance: Tensor) -> None:
        """Take a step on a batch, augmented as ``chance`` says."""
        nonlocal total
        if augment and len(images):
            images, masks = augment.transform(images, masks, *chance)
        optimizer.zero_grad(set_to_none=True)
        if private:
            private.add_gradients(step, optimizer, batch_loss, images, masks)
            if penalty:  # it depends on no image
                torch.autograd.backward(penalty(_vector(parameters)))
        else:
            loss = batch_loss(images, masks)
            whole = loss + penalty(_vector(parameters)) if penalty else loss
            torch.autograd.backward(scaler.scale(whole))
            total += loss.detach()
        if shift is not None or training.clip_norm:
            scaler.unscale_(optimizer)
        if shift is not None:
            _add_to_gradients(parameters, shift)
        if training.clip_norm:
            nn.utils.clip_grad_norm_(parameters, training.clip_norm)
        scaler.step(optimizer)
        scaler.update()

    with captured.at_work() if captured else nullcontext():
        batches = draw_batches(samples, training, seed, device, done, note, drawn)
        for step, (images, masks) in enumerate(batches, done + 1):
            chance = augment.draw(images) if augment and len(images) else ()
            if captured:
                captured.take(step_on, images, masks, *chance)
            else:
                step_on(images, masks, *chance)
            if commitments:
                commitments.note_step(steps, network, *parts[1:])
            if checkpoint:
                checkpoint.consider(step, steps, total, *kept)
        optimizer.zero_grad(set_to_none=True)  # a network may wait for its next round with many others
        return math.nan if private else float(total) / steps


def draw_batches(
    samples: Samples,
    training: Training,
    seed: int | str,
    device: torch.device,
    done: int = 0,
    note: Callable[[Tensor, torch.Generator], None] | None = None,
    drawn: Iterator[Tensor] | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield images and masks of every step of a round on ``device``, before the augmentation.

    Without the first ``done``. ``note`` is called before each with its places among the samples, and the generator.
    ``drawn`` are the places of every step, instead of those of `draw_places`; of a step without any, images and masks
    are empty.
    """
    order = make_generator(seed)
    every = drawn or draw_places(samples, training, order)
    for step, places in enumerate(islice(every, count_steps(samples, training))):
        if not len(places):
            batch = torch.zeros(0), torch.zeros(0)
        elif step >= done or samples.roams:  # what roams draws from ``order`` in every step
            batch = samples.draw(places, device, training.organ_share, order)
        if step >= done:
            if note:
                note(places, order)
            yield batch


def draw_places(samples: Samples, training: Training, order: torch.Generator) -> Iterator[Tensor]:
    """Return, without end, the places (batch,) of each step's samples, drawn by the generator ``order``.

    Every sample comes once an epoch, unless those with a label are preferred.
    """
    weighs = training.organ_share > 0 and not samples.roams
    loader: DataLoader[Tensor] = DataLoader(
        range(len(samples)),  # type: ignore[arg-type]  # their places: a batch is read at once
        batch_size=training.batch_size,
        shuffle=not weighs,
        sampler=_oversample_labels(samples, training.organ_share, order) if weighs else None,
        generator=order,
    )
    return chain.from_iterable(repeat(loader))


def _oversample_labels(samples: Samples, share: float, order: torch.Generator) -> WeightedRandomSampler:
    """Return a sampler of as many samples, drawn so that ``share`` of them or more is expected to show a label."""
    shown = samples.shows_label
    present = max(share, float(shown.double().mean())) if shown.any() else 0.0
    weights = torch.where(shown, present / max(int(shown.sum()), 1), (1 - present) / max(int((~shown).sum()), 1))
    return WeightedRandomSampler(weights.tolist(), len(samples), generator=order)


BETAS = (0.9, 0.99)  # those of Jiang et al. 2023
MakeOptimizer = Callable[[Iterator[nn.Parameter], Training, Any], torch.optim.Optimizer]


def _sgd(parameters: Iterator[nn.Parameter], training: Training, rate: float | Tensor) -> torch.optim.Optimizer:
    on_gpu = isinstance(rate, Tensor) or None
    decay = training.weight_decay
    return torch.optim.SGD(parameters, lr=rate, momentum=training.momentum, weight_decay=decay, fused=on_gpu)


def _adam(parameters: Iterator[nn.Parameter], training: Training, rate: float | Tensor) -> torch.optim.Optimizer:
    on_gpu = isinstance(rate, Tensor)
    decay = training.weight_decay
    return torch.optim.Adam(parameters, lr=rate, betas=BETAS, weight_decay=decay, fused=True, capturable=on_gpu)


def _adamw(parameters: Iterator[nn.Parameter], training: Training, rate: float | Tensor) -> torch.optim.Optimizer:
    on_gpu = isinstance(rate, Tensor)
    decay = training.weight_decay
    return torch.optim.AdamW(parameters, lr=rate, betas=BETAS, weight_decay=decay, fused=True, capturable=on_gpu)


OPTIMIZERS: Catalogue[MakeOptimizer] = Catalogue(
    "optimizers",
    {"sgd": _sgd, "adam": _adam, "adamw": _adamw},
    callable,
    "what makes of parameters, the run's Training and a learning rate (a tensor on a GPU) an optimiser",
)


def learning_rate(training: Training, round: int, rounds: int) -> float:
    """Return the learning rate of round t = ``round`` of T = ``rounds``, the same for all its steps."""
    done = round / rounds
    falling: Mapping[str, float] = {
        "constant": 1.0,
        "polynomial": math.pow(1 - done, 0.9),
        "cosine": (1 + math.cos(math.pi * done)) / 2,
        "step": training.decay ** (round // training.decay_every),
    }
    return training.lr * falling[training.schedule]


def build_optimizer(network: nn.Module, training: Training, rate: float) -> torch.optim.Optimizer:
    """Return a new optimizer for a round; on a GPU its rate is a tensor there, which a captured step can read.

    Raises:
        BadInput: ``training`` names an unknown one.
    """
    device = next(network.parameters()).device
    there = torch.tensor(rate, device=device) if device.type == "cuda" else rate
    return get_part(OPTIMIZERS, training.optimizer, "optimizer")(network.parameters(), training, there)


def check_parts(training: Training, shape: Sequence[int]) -> None:
    """Check the loss and the optimizer, which may be others', by a step on logits and masks of a shape.

    Raises:
        BadInput: one of them fails, or is not what its catalogue expects.
    """
    logits, masks = nn.Parameter(torch.zeros(*shape)), torch.zeros(*shape)
    masks[..., ::2] = 1
    with _refused(f"loss {training.loss!r}", LOSSES.expected):
        loss = build_loss(training.loss)(logits, masks)
        if not isinstance(loss, Tensor) or loss.ndim or not loss.requires_grad or not loss.isfinite():
            raise TypeError(f"returned {loss!r:.80}, not a finite number with a gradient")
        torch.autograd.backward(loss)
    with _refused(f"optimizer {training.optimizer!r}", OPTIMIZERS.expected):
        optimizer = build_optimizer(nn.ParameterList([logits]), training, training.lr)
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"returned {optimizer!r:.80}, not a torch.optim.Optimizer")
        optimizer.step()


@contextmanager
def _refused(part: str, expected: str) -> Iterator[None]:
    """Raise `BadInput`, with what was expected, for an error of code that may be others'."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{part}: {type(error).__name__}, {error}; expected {expected}") from error


def count_steps(samples: Samples, training: Training) -> int:
    """Return the number K of optimizer steps per round."""
    return steps_per_round(len(samples), training)


def _vector(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Return (d,) with gradient, in the order of `flat.get_parameters`."""
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
