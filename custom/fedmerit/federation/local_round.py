"""A site's training of one round: as every site trains, with its peers' predictions, or as the method has it."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedmerit import flat
from fedmerit.capabilities.local_training import Penalty, Trained, TrainingView, TrainsLocally
from fedmerit.capabilities.peer_learning import LearnsFromPeers, PeerTerm, PeerView
from fedmerit.configuration.run import RunConfiguration
from fedmerit.core import Method
from fedmerit.errors import printable
from fedmerit.federation.memory import Learned, Memory
from fedmerit.federation.peers import ModelExchange
from fedmerit.flat import Buffers
from fedmerit.seeds import random_seed
from fedmerit.training.data import Samples
from fedmerit.training.learning import build_loss, fixed_batches, learning_rate, steps_of, train
from fedmerit.training.neurons import held_parameters
from fedmerit.wire.messages import Task

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LocalRound:
    """What one site trains in one round.

    Args:
        config: the run.
        method: of it.
        network: that it trains; what it holds before is of no account.
        samples: that it trains on.
        device: where the network is.
        seeded_as: the name that its random numbers are drawn for, with the run's seed and the round.
        validation_dice: mean Dice, 0 to 1, of a network on the site's validation patients.
        task: what the server asks for, in the clear.
    """

    config: RunConfiguration
    method: Method
    network: nn.Module
    samples: Samples
    device: torch.device
    seeded_as: str
    validation_dice: Callable[[nn.Module], float]
    task: Task

    def learn(self, received: Tensor, memory: Memory | None) -> Learned:
        """Train from ``received`` (d,); ``memory`` is that of its last round."""
        if isinstance(self.method, TrainsLocally):
            return self._learn_its_way(self.method, received, memory)
        flat.load(self.network, received, self.task.buffers)
        if isinstance(self.method, LearnsFromPeers) and self.task.peers:
            return self._learn_from_peers(self.method, received)
        held = None if self.task.neurons is None else held_parameters(self.network, self.task.neurons)
        loss = train(self.network, self.samples, self.config.training, self._rate, self._seed, held)
        return self._learned(received, loss)

    @property
    def _seed(self) -> int:
        return random_seed(self.config.seed, self.seeded_as, self.task.round)

    @property
    def _rate(self) -> float:
        return learning_rate(self.config.training, self.task.round, self.config.rounds)

    def _learned(self, received: Tensor, loss: float) -> Learned:
        """What the network has become."""
        trained = flat.get_parameters(self.network)
        return Learned(trained - received, trained, flat.get_buffers(self.network), loss)

    def _learn_from_peers(self, method: LearnsFromPeers, received: Tensor) -> Learned:
        """With the term that the method makes of the peers' predictions; the network is as it was received."""
        exchange = ModelExchange(self.task.peers, self.network, self.config.network)
        term = self._peer_term(method, exchange)
        loss = train(self.network, self.samples, self.config.training, self._rate, self._seed, extra_loss=term.loss)
        for peer, fault in exchange.faults.items():
            log.warning("round %d: %.80s is not available: %s", self.task.round, printable(peer), fault)
        available = {peer: float(peer not in exchange.faults) for peer in self.task.peers}
        pairs = {**term.values, "available": available}
        return replace(self._learned(received, loss), pairs=pairs, weights=term.weights)

    def _peer_term(self, method: LearnsFromPeers, exchange: ModelExchange) -> PeerTerm:
        def batches(count: int) -> Iterator[tuple[Tensor, Tensor]]:
            return fixed_batches(self.samples, count, self.config.training.batch_size, self.device)

        def validation_dice(peer: str | None) -> float | None:
            network = self.network if peer is None else exchange.network_of(peer)
            return None if network is None else self.validation_dice(network)

        weights = {peer: model.weight for peer, model in self.task.peers.items() if peer not in exchange.faults}
        loss = build_loss(self.config.training.loss)
        return method.learn_from(
            PeerView(self.task.round, weights, exchange.predict, self.network.eval(), batches, loss, validation_dice)
        )

    def _learn_its_way(self, method: TrainsLocally, received: Tensor, memory: Memory | None) -> Learned:
        """As the method has it, which trains once or more."""
        task, settings, rate = self.task, self.config.training, self._rate

        def once(
            start: Tensor,
            buffers: Buffers | None = None,
            penalty: Penalty | None = None,
            shift: Tensor | None = None,
        ) -> Trained:
            flat.load(self.network, start, task.buffers if buffers is None else buffers)
            loss = train(self.network, self.samples, settings, rate, self._seed, penalty=penalty, shift=shift)
            trained, statistics = flat.get_parameters(self.network), flat.get_buffers(self.network)
            return Trained(trained, statistics, loss, steps_of(self.samples, settings), rate)

        kept, own_before = (memory.kept, memory.own) if memory else ({}, None)
        result = method.train(TrainingView(received, task.buffers, task.vectors, kept, own_before, once))
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
