"""Free riders: they are rewarded for the others' work."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from fedmerit.schema.rules import About, Choice, Count, Number
from fedmerit.schema.site_folder import Case, SiteFolder
from fedmerit.seeds import random_seed
from fedmerit.trainers.memory import Learned, Memory
from fedmerit.trainers.monai.samples import Slices
from fedmerit_lab.attacks.attack import Attack, AttackerView


@dataclass(frozen=True, kw_only=True)
class Repeat(Attack):
    """An attack that trains on one of its images, as often as it has images (Section 4.3, Jiang et al. 2023).

    The image is drawn among those whose masks are not all empty. Augmentation still varies it.
    """

    def training_cases(self, folder: SiteFolder, random: Generator) -> tuple[Case, ...]:
        """Return one case of one slice, listed n times."""
        index = Slices(folder.cases("training")).index
        shown = [(case, place) for case, place in index if case.label[place].any()] or index
        case, place = shown[random.integers(len(shown))]
        return (replace(case, slices=(place,) * len(index)),)


@dataclass(frozen=True, kw_only=True)
class Partial(Attack):
    """An attack that trains on a share of its images, for a share of the time, and claims all of them."""

    share: Annotated[float, Number(high=1, above=0), About("of its training images that it trains on")] = 0.1

    def training_cases(self, folder: SiteFolder, random: Generator) -> tuple[Case, ...]:
        """Return the cases with round(share * n) images, at least one, the same in every round."""
        cases = folder.cases("training")
        index = Slices(cases).index
        chosen = sorted(random.permutation(len(index))[: max(1, round(self.share * len(index)))].tolist())
        kept = {
            case.name: [place for number in chosen for one, place in [index[number]] if one is case] for case in cases
        }
        return tuple(replace(case, slices=tuple(kept[case.name])) for case in cases if kept[case.name])


@dataclass(frozen=True, kw_only=True)
class Zero(Attack):
    """An attack that sends back the received model: an update of zeros (plain free rider, Fraboni et al. 2021)."""

    def update(self, view: AttackerView) -> Tensor | Learned:
        """Return (d,) zeros."""
        return torch.zeros_like(view.received)


@dataclass(frozen=True, kw_only=True)
class IntermittentRider(Attack):
    """An attack that rests in some rounds of every few; with ``every=5`` it works when it may be rated."""

    every: Annotated[int, Count(2), About("rounds of a turn")] = 3
    works: Annotated[int, Count(1), About("of them in which it trains, the first ones")] = 1
    after: Annotated[int, Count(), About("rounds of the first turn that it rests before it works")] = 0
    sends: Annotated[
        str,
        Choice(("zero", "noise", "last")),
        About(
            "Update in the others; zero: nothing, noise: of the norm of its last update of training, last: that and "
            ".3 of noise."
        ),
    ] = "zero"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.works >= self.every:
            raise ValueError(f"works={self.works}: expected less than every={self.every}, else it never rests")

    def update(self, view: AttackerView) -> Tensor | Learned:
        """Return the honest one, or (d,) of a resting round."""
        rests = (view.task.round - self.after) % self.every >= self.works
        if not rests or (self.sends != "zero" and "last" not in view.kept):
            learned = view.train()
            view.kept["last"] = learned.update
            return learned
        if self.sends == "zero":
            return torch.zeros_like(view.received)
        last: Tensor = view.kept["last"]
        norm = float(last.double().norm())
        if self.sends == "noise":
            return scaled_noise(last, norm, view.random)
        return last + scaled_noise(last, 0.3 * norm, view.random)


@dataclass(frozen=True, kw_only=True)
class Noise(Attack):
    """An attack that sends Gaussian noise of the norm that an honest update has (Fraboni et al. 2021, disguised).

    What it can know of that norm: it trains honestly once, and learns how many times as long its update is as the
    step that the model then takes. Afterwards its noise has that many times the norm of the last step.
    """

    times: Annotated[float, Number(above=0), About("norm of the noise, in norms of an honest update")] = 1.0
    shared: Annotated[float, Number(0, 1), About("cosine of the noise to that of all others who share some")] = 0.0
    earliest: ClassVar[int] = 1

    def keep(self, memory: Memory, received: Tensor) -> Mapping[str, Any]:
        """Return the ratio of the norms of its honest update and of the step after it."""
        own, step = memory.trained - memory.received, received - memory.received
        length = float(step.double().norm())
        return {"ratio": float(own.double().norm()) / length if length else 0.0}

    def update(self, view: AttackerView) -> Tensor:
        """Return (d,) noise, of which a part is the same for all who share some."""
        norm = self.times * _honest_norm(view)
        own = scaled_noise(view.received, norm * (1 - self.shared) ** 0.5, view.random)
        if not self.shared:
            return own
        common = np.random.default_rng(random_seed("shared noise", view.task.round))
        return own + scaled_noise(view.received, norm * self.shared**0.5, common)


def _honest_norm(view: AttackerView) -> float:
    """Return the norm of an honest update of this round, as far as `Noise.keep` knows it."""
    return float(view.kept["ratio"]) * float(view.step.double().norm())


@dataclass(frozen=True, kw_only=True)
class Delta(Attack):
    """An attack that sends the last global step back (delta weights, Lin et al. 2019), or a mixture of older ones."""

    noise: Annotated[float, Number(0), About("norm of noise added to the step, in norms of the step")] = 0.0
    old: Annotated[int, Count(), About("steps before the last that are mixed, at an honest norm; 0: the last one")] = 0
    earliest: ClassVar[int] = 1

    def keep(self, memory: Memory, received: Tensor) -> Mapping[str, Any]:
        """Return how long an honest update is beside a step."""
        return Noise.keep(Noise(), memory, received)

    def update(self, view: AttackerView) -> Tensor:
        """Return (d,) the step, or the mixture, and noise."""
        step = view.step
        if self.old:
            before = view.kept.get("steps", [])
            view.kept["steps"] = [*before, step][-self.old :]
            if before:
                norm = _honest_norm(view)
                step = torch.stack(before).T @ torch.from_numpy(view.random.random(len(before))).float()
                step *= norm / float(step.double().norm())
        if not self.noise:
            return step
        return step + scaled_noise(view.received, self.noise * float(step.double().norm()), view.random)


@dataclass(frozen=True, kw_only=True)
class DeltaNoise(Delta):
    """An attack that sends the last step with noise of half its norm: a cosine of 0.894 to it (Lin et al. 2019)."""

    noise: Annotated[float, Number(0), About("norm of noise added to the step, in norms of the step")] = 0.5


@dataclass(frozen=True, kw_only=True)
class Replay(Attack):
    """An attack that sends the update of its last honest round again and again (a stale update)."""

    earliest: ClassVar[int] = 1

    def keep(self, memory: Memory, received: Tensor) -> Mapping[str, Any]:
        """Return the update of the last honest round, and the statistics with it."""
        return {"update": memory.trained - memory.received, "buffers": dict(memory.buffers)}

    def update(self, view: AttackerView) -> Learned:
        """Return the update kept."""
        update: Tensor = view.kept["update"]
        return Learned(update, view.received + update, view.kept["buffers"], float("nan"))


@dataclass(frozen=True, kw_only=True)
class Adaptive(Noise):
    """An attack that knows the guard's rules: it trains once, then sends that update under noise that hides it.

    By default the update sent has a cosine of 0.8 to the one it trained, and so of 0.64 to the one before: too little
    for a replay, enough to have something in common with it. It is as long as an honest one and is not the last step,
    so it shows at most an indicator of direction, and one kind of indicator is no verdict.
    """

    noise: Annotated[float, Number(0), About("norm of noise beside the update, in norms of that")] = 0.75

    def keep(self, memory: Memory, received: Tensor) -> Mapping[str, Any]:
        """Return the honest update, and how long one is beside a step."""
        return {**super().keep(memory, received), "update": memory.trained - memory.received}

    def update(self, view: AttackerView) -> Tensor:
        """Return (d,) the update kept and noise, of the norm of an honest one."""
        kept: Tensor = view.kept["update"]
        mixed = kept + scaled_noise(kept, self.noise * float(kept.double().norm()), view.random)
        sent: Tensor = mixed * (self.times * _honest_norm(view) / float(mixed.double().norm()))
        return sent


def scaled_noise(like: Tensor, norm: float, random: Generator) -> Tensor:
    """Return (d,) Gaussian noise of a given norm."""
    noise: Tensor = torch.from_numpy(random.standard_normal(len(like)))
    return noise.mul_(norm / float(noise.norm())).to(like.dtype)
