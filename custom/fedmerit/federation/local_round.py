"""What a site remembers of a round, on disk.

The memory of round t is one file, written when the round is done and kept until round t+1 is. A process that
is killed, swapped out or replaced loses nothing, and a round can be repeated.

A site's training of one round: as every site trains, with its peers' predictions, or as the method has it.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from fedmerit import flat
from fedmerit.capabilities import (
    LearnsFromPeers,
    PeerTerm,
    PeerView,
    Penalty,
    Trained,
    TrainingView,
    TrainsLocally,
    capabilities,
)
from fedmerit.configuration.run import RunConfiguration
from fedmerit.core import Method
from fedmerit.errors import printable
from fedmerit.federation.peers import ModelExchange
from fedmerit.files import write_atomically
from fedmerit.flat import Buffers
from fedmerit.seeds import random_seed
from fedmerit.trainers.monai_trainer.data import Samples
from fedmerit.trainers.monai_trainer.local_training import build_loss, count_steps, fixed_batches, learning_rate, train
from fedmerit.trainers.monai_trainer.neurons import owned_parameters
from fedmerit.wire.messages import Task


@dataclass(frozen=True)
class Learned:
    """What a round's training gave."""

    update: Tensor  # (d,) trained minus received
    trained: Tensor  # (d,)
    buffers: Buffers  # after training
    loss: float  # mean of the batches
    pairs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # what it found of its peers
    weights: Mapping[str, float] = field(default_factory=dict)  # that it gives them from now on
    vectors: Mapping[str, Tensor] = field(default_factory=dict)  # (d,) each, to send beside the update
    kept: Mapping[str, Tensor] = field(default_factory=dict)  # what the method keeps here for the next round
    own: tuple[Tensor, Buffers] | None = None  # a model of the site's own (d,), and its statistics


@dataclass(frozen=True)
class Memory:
    """What a site remembers of a round."""

    received: Tensor  # (d,)
    trained: Tensor  # (d,)
    buffers: Buffers  # after training
    weights: Mapping[str, float] = field(default_factory=dict)  # that it gives its peers
    kept: Mapping[str, Tensor] = field(default_factory=dict)  # as in `Learned`
    own: tuple[Tensor, Buffers] | None = None  # likewise

    @property
    def model(self) -> Tensor:
        """(d,) what came of the round: received plus update, rounded as where the update travels."""
        return self.received + (self.trained - self.received)


class MemoryFolder:
    """The memories of one site.

    Args:
        path: a folder of its own.
    """

    def __init__(self, path: Path):
        self.path = path

    def remember(self, round: int, memory: Memory) -> None:
        """Write down what is remembered of ``round``, and forget all but that and the round before."""
        file = self._file(round)
        write_atomically(file, lambda stream: torch.save(vars(memory), stream))
        kept = (file, max(self._files(round), default=None))
        for old in self.path.glob("round_*.pt"):
            if old not in kept:
                old.unlink()

    def of(self, round: int) -> Memory | None:
        """That of ``round``, if it is there."""
        file = self._file(round)
        return _read(file) if file.exists() else None

    def latest(self, round: int) -> Memory | None:
        """That of the last round before ``round`` that the site did."""
        files = self._files(round)
        return _read(max(files)) if files else None

    def _file(self, round: int) -> Path:
        return self.path / f"round_{round:05d}.pt"

    def _files(self, round: int) -> list[Path]:
        """Those of earlier rounds."""
        return [file for file in self.path.glob("round_*.pt") if file < self._file(round)]


def _read(file: Path) -> Memory:
    """What a file holds; memory-mapped, as most methods look at none of its vectors."""
    return Memory(**torch.load(file, weights_only=True, mmap=True))


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
    training_seed_site: str
    validation_dice: Callable[[nn.Module], float]
    task: Task

    def learn(self, received: Tensor, memory: Memory | None) -> Learned:
        """Train from ``received`` (d,); ``memory`` is that of its last round."""
        can = capabilities(self.method)
        if can.local_training:
            return self._learn_its_way(can.local_training, received, memory)
        flat.load(self.network, received, self.task.buffers)
        if can.peers and self.task.peers:
            return self._learn_from_peers(can.peers, received)
        held = None if self.task.neurons is None else owned_parameters(self.network, self.task.neurons)
        loss = train(self.network, self.samples, self.config.training, self._rate, self._seed, held)
        return self._learned(received, loss)

    @property
    def _seed(self) -> int:
        return random_seed(self.config.seed, self.training_seed_site, self.task.round)

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
            network = self.network if peer is None else exchange.find_network(peer)
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
            return Trained(trained, statistics, loss, count_steps(self.samples, settings), rate)

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
