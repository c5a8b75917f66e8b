"""Free riders: they are rewarded for the others' work."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from numpy.random import Generator
from torch import Tensor

from fedmerit.attacks.attack import Attack, AttackerView
from fedmerit.federation.memory import Learned, Memory
from fedmerit.parameters import parameter
from fedmerit.training.data import Case, SiteFolder, Slices


@dataclass(frozen=True, kw_only=True)
class Repeat(Attack):
    """Trains on one of its images, as often as it has images (Section 4.3, Jiang et al. 2023).

    The image is drawn among those whose masks are not all empty. Augmentation still varies it.
    """

    def training_cases(self, folder: SiteFolder, random: Generator) -> tuple[Case, ...]:
        """One case of one slice, listed n times."""
        index = Slices(folder.cases("training")).index
        shown = [(case, place) for case, place in index if case.label[place].any()] or index
        case, place = shown[random.integers(len(shown))]
        return (replace(case, slices=(place,) * len(index)),)


@dataclass(frozen=True, kw_only=True)
class Zero(Attack):
    """Sends back the model it received: an update of zeros (the plain free rider of Fraboni et al. 2021)."""

    def update(self, view: AttackerView) -> Tensor:
        """(d,) zeros."""
        return torch.zeros_like(view.received)


@dataclass(frozen=True, kw_only=True)
class Noise(Attack):
    """Sends Gaussian noise of the norm that an honest update has (Fraboni et al. 2021, disguised).

    What it can know of that norm: it trains honestly once, and learns how many times as long its update is as the
    step that the model then takes. Afterwards its noise has that many times the norm of the last step.
    """

    times: float = parameter(1.0, "norm of the noise, in norms of an honest update", above=0)
    earliest: ClassVar[int] = 1

    def keep(self, memory: Memory, received: Tensor) -> Mapping[str, Any]:
        """The ratio of the norms of its honest update and of the step after it."""
        own, step = memory.trained - memory.received, received - memory.received
        length = float(step.double().norm())
        return {"ratio": float(own.double().norm()) / length if length else 0.0}

    def update(self, view: AttackerView) -> Tensor:
        """(d,) noise."""
        norm = self.times * view.kept["ratio"] * float(view.step.double().norm())
        return _noise(view.received, norm, view.random)


@dataclass(frozen=True, kw_only=True)
class Delta(Attack):
    """Sends the last global step back (delta weights, Lin et al. 2019)."""

    noise: float = parameter(0.0, "norm of noise added to the step, in norms of the step", low=0)
    earliest: ClassVar[int] = 1

    def update(self, view: AttackerView) -> Tensor:
        """(d,) the step, and noise."""
        if not self.noise:
            return view.step
        norm = self.noise * float(view.step.double().norm())
        return view.step + _noise(view.received, norm, view.random)


@dataclass(frozen=True, kw_only=True)
class DeltaNoise(Delta):
    """Sends the last global step back with noise of half its norm: a cosine of 0.894 to it (Lin et al. 2019)."""

    noise: float = parameter(0.5, "norm of noise added to the step, in norms of the step", low=0)


@dataclass(frozen=True, kw_only=True)
class Replay(Attack):
    """Sends the update of its last honest round again and again (a stale update)."""

    earliest: ClassVar[int] = 1

    def keep(self, memory: Memory, received: Tensor) -> Mapping[str, Any]:
        """That update, and the statistics with it."""
        return {"update": memory.trained - memory.received, "buffers": dict(memory.buffers)}

    def update(self, view: AttackerView) -> Learned:
        """The update kept."""
        update: Tensor = view.kept["update"]
        return Learned(update, view.received + update, view.kept["buffers"], float("nan"))


def _noise(like: Tensor, norm: float, random: Generator) -> Tensor:
    """(d,) Gaussian noise of a given norm."""
    noise: Tensor = torch.from_numpy(random.standard_normal(len(like)))
    return noise.mul_(norm / float(noise.norm())).to(like.dtype)
