"""The contract of an attack: what the attacker sees, and what it may change of an honest round."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.random import Generator
from torch import Tensor

from fedmerit.attacks.catalogue import SiteAttack
from fedmerit.schema.messages import Enrolment, Evaluated, Evaluation, Reply, Task
from fedmerit.site.memory import Learned, Memory
from fedmerit.site.site import Site
from fedmerit.trainers.monai.data import Case, SiteFolder


@dataclass(frozen=True)
class AttackerView:
    """What a site that has to send an update knows."""

    task: Task
    received: Tensor  # (d,) w_t
    step: Tensor  # (d,) w_t - w_{t-1}: what became of the model since its last round
    kept: dict[str, Any]  # what `Attack.keep` gave in the first round of the attack, and what `update` puts there
    train: Callable[[], Learned]  # the honest round
    random: Generator  # seeded by (seed, site, round)


@dataclass(frozen=True, kw_only=True)
class Attack(SiteAttack):
    """The honest round, in hooks of which each attack replaces some."""

    def wrap(self, site: Site) -> Site:
        """The ``site``, of images, following the attack."""
        from fedmerit_lab.attacks.attacker_site import AttackerSite  # which calls the hooks

        return AttackerSite(site, self)

    def training_seed_site(self, site: str) -> str:
        """By which site's name its training is seeded."""
        return site

    def training_cases(self, folder: SiteFolder, random: Generator) -> tuple[Case, ...]:
        """What it trains on; ``random`` is seeded by (seed, site), so that it is the same in all rounds."""
        return folder.cases("training")

    def keep(self, memory: Memory, received: Tensor) -> Mapping[str, Any]:
        """What it remembers of its last honest round, ``memory``, and the model (d,) it received after it."""
        return {}

    def update(self, view: AttackerView) -> Tensor | Learned:
        """What it sends: an update (d,) without having trained, or what training gave."""
        return view.train()

    def claim(self, reply: Reply) -> Reply:
        """The reply with what it says of itself."""
        return reply

    def commit(self, enrolment: Enrolment) -> Enrolment:
        """What it commits to before round 0; if the attack begins later, it was honest then."""
        return enrolment

    def rate(self, evaluated: Evaluated, task: Evaluation, sites: Sequence[str]) -> Evaluated:
        """What it says of models that it evaluates for the server; ``sites`` are the names of those that take part."""
        return evaluated
