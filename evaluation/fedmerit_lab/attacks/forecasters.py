"""Free riders that send a function of the models that they received, and seldom or never train.

From the first round of the attack on they do not train; if that is 0 they never do, and send noise until they have
seen a step. They know how long an honest update is, the worst case.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fedmerit.schema.rules import About, Choice, Count, Number
from fedmerit.trainers.memory import Memory
from fedmerit_lab.attacks.attack import Attack, AttackerView
from fedmerit_lab.attacks.free_riders import scaled_noise

LEAST_STEPS = 3  # for a regression on earlier steps
FACTORS_SEED = 7  # of the factors of blocks, the same in all rounds


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
        signs = torch.ones(len(view.received)).view(-1)
        signs = torch.where((torch.arange(len(signs)) // self.block) % 2 == 0, 1.0, -1.0)
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
