"""The order of one site's round: report, train, learn from peers."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedmerit.contract import capabilities, flat
from fedmerit.contract.flat import Buffers
from fedmerit.contract.method import Method, SiteView
from fedmerit.errors import BadInput, printable
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.configuration.settings import Network
from fedmerit.schema.expected import check_model
from fedmerit.schema.messages import PeerModel, Task
from fedmerit.seeds import random_seed
from fedmerit.trainers.memory import Learned, Memory
from fedmerit.trainers.monai.evaluation import estimate_statistics
from fedmerit.trainers.monai.local_training import build_loss, count_steps, fixed_batches, learning_rate, train
from fedmerit.trainers.monai.networks import build_network
from fedmerit.trainers.monai.neurons import owned_parameters
from fedmerit.trainers.monai.prediction import image_losses
from fedmerit.trainers.monai.samples import Samples
from fedmerit.trainers.privacy_budget import Mechanism
from fedmerit.trainers.statistics import estimates_statistics, statistics_rule
from fedmerit.trainers.step_commitments import RoundCommitments
from fedmerit.trainers.training_checkpoint import RoundCheckpoints

if TYPE_CHECKING:
    from fedmerit.trainers.monai.private_training import PrivateTraining


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
