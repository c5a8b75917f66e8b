"""A site's model: how the site receives it, what of it leaves, and which one it tests in the end."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedmerit.ciphertexts import Ciphertexts
from fedmerit.contract import flat
from fedmerit.contract.flat import Buffers
from fedmerit.errors import MemoryLost
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.messages import LOST_MEMORY, Evaluation, PeerModel, Task
from fedmerit.trainers.factory import initial_network
from fedmerit.trainers.memory import Learned, Memory, MemoryFolder

NOTHING = torch.empty(0)  # instead of what does not leave the site


@dataclass(frozen=True)
class Received:
    """A task with its model whole."""

    task: Task
    model: Tensor  # (d,)
    memory: Memory | None  # of the round before


@dataclass(frozen=True)
class Outgoing:
    """A part of a round's training that leaves the site."""

    update: Tensor  # (d,); (0,): none in the clear
    buffers: Buffers
    ciphertexts: Ciphertexts | None = None


class ModelsFromServer:
    """A site's models in the clear, both ways."""

    def __init__(self, memory: MemoryFolder):
        self.memory = memory

    def receive(self, task: Task) -> Received:
        """Return the model of a task, on the CPU; `MemoryLost` if the model that it changes is gone."""
        memory = self.memory.read(task.round - 1)
        if task.changes is None:
            return Received(task, task.parameters, memory)
        if memory is None:
            raise MemoryLost(LOST_MEMORY)
        return Received(task, task.changes.apply(memory.received), memory)

    def outgoing(self, learned: Learned) -> Outgoing:
        """Update and statistics in the clear."""
        return Outgoing(learned.update, learned.buffers)

    def seen(self, received: Received) -> Tensor | Ciphertexts:
        """Return what the site's log records as received."""
        return received.model

    def final(self, task: Evaluation) -> tuple[str, Tensor, Buffers] | None:
        """Name, parameters (d,) and statistics of the model to test; None: the server sent it with the task."""
        if task.models.shape[1]:
            return None
        memory = self.memory.latest(task.round)
        if memory is None or memory.own is None:
            raise MemoryLost(LOST_MEMORY)
        return "", *memory.own

    def give(self, receiver: str, round: int) -> PeerModel | None:
        """Return the site's model for a peer to learn from; this kind goes only through the server."""
        return None


class ModelsMadeHere(ModelsFromServer):
    """The server sees no model, so the site makes the first itself."""

    def __init__(self, memory: MemoryFolder, config: RunConfiguration, name: str):
        super().__init__(memory)
        self.config, self.name = config, name
        # made here: it borrows the global random state, and sites work in threads
        self.initial = initial_network(config.network, config.seed)
        self.start: tuple[Tensor, Buffers] = flat.get_parameters(self.initial), flat.get_buffers(self.initial)

    def seen(self, received: Received) -> Tensor | Ciphertexts:
        """Return the ciphertexts; nothing if none came."""
        return received.task.ciphertexts or NOTHING
