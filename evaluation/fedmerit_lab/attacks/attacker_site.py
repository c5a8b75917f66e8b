"""A site that follows an attack: a wrapper around a `Site`, of which neither that site nor the server knows.

The attacker knows what a real site would: its own images, what it received, and what it remembers of the round before.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmerit.files import write_atomically
from fedmerit.schema.messages import Answer, Enrolment, EnrolmentTask, Evaluated, Evaluation, Purpose, Reply, Task, Work
from fedmerit.seeds import random_seed
from fedmerit.site.site import Site
from fedmerit.tensor_files import load_tensors
from fedmerit.trainers.memory import Learned, Memory
from fedmerit.trainers.monai.samples import build_samples
from fedmerit.trainers.monai.trainer import ImageTrainer
from fedmerit_lab.attacks.attack import Attack, AttackerView, parse_attack

KEPT = "behaviour.pt"  # in the site's memory folder: what an attack remembers for longer than a round
RANDOM_STREAM = "behaviour"  # part of the seeds of its random numbers


def wrap_attacker(site: Site, specs: Mapping[str, str]) -> Site:
    """Return the site, which follows the attack that ``specs`` has by its name, if any."""
    return AttackerSite(site, parse_attack(specs[site.name])) if site.name in specs else site


class AttackerSite(Site):
    """A site that is honest up to some round and follows an attack from then on, with the memory of the honest site.

    Args:
        honest: the site, of images.
        attack: the attack.
    """

    def __init__(self, honest: Site, attack: Attack):
        assert isinstance(honest.trainer, ImageTrainer)
        vars(self).update(vars(honest))  # memory, log and all are shared
        self.honest, self.attack = honest, attack
        self.trainer = AttackerTrainer(honest.trainer, attack)

    def answer(self, task: Work) -> Answer:
        """Return the answer to any task of the server."""
        return self.honest.answer(task) if task.round < self.attack.first else super().answer(task)

    def enrol(self, task: EnrolmentTask) -> Enrolment:
        """Return the enrolment that the attack commits to."""
        return self.attack.commit(super().enrol(task))

    def evaluate(self, task: Evaluation) -> Evaluated:
        """Return the attack's evaluation of models; final models are evaluated honestly."""
        evaluated = super().evaluate(task)
        if task.purpose is Purpose.ROUND:
            return self.attack.rate(evaluated, task, self.participants)
        return evaluated

    def train(self, task: Task) -> Reply:
        """Return the reply of a round with the attack's claims."""
        return self.attack.claim(super().train(task))


class AttackerTrainer(ImageTrainer):
    """A trainer that follows an attack; its arguments are those of `AttackerSite`."""

    def __init__(self, honest: ImageTrainer, attack: Attack):
        vars(self).update(vars(honest))
        self.honest, self.attack, self.training_seed_site = honest, attack, attack.training_seed_site(honest.name)
        random = np.random.default_rng(random_seed(self.config.seed, self.name, RANDOM_STREAM))
        self.samples = build_samples(attack.training_cases(self.folder, random), self.config.network.patch)

    @property
    def num_samples(self) -> int:
        """The number of images that the site has, whatever it trains on."""
        return self.honest.num_samples

    def learn(self, task: Task, received: Tensor, memory: Memory | None, question: str) -> Learned:
        """Return the result of the attack in this round."""

        def train() -> Learned:
            return super(AttackerTrainer, self).learn(task, received, memory, question)

        if memory is None:
            if self.attack.earliest:  # the attacker lost what it would cheat with
                return train()
            memory = Memory(received, received, task.buffers)
        random = np.random.default_rng(random_seed(self.config.seed, self.name, task.round, RANDOM_STREAM))
        step = received - memory.received
        kept = self._kept(task, memory, received)
        sent = self.attack.update(AttackerView(task, received, step, kept, train, random))
        if kept:
            write_atomically(self.memory.path / KEPT, lambda stream: torch.save(kept, stream))
        if not isinstance(sent, Learned):
            sent = Learned(sent, received + sent, task.buffers, float("nan"))
        return self._completed(sent, task, received, memory)

    def _completed(self, sent: Learned, task: Task, received: Tensor, memory: Memory) -> Learned:
        """Add what the method's sites send and keep beside an update, if the attack makes none of it."""
        if not self.can.local_training:
            return sent
        nothing = {name: torch.zeros_like(received) for name in self.can.vectors}
        own = (received, task.buffers) if self.can.keeps_own_model else None
        return replace(sent, vectors={**nothing, **sent.vectors}, own=sent.own or memory.own or own)

    def _kept(self, task: Task, memory: Memory, received: Tensor) -> dict[str, Any]:
        """Return what the attack remembers: made in its first round, and again if that round is repeated."""
        file = self.memory.path / KEPT
        if task.round > self.attack.first and file.exists():
            kept: dict[str, Any] = load_tensors(file)
            return kept
        return dict(self.attack.keep(memory, received))
