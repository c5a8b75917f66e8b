"""Local training: loss, optimizer and batches of one site's round, and its order: report, train, learn from peers."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, WeightedRandomSampler

from fedmerit.contract import capabilities, flat
from fedmerit.contract.capabilities import ExtraLoss, Penalty
from fedmerit.contract.flat import Buffers
from fedmerit.contract.method import Method, SiteView
from fedmerit.errors import BadInput, printable
from fedmerit.plugins import Catalogue, get_part
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.configuration.settings import Network, Training
from fedmerit.schema.expected import check_model
from fedmerit.schema.messages import PeerModel, Task
from fedmerit.seeds import random_seed
from fedmerit.trainers.memory import Learned, Memory
from fedmerit.trainers.monai.augmentation import AUGMENTATIONS, Augmenter
from fedmerit.trainers.monai.captured_steps import CAPTURING, captured_steps, forget_steps
from fedmerit.trainers.monai.evaluation import estimate_statistics
from fedmerit.trainers.monai.generators import make_generator
from fedmerit.trainers.monai.networks import build_network, split_levels
from fedmerit.trainers.monai.neurons import owned_parameters
from fedmerit.trainers.monai.prediction import autocast, choose_precision, image_losses
from fedmerit.trainers.monai.samples import Samples
from fedmerit.trainers.privacy_budget import Mechanism, steps_per_round
from fedmerit.trainers.statistics import estimates_statistics, statistics_rule
from fedmerit.trainers.step_commitments import RoundCommitments, TrainingCommitments
from fedmerit.trainers.training_checkpoint import Restorable, RoundCheckpoints, TrainingCheckpoint

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


log = logging.getLogger(__name__)


class ModelExchange:
    """The predictions of peers, made with their models here; an encrypted protocol would not need the models.

    A peer whose model does not fit, or predicts NaN or infinity, is not available for the rest of the round.

    Args:
        models: of the peers, by site name.
        own: the site's network, on the device to work on.
        network: its configuration.
    """

    def __init__(self, models: Mapping[str, PeerModel], own: nn.Module, network: Network):
        like, buffers = flat.get_parameters(own), flat.get_buffers(own)
        device = next(own.parameters()).device
        self.faults: dict[str, str] = {}  # by peer, why it is not available
        self._networks = {}
        for peer, model in models.items():
            if fault := check_model(model.parameters, model.buffers, like, buffers):
                self.faults[peer] = fault
            else:
                self._networks[peer] = build_network(network, device).eval()
                flat.load(self._networks[peer], model.parameters, model.buffers)

    def find_network(self, peer: str) -> nn.Module | None:
        """Return the peer's network in eval mode, or None."""
        return self._networks.get(peer)

    @torch.no_grad()
    def predict(self, peer: str, images: Tensor) -> Tensor | None:
        """Return logits (batch, labels, h, w) of ``peer`` for (batch, channels, h, w), or None."""
        if peer in self.faults:
            return None
        logits: Tensor = self._networks[peer](images)
        if not logits.isfinite().all():
            self.faults[peer] = "predictions with NaN or infinite entries"
            return None
        return logits


@dataclass(frozen=True)
class LocalRound:
    """A round's work at one site."""

    config: RunConfiguration
    method: Method
    can: capabilities.Capabilities
    network: nn.Module  # to work in; its content before does not matter
    samples: Samples  # training images
    device: torch.device
    training_seed_site: str  # seeds the random numbers, with the run's seed and the round
    # mean, 0 to 1, of a network on the site's validation patients; None: not known
    validation_dice: Callable[[nn.Module], float | None]
    task: Task  # the server's, in the clear
    checkpoints: RoundCheckpoints | None = None  # of its trainings; None: it keeps none
    commitments: RoundCommitments | None = None  # to its trainings; None: none are made
    has_secret: bool = False  # whether training_seed_site has a secret of the site
    mechanism: Mechanism | None = None  # of DP-SGD, by which the site trains then; None: it trains without

    def report(self, received: Tensor, memory: Memory | None, validation_dice: float | None) -> dict[str, float]:
        """Return the method's site half: the numbers that it asks for, of the model ``received`` (d,).

        ``memory`` is that of the round before, None if the site was away; ``validation_dice`` (0 to 1) is the model's.
        """
        if not self.method.asks:
            return {}

        def training_losses() -> Tensor:
            flat.load(self.network, received, self.task.buffers)
            return image_losses(self.network, self.samples, self.config.training.amp)

        view = SiteView(received.to(self.device), training_losses, validation_dice)
        values, measures = self.method.report(view), self.can.leave_one_out
        own = self._own_update(memory) if measures and memory else None
        return values | measures.measure(view, own) if measures and own else values

    def _own_update(self, memory: Memory) -> capabilities.OwnUpdate | None:
        """Return the site's last update in the received model.

        None: the model has no part of it, or of no other site.
        """
        weight, data_share = self.task.weight, self.task.data_share
        if weight is None or data_share is None or weight >= 1 or data_share >= 1:
            return None
        statistics, rule = self.task.buffers, statistics_rule(self.config.training, self.task.round - 1)
        if rule in ("models", "mean", "weights"):  # of the round that gave them; only those of the others
            share = weight if rule == "weights" else data_share
            statistics = flat.leave_out_buffers(self.task.buffers, memory.buffers, share)

        def validation_dice(parameters: Tensor) -> float | None:
            flat.load(self.network, parameters, statistics)
            if estimates_statistics(self.config.training):
                estimate_statistics(self.network, self.samples)
            return self.validation_dice(self.network)

        previous, trained = memory.received.to(self.device), memory.trained.to(self.device)
        return capabilities.OwnUpdate(previous, trained, weight, validation_dice)

    def learn(self, received: Tensor, memory: Memory | None) -> Learned:
        """Train from ``received`` (d,); ``memory`` is that of its last round."""
        if self.can.local_training:
            return self._train_locally(self.can.local_training, received, memory)
        flat.load(self.network, received, self.task.buffers)
        if self.can.peers and self.task.peers:
            return self._learn_from_peers(self.can.peers, received)
        held = None if self.task.neurons is None else owned_parameters(self.network, self.task.neurons)
        return self._learned(received, self._train(held=held))

    @property
    def _seeds(self) -> tuple[int, str, int]:
        return self.config.seed, self.training_seed_site, self.task.round

    @property
    def _key(self) -> str:
        return "/".join(map(str, self._seeds))

    @property
    def _rate(self) -> float:
        return learning_rate(self.config.training, self.task.round, self.config.rounds)

    def _learned(self, received: Tensor, loss: float) -> Learned:
        """Return what the network has learned, as trained."""
        trained = flat.get_parameters(self.network)
        return Learned(trained - received, trained, flat.get_buffers(self.network), loss)

    def _train(self, faults: dict[str, str] | None = None, **more: Any) -> float:
        """Train by the run's recipe. ``faults``: `ModelExchange.faults`; ``more`` are further arguments."""
        seed = self._key if self.has_secret else random_seed(*self._seeds)
        run = self.samples, self.config.training, self._rate, seed
        checkpoint = self.checkpoints.next(faults) if self.checkpoints else None
        commitments = self.commitments.next() if self.commitments else None
        more |= {"checkpoint": checkpoint, "commitments": commitments, "private": self._private()}
        return train(self.network, *run, **more)

    def _private(self) -> "PrivateTraining | None":
        if self.mechanism is None:
            return None
        from fedmerit.trainers.monai.private_training import PrivateTraining  # loads Opacus

        return PrivateTraining(self.samples, self.config.privacy, self.mechanism, self._key)

    def _learn_from_peers(self, method: capabilities.LearnsFromPeers, received: Tensor) -> Learned:
        """Train with the loss term of the peers' predictions; the network holds the received model."""
        exchange = ModelExchange(self.task.peers, self.network, self.config.network)
        term = self._peer_term(method, exchange)
        loss = self._train(exchange.faults, extra_loss=term.loss)
        for peer, fault in exchange.faults.items():
            log.warning("round %d: %.80s is not available: %s", self.task.round, printable(peer), fault)
        available = {peer: float(peer not in exchange.faults) for peer in self.task.peers}
        pairs = {**term.values, "available": available}
        return replace(self._learned(received, loss), pairs=pairs, weights=term.weights)

    def _peer_term(self, method: capabilities.LearnsFromPeers, exchange: ModelExchange) -> capabilities.PeerTerm:
        def batches(count: int) -> Iterator[tuple[Tensor, Tensor]]:
            return fixed_batches(self.samples, count, self.config.training.batch_size, self.device)

        def validation_dice(peer: str | None) -> float | None:
            network = self.network if peer is None else exchange.find_network(peer)
            return None if network is None else self.validation_dice(network)

        weights = {peer: model.weight for peer, model in self.task.peers.items() if peer not in exchange.faults}
        loss = build_loss(self.config.training.loss)
        return method.learn_from(
            capabilities.PeerView(
                self.task.round, weights, exchange.predict, self.network.eval(), batches, loss, validation_dice
            )
        )

    def _train_locally(self, method: capabilities.TrainsLocally, received: Tensor, memory: Memory | None) -> Learned:
        """Return, by the method's own local training, which trains once or more."""
        task, settings, rate = self.task, self.config.training, self._rate
        trainings: list[float] = []  # losses

        def once(
            start: Tensor,
            buffers: Buffers | None = None,
            penalty: capabilities.Penalty | None = None,
            shift: Tensor | None = None,
        ) -> capabilities.Trained:
            flat.load(self.network, start, task.buffers if buffers is None else buffers)
            if trainings and self.mechanism:
                raise BadInput(
                    f"dp_epsilon, dp_noise: method {self.config.method} trains twice in a round, and its steps are "
                    "accounted for once; take another method"
                )
            trainings.append(loss := self._train(penalty=penalty, shift=shift))
            trained, statistics = flat.get_parameters(self.network), flat.get_buffers(self.network)
            return capabilities.Trained(trained, statistics, loss, count_steps(self.samples, settings), rate)

        kept, own_before = (memory.kept, memory.own) if memory else ({}, None)
        result = method.train(capabilities.TrainingView(received, task.buffers, task.vectors, kept, own_before, once))
        trained, own = result.trained, result.own
        return Learned(
            update=trained.parameters - received,
            trained=trained.parameters,
            buffers=trained.buffers,
            loss=trained.loss,
            vectors=result.vectors,
            kept=result.kept,
            own=(own.parameters, own.buffers) if own else None,
        )
