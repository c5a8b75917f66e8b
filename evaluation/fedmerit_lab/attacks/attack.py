"""The contract of a simulated attack, and every attack by name and by spec, such as ``noise`` or ``shifted:from=3``."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, ClassVar

from numpy.random import Generator
from torch import Tensor

from fedmerit.plugins import Catalogue
from fedmerit.schema import declarations
from fedmerit.schema.declarations import Checked
from fedmerit.schema.messages import Enrolment, Evaluated, Evaluation, Reply, Task
from fedmerit.schema.rules import About, Count
from fedmerit.schema.site_folder import Case, SiteFolder
from fedmerit.trainers.memory import Learned, Memory


@dataclass(frozen=True)
class AttackerView:
    """A view of what an attacker knows when it has to send an update."""

    task: Task
    received: Tensor  # (d,) w_t
    step: Tensor  # (d,) w_t - w_{t-1}: the change of the model since the attacker's last round
    kept: dict[str, Any]  # the result of `Attack.keep` in the first round of the attack, and additions by `update`
    train: Callable[[], Learned]  # the honest round
    random: Generator  # seeded by (seed, site, round)


@dataclass(frozen=True, kw_only=True)
class Attack(Checked):
    """An attack: the honest round of a site, in hooks of which each attack replaces some."""

    from_: Annotated[int, Count(), About("first round of the attack; honest before")] = 0
    earliest: ClassVar[int] = 0  # the first round in which the attack is possible; honest before

    @property
    def first(self) -> int:
        """The first round that is not honest."""
        return max(self.from_, self.earliest)

    @property
    def others(self) -> tuple[str, ...]:
        """The names of other sites that have to take part."""
        return ()

    def training_seed_site(self, site: str) -> str:
        """Return the name of the site that seeds the training."""
        return site

    def training_cases(self, folder: SiteFolder, random: Generator) -> tuple[Case, ...]:
        """Return the cases to train on; ``random`` is seeded by (seed, site), so it is the same in all rounds."""
        return folder.cases("training")

    def keep(self, memory: Memory, received: Tensor) -> Mapping[str, Any]:
        """Return what to remember of the last honest round, ``memory``, and of the model (d,) received after it."""
        return {}

    def update(self, view: AttackerView) -> Tensor | Learned:
        """Return what is sent: an update (d,) without training, or the result of training."""
        return view.train()

    def claim(self, reply: Reply) -> Reply:
        """Return the reply with the attacker's statements about itself."""
        return reply

    def commit(self, enrolment: Enrolment) -> Enrolment:
        """Return what the attacker commits to before round 0, in which an attack that begins later is honest."""
        return enrolment

    def rate(self, evaluated: Evaluated, task: Evaluation, sites: Sequence[str]) -> Evaluated:
        """Return the attacker's evaluation of models; ``sites`` are the names of all sites that take part."""
        return evaluated


ATTACKS: Catalogue[type[Attack]] = Catalogue(
    "attacks",
    {},  # all come by entry points: pyproject.toml
    lambda part: isinstance(part, type) and issubclass(part, Attack) and is_dataclass(part),
    "a frozen dataclass derived from fedmerit_lab.attacks.attack.Attack",
)


def parse_attack(spec: str) -> Attack:
    """Return the attack of a spec; raise `fedmerit.errors.BadInput` if the spec names none."""
    attack: Attack = declarations.parse_spec(spec, ATTACKS, "attack")
    return attack


def format_attack(attack: Attack) -> str:
    """Return the spec of an attack, complete with its defaults; `parse_attack` inverts this."""
    return declarations.format_spec(attack, ATTACKS, separator=":")  # commas separate sites
