"""Free riders: attacks that are rewarded for the others' work.

A forecaster sends a function of the models that it received. From the first round of the attack on it does not train;
if that is round 0, it sends noise until it has seen a step. It knows how long an honest update is, the worst case.
"""

from collections.abc import Callable, Mapping
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

LEAST_STEPS = 3  # for a regression on earlier steps
FACTORS_SEED = 7  # of the factors of blocks, the same in all rounds


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


@dataclass(frozen=True, kw_only=True)
class Forecaster(Attack):
    """The base class: a function of the last steps, as long as an honest update."""

    noise: Annotated[float, Number(0), About("norm of noise added, in norms of an honest update")] = 0.0
    memory: ClassVar[int] = 8  # steps

    def update(self, view: AttackerView) -> Tensor:
        """Return (d,) the forecast, or noise before there is a step."""
        length = float(view.train().update.double().norm())
        seen = view.kept.get("steps", [])
        steps = [view.step, *seen][: self.memory] if view.step.any() else seen
        view.kept["steps"] = steps
        if not steps:
            return scaled_noise(view.received, length, view.random)
        sent = self.forecast(steps, view)
        sent = sent * (length / max(float(sent.double().norm()), 1e-30))
        return sent + scaled_noise(sent, self.noise * length, view.random) if self.noise else sent

    def forecast(self, steps: list[Tensor], view: AttackerView) -> Tensor:
        """Return (d,) the forecast of any length from ``steps`` (d,), the latest first."""
        raise NotImplementedError


def _by_block(vectors: list[Tensor], block: int, forecast: Callable[[list[Tensor]], Tensor]) -> Tensor:
    """Return (d,) what ``forecast`` makes of every block of as many entries of ``vectors`` (d,)."""
    parts = zip(*(torch.split(vector, block) for vector in vectors), strict=True)
    return torch.cat([forecast(list(part)) for part in parts])


@dataclass(frozen=True, kw_only=True)
class Reweighted(Forecaster):
    """An attack that sends the last step, or its last honest update, with blocks of entries times fixed factors."""

    block: Annotated[int, Count(1), About("entries of a block")] = 997
    spread: Annotated[float, Number(0), About("standard deviation of the factors' logarithms")] = 1.0
    of: Annotated[str, Choice(("step", "own")), About("what is sent: the last step, or its last honest update")] = (
        "step"
    )

    def keep(self, memory: Memory, received: Tensor) -> Mapping[str, Any]:
        """Return the update of the last honest round."""
        return {"own": memory.trained - memory.received}

    def forecast(self, steps: list[Tensor], view: AttackerView) -> Tensor:
        """Return (d,) the product."""
        vector = view.kept.get("own", steps[0]) if self.of == "own" else steps[0]
        blocks = -(-len(vector) // self.block)
        drawn = torch.randn(blocks, generator=torch.Generator().manual_seed(FACTORS_SEED))
        factors: Tensor = (self.spread * drawn).exp().repeat_interleave(self.block)[: len(vector)]
        return vector * factors


@dataclass(frozen=True, kw_only=True)
class Autoregressive(Forecaster):
    """An attack that forecasts each block's next step by that block's regression on its last steps."""

    block: Annotated[int, Count(1), About("entries of a block")] = 997
    lags: Annotated[int, Count(1), About("steps that the next one is regressed on")] = 3

    def forecast(self, steps: list[Tensor], view: AttackerView) -> Tensor:
        """Return (d,) the forecast; with few steps the last one, its blocks times factors."""
        if len(steps) < LEAST_STEPS:
            return Reweighted(block=self.block).forecast(steps, view)
        lags = min(self.lags, len(steps) - 2)

        def regress(block: list[Tensor]) -> Tensor:
            known = range(len(block) - lags)
            columns = torch.cat([torch.stack(block[t + 1 : t + 1 + lags], dim=1) for t in known]).double()
            target = torch.cat([block[t] for t in known]).double()
            gram = columns.T @ columns
            ridge = (1e-3 * gram.diagonal().mean() + 1e-30) * torch.eye(lags, dtype=torch.float64)
            fit = torch.linalg.solve(gram + ridge, columns.T @ target)
            forecast: Tensor = torch.stack(block[:lags], dim=1).double() @ fit
            return forecast.to(block[0].dtype)

        return _by_block(steps, self.block, regress)


@dataclass(frozen=True, kw_only=True)
class LowRank(Forecaster):
    """An attack that sends the mean of its last steps, of low rank in every block: no function of single entries."""

    rows: Annotated[int, Count(2), About("rows of the matrix that a block is taken as")] = 24
    rank: Annotated[int, Count(1), About("rank of its approximation")] = 4

    def forecast(self, steps: list[Tensor], view: AttackerView) -> Tensor:
        """Return (d,) the approximation of the mean of the last four."""
        mean = torch.stack(steps[:4]).mean(dim=0)

        def approximate(block: list[Tensor]) -> Tensor:
            (vector,) = block
            size = len(vector) // self.rows * self.rows
            left, values, right = torch.linalg.svd(vector[:size].view(self.rows, -1), full_matrices=False)
            matrix = (left[:, : self.rank] * values[: self.rank]) @ right[: self.rank]
            return torch.cat([matrix.flatten(), vector[size:]])

        return _by_block([mean], 144 * self.rows, approximate)


@dataclass(frozen=True, kw_only=True)
class Extrapolated(Forecaster):
    """An attack that continues each entry's geometric series, Δ_t² / Δ_{t-1}, its factor held to [-1, 2]."""

    def forecast(self, steps: list[Tensor], view: AttackerView) -> Tensor:
        """Return (d,) the continuation."""
        last, before = steps[0], steps[min(1, len(steps) - 1)]
        ratio = torch.where(before != 0, last / before.where(before != 0, 1.0), 1.0)
        return last * ratio.clamp(-1, 2)


@dataclass(frozen=True, kw_only=True)
class Rescaled(Forecaster):
    """An attack that adds to the last step what leaves a network of ReLU layers unchanged: factors of its blocks.

    Every other block of weights is enlarged, the next one made smaller.
    """

    block: Annotated[int, Count(1), About("entries of a block")] = 24

    def forecast(self, steps: list[Tensor], view: AttackerView) -> Tensor:
        """Return (d,) the step and the factors' change of the weights, of equal lengths."""
        signs = torch.where((torch.arange(len(view.received)) // self.block) % 2 == 0, 1.0, -1.0)
        change = view.received * signs
        mixed: Tensor = steps[0] / steps[0].norm().clamp(min=1e-30) + change / change.norm().clamp(min=1e-30)
        return mixed


@dataclass(frozen=True, kw_only=True)
class Dose(Forecaster):
    """An attack that adds a small part of its honest update to the last step, its blocks times factors."""

    work: Annotated[float, Number(0, 1), About("norm of the honest part, in norms of the rest")] = 0.15

    def forecast(self, steps: list[Tensor], view: AttackerView) -> Tensor:
        """Return (d,) the sum."""
        base = Reweighted().forecast(steps, view)
        learned = view.train().update
        whole: Tensor = base / base.norm().clamp(min=1e-30) + self.work * learned / learned.norm().clamp(min=1e-30)
        return whole
