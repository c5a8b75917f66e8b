"""Methods that change how a site trains: other terms of the loss, a second vector either way, a second model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar, Protocol

from torch import Tensor, device, dtype

from fedmerit.flat import Buffers

Penalty = Callable[[Tensor], Tensor]  # of the trainable parameters (d,), where they train: a scalar added to the loss


def towards(point: Tensor, strength: float) -> Penalty:
    """strength/2 ‖w - point‖², which holds a model near ``point`` (d,)."""

    @cache  # on a GPU it is copied once, not for every step
    def placed(where: device, kind: dtype) -> Tensor:
        return point.to(where, kind)

    return lambda w: strength / 2 * (w - placed(w.device, w.dtype)).square().sum()


@dataclass(frozen=True)
class Trained:
    """What a training gave."""

    parameters: Tensor  # (d,), on the CPU
    buffers: Buffers
    loss: float  # mean of the batches, without a penalty
    steps: int  # K, of the optimiser
    learning_rate: float  # η_l


class Train(Protocol):
    """The site's training of a round, with its own images, seed and settings."""

    def __call__(
        self,
        start: Tensor,
        buffers: Buffers | None = None,
        penalty: Penalty | None = None,
        shift: Tensor | None = None,
    ) -> Trained:
        """Train from ``start`` (d,).

        Args:
            start: where to begin.
            buffers: the BatchNorm statistics to begin with; None: those received.
            penalty: added to the loss of every batch.
            shift: (d,) added to the gradient of every step.
        """


@dataclass(frozen=True)
class TrainingView:
    """What a site holds when it is about to train."""

    received: Tensor  # (d,) w_t
    buffers: Buffers  # received with it
    vectors: Mapping[str, Tensor]  # (d,) each, sent with it: `Outcome.vectors`; zeros in round 0
    kept: Mapping[str, Tensor]  # what `LocalResult.kept` of the site's last round held
    own: tuple[Tensor, Buffers] | None  # likewise the site's own model (d,), and its statistics; None: none yet
    train: Train


@dataclass(frozen=True)
class LocalResult:
    """What a site made of a round."""

    trained: Trained  # its update is this, minus what it received
    vectors: Mapping[str, Tensor] = field(default_factory=dict)  # (d,) each, to send beside the update
    kept: Mapping[str, Tensor] = field(default_factory=dict)  # for its next round; stays at the site
    own: Trained | None = None  # a model of its own, the one that it tests, and goes home with; stays at the site


class TrainsLocally:
    """The capability."""

    vectors: ClassVar[tuple[str, ...]] = ()  # names of what is sent beside updates: keys of `Reports.vectors`
    keeps_own_model: ClassVar[bool] = False  # whether `LocalResult.own` is there; the server never has it
    optimizers: ClassVar[tuple[str, ...]] = ()  # that it works with, then without momentum; empty: any

    def train(self, view: TrainingView) -> LocalResult:
        """One round at a site."""
        raise NotImplementedError
