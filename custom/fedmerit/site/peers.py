"""Models that stay at their sites, and which peers share them in a round: the same at the server and at every site."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedmerit.contract.capabilities import LearnsFromPeers, Sharing
from fedmerit.contract.flat import Buffers
from fedmerit.errors import printable
from fedmerit.schema.codec import encode
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.egress import clear_message
from fedmerit.schema.messages import Evaluation, PeerModel, Task
from fedmerit.seeds import random_seed
from fedmerit.site.models import NOTHING, ModelsMadeHere, Outgoing, Received
from fedmerit.site.site_log import SiteLog, peer_digest
from fedmerit.trainers.memory import Learned, MemoryFolder

log = logging.getLogger(__name__)

UNREACHABLE = PeerModel(torch.empty(0), {}, math.nan)  # of a peer that does not answer: it fits no network
AskPeer = Callable[[str, int], PeerModel | None]  # from a peer's name and the round: its model, None: it shares none


def shares_with(probability: float, seed: int, giver: str, receiver: str, round: int) -> bool:
    """Return whether a site shares its model with another.

    Z < ``probability``, z uniform, the same wherever it is drawn.
    """
    draw = torch.Generator().manual_seed(random_seed(seed, giver, "shares with", receiver, round))
    return float(torch.rand((), generator=draw, dtype=torch.float64)) < probability


def find_givers(sharing: Sharing, seed: int, sites: Sequence[str], receiver: int, round: int) -> list[int]:
    """Return the places in ``sites`` of those that share with the one at place ``receiver``, in order."""
    return [
        place
        for place, giver in enumerate(sites)
        if place != receiver
        and shares_with(float(sharing.probability[place, receiver]), seed, giver, sites[receiver], round)
    ]


class ModelsOfSites(ModelsMadeHere):
    """A site's model that stays there; a peer that learns from one asks the site for it."""

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
        """Return the site's own model, and those that its peers share with it."""
        memory = self.memory.latest(task.round)
        peers = {}
        for peer, so_far in task.others.items():
            shared = self._ask(task, peer)
            if shared is not None:
                peers[peer] = replace(shared, weight=memory.weights.get(peer, so_far) if memory else so_far)
        model, buffers = self._own(task.round)
        return Received(replace(task, parameters=model, buffers=buffers, peers=peers), model, memory)

    def outgoing(self, learned: Learned) -> Outgoing:
        """Return nothing of the model."""
        return Outgoing(NOTHING, {})

    def final(self, task: Evaluation) -> tuple[str, Tensor, Buffers] | None:
        """Return the site's own model, which it saves among the run's models."""
        return self.name, *self._own(task.round)

    def give(self, receiver: str, round: int) -> PeerModel | None:
        """Return the model, if the site shares it with ``receiver``, by its own memory; logged.

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
        """Return the model of a peer, `UNREACHABLE` if it does not answer; either is logged. None: it shares none."""
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
        """Return the parameters (d,) and statistics that the site starts a round from."""
        memory = self.memory.latest(round)
        return self.start if memory is None else (memory.model, memory.buffers)
