"""A site's model: how the site receives it, what of it leaves, and which one it tests in the end.

The counterparts at the server are `fedmerit.server.models` and `unseen_models`. `find_givers` and
`shares_with` say which peers share models in a round, the same at the server and at every site.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedmerit.ciphertexts import Ciphertexts, SiteKey
from fedmerit.contract import flat
from fedmerit.contract.capabilities import LearnsFromPeers, Sharing
from fedmerit.contract.flat import Buffers
from fedmerit.errors import BadInput, MemoryLost, printable
from fedmerit.schema.codec import encode
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.egress import clear_message
from fedmerit.schema.expected import check_model
from fedmerit.schema.messages import LOST_MEMORY, Evaluation, PeerModel, Task
from fedmerit.seeds import random_seed
from fedmerit.site.site_log import SiteLog, peer_digest
from fedmerit.trainers.factory import initial_network
from fedmerit.trainers.memory import Learned, Memory, MemoryFolder

log = logging.getLogger(__name__)

OTHER_KEY = "do all sites have kits of the same `fedmerit deploy init --he`?"
NOTHING = torch.empty(0)  # instead of what does not leave the site
UNREACHABLE = PeerModel(torch.empty(0), {}, math.nan)  # of a peer that does not answer: it fits no network
AskPeer = Callable[[str, int], PeerModel | None]  # from a peer's name and the round: its model, None: it shares none


def shares_with(probability: float, seed: int, giver: str, receiver: str, round: int) -> bool:
    """Whether a site shares its model with another: z < ``probability``, z uniform, the same wherever it is drawn."""
    draw = torch.Generator().manual_seed(random_seed(seed, giver, "shares with", receiver, round))
    return float(torch.rand((), generator=draw, dtype=torch.float64)) < probability


def find_givers(sharing: Sharing, seed: int, sites: Sequence[str], receiver: int, round: int) -> list[int]:
    """The places in ``sites`` of those that share with the one at place ``receiver``, in order."""
    return [
        place
        for place, giver in enumerate(sites)
        if place != receiver
        and shares_with(float(sharing.probability[place, receiver]), seed, giver, sites[receiver], round)
    ]


@dataclass(frozen=True)
class Received:
    """A task with its model whole."""

    task: Task
    model: Tensor  # (d,)
    memory: Memory | None  # of the round before


@dataclass(frozen=True)
class Outgoing:
    """What of a round's training leaves the site."""

    update: Tensor  # (d,); (0,): none in the clear
    buffers: Buffers
    ciphertexts: Ciphertexts | None = None


class ModelsFromServer:
    """In the clear, both ways."""

    def __init__(self, memory: MemoryFolder):
        self.memory = memory

    def receive(self, task: Task) -> Received:
        """The model of a task, on the CPU; `MemoryLost` if the model that it changes is gone."""
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
        """What the site's log records as received."""
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
        """The site's model for a peer to learn from; this kind goes only through the server."""
        return None


class _OwnStart(ModelsFromServer):
    """The server sees no model, so the site makes the first itself."""

    def __init__(self, memory: MemoryFolder, config: RunConfiguration, name: str):
        super().__init__(memory)
        self.config, self.name = config, name
        # made here: it borrows the global random state, and sites work in threads
        self.initial = initial_network(config.network, config.seed)
        self.start: tuple[Tensor, Buffers] = flat.get_parameters(self.initial), flat.get_buffers(self.initial)

    def seen(self, received: Received) -> Tensor | Ciphertexts:
        """The ciphertexts; nothing if none came."""
        return received.task.ciphertexts or NOTHING


class EncryptedModelsFromServer(_OwnStart):
    """As ciphertexts, both ways."""

    def __init__(self, memory: MemoryFolder, config: RunConfiguration, name: str, key: SiteKey):
        super().__init__(memory, config, name)
        self.key = key

    def receive(self, task: Task) -> Received:
        """The model that the ciphertexts hold."""
        model, buffers = self._decrypted(task.ciphertexts)
        return Received(replace(task, parameters=model, buffers=buffers), model, self.memory.read(task.round - 1))

    def outgoing(self, learned: Learned) -> Outgoing:
        """Update and statistics encrypted."""
        return Outgoing(NOTHING, {}, self.key.encrypt(learned.update, learned.buffers))

    def final(self, task: Evaluation) -> tuple[str, Tensor, Buffers] | None:
        """The global model, which the site saves among the run's models."""
        return "global", *self._decrypted(task.ciphertexts)

    def _decrypted(self, ciphertexts: Ciphertexts | None) -> tuple[Tensor, Buffers]:
        """The model (d,) and statistics that the server cannot read; those of the start, if nothing was added yet.

        Raises:
            BadInput: they are no model, for example because sites have different keys.
        """
        start, statistics = self.start
        if ciphertexts is None:
            return start, statistics
        try:
            added, buffers = self.key.decrypt(ciphertexts, statistics)
            model = (start.double() + added).to(start.dtype)
        except (ValueError, RuntimeError) as error:
            raise BadInput(f"site {self.name}: cannot decrypt the model ({error}); {OTHER_KEY}") from error
        if fault := check_model(model, buffers, start, statistics):
            raise BadInput(f"site {self.name}: decrypts what is no model ({fault}); {OTHER_KEY}")
        return model, buffers


class ModelsOfSites(_OwnStart):
    """Models stay at their sites; a peer that learns from one asks the site for it."""

    def __init__(
        self,
        memory: MemoryFolder,
        config: RunConfiguration,
        name: str,
        method: LearnsFromPeers,
        ask_peer: AskPeer,
        site_log: SiteLog,
    ):
        super().__init__(memory, config, name)
        self.method, self.ask_peer, self.log = method, ask_peer, site_log

    def receive(self, task: Task) -> Received:
        """The site's own model, and those that its peers share with it."""
        memory = self.memory.latest(task.round)
        peers = {}
        for peer, so_far in task.others.items():
            shared = self._ask(task, peer)
            if shared is not None:
                peers[peer] = replace(shared, weight=memory.weights.get(peer, so_far) if memory else so_far)
        model, buffers = self._own(task.round)
        return Received(replace(task, parameters=model, buffers=buffers, peers=peers), model, memory)

    def outgoing(self, learned: Learned) -> Outgoing:
        """Nothing of the model."""
        return Outgoing(NOTHING, {})

    def final(self, task: Evaluation) -> tuple[str, Tensor, Buffers] | None:
        """Its own, which the site saves among the run's models."""
        return self.name, *self._own(task.round)

    def give(self, receiver: str, round: int) -> PeerModel | None:
        """The model, if the site shares it with ``receiver``, by its own memory; logged.

        Raises:
            Withheld: the model has what `fedmerit.schema.egress` does not list, and must not leave.
        """
        memory = self.memory.read(round - 1)
        if memory is None and round:
            return None
        weight = torch.tensor(memory.weights.get(receiver, math.nan) if memory else math.nan, dtype=torch.float64)
        if not shares_with(float(self.method.probability(weight, round)), self.config.seed, self.name, receiver, round):
            return None
        model = PeerModel(*self._own(round), math.nan)
        clear_message(*encode(model, self.initial))
        self.log.gave_model(round, receiver, peer_digest(model))
        return model

    def _ask(self, task: Task, peer: str) -> PeerModel | None:
        """The model of a peer, `UNREACHABLE` if it does not answer; either is logged. None: it shares none."""
        digest = None
        try:
            model = self.ask_peer(peer, task.round)
            if model is None:
                return None
            digest = peer_digest(model)
        except Exception as error:  # of any kind, at the peer or on the way; its text may name files
            kind = type(error).__name__
            log.warning("round %d: %.80s cannot be asked for its model: %s", task.round, printable(peer), kind)
            model = UNREACHABLE
        self.log.got_model(task, peer, digest)
        return model

    def _own(self, round: int) -> tuple[Tensor, Buffers]:
        """The parameters (d,) and statistics that the site starts a round from."""
        memory = self.memory.latest(round)
        return self.start if memory is None else (memory.model, memory.buffers)
