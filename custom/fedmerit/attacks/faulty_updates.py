"""Faulty updates: made from an honest one, or the very update of another site."""

import math
from dataclasses import dataclass, replace

from fedmerit.attacks.attack import Attack, AttackerView
from fedmerit.attacks.free_riders import scaled_noise
from fedmerit.federation.local_round import Learned
from fedmerit.parameters import parameter
from fedmerit.wire.messages import Enrolment


@dataclass(frozen=True, kw_only=True)
class Scaled(Attack):
    """Sends its honest update times ``by`` (model boosting, Bagdasaryan et al. 2020)."""

    by: float = parameter(10.0, "factor, not 0")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.by or not math.isfinite(self.by):
            raise ValueError(f"by={self.by!r}: expected a finite number other than 0")

    def update(self, view: AttackerView) -> Learned:
        """The scaled update, and the statistics of the honest one."""
        honest = view.train()
        update = self.by * honest.update
        return replace(honest, update=update, trained=view.received + update)


@dataclass(frozen=True, kw_only=True)
class SignFlip(Scaled):
    """Sends its honest update with the sign reversed (the sign-flipping adversary of Xu and Lyu 2021)."""

    by: float = parameter(-1.0, "factor, not 0")


@dataclass(frozen=True, kw_only=True)
class HalfFlip(Attack):
    """Sends its honest update with the sign of every other entry reversed, always of the same ones."""

    def update(self, view: AttackerView) -> Learned:
        """The update so changed, and the statistics of the honest one."""
        honest = view.train()
        update = honest.update.clone()
        update[1::2] *= -1
        return replace(honest, update=update, trained=view.received + update)


@dataclass(frozen=True, kw_only=True)
class Twin(Attack):
    """Trains with the random numbers of site ``of``: on a copy of its images, the very same updates (a sybil)."""

    of: str = parameter("", "the site whose images it has a copy of")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.of:
            raise ValueError("of: missing; name the site whose images it has a copy of, as in twin:of=SITE")

    @property
    def others(self) -> tuple[str, ...]:
        """The one copied."""
        return (self.of,)

    def training_seed_site(self, site: str) -> str:
        """By the other's."""
        return self.of


@dataclass(frozen=True, kw_only=True)
class NearTwin(Twin):
    """A twin whose updates have noise added, and whose images differ by as little, so that no digest is another's."""

    noise: float = parameter(0.55, "norm of the noise, in norms of the update", low=0)

    def update(self, view: AttackerView) -> Learned:
        """The other's update, and noise."""
        twin = view.train()
        update = twin.update + scaled_noise(twin.update, self.noise * float(twin.update.double().norm()), view.random)
        return replace(twin, update=update, trained=view.received + update)

    def commit(self, enrolment: Enrolment) -> Enrolment:
        """Digests that no other site has: those it has, back to front."""
        return replace(enrolment, fingerprint=tuple(sorted(one[::-1] for one in enrolment.fingerprint)))
