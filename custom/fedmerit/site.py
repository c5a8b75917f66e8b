"""One site's round, wherever it runs: receive, report, train, reply; and its memory on disk.

The memory of round t is one file, written when the round is done and kept until round t+1 is. A process that
is killed, swapped out or replaced loses nothing, and a round can be repeated.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from fedmerit import flat
from fedmerit.core import SiteView
from fedmerit.data import SiteFolder, Slices
from fedmerit.errors import BadInput
from fedmerit.files import write_atomically
from fedmerit.plan import Plan
from fedmerit.training import Overlap, build_network, check_image_size, evaluate, mean_dice, random_seed, train


@dataclass(frozen=True)
class Task:
    """What a site receives: the model to start round ``round`` from, and its part in it."""

    round: int
    parameters: Tensor  # (d,) float32
    buffers: Mapping[str, Tensor]
    weight: float | None = None  # of its last update in this model; None: it has no part in it
    data_share: float | None = None  # its share of the BatchNorm statistics in it, likewise


@dataclass(frozen=True)
class Reply:
    """What a site returns. Nothing else leaves it."""

    round: int
    update: Tensor  # (d,) float32, trained minus received; empty after a test
    buffers: Mapping[str, Tensor]
    num_samples: int  # training images
    overlaps: tuple[Overlap, ...]  # of the received model: on the validation split, after a test on the testing split
    values: Mapping[str, float] = field(default_factory=dict)  # what the method asked for, where available
    train_loss: float = float("nan")
    seconds: float = 0.0


@dataclass(frozen=True)
class _Memory:
    """What a site remembers of a round."""

    received: Tensor  # (d,)
    trained: Tensor  # (d,)
    buffers: dict[str, Tensor]  # after training


class Site:
    """A prepared folder, a plan and a device.

    Args:
        folder: the site's images.
        plan: the run.
        memory: folder of its own in which the site keeps its memory between rounds.
        device: "cpu", "cuda", "cuda:1", or "auto": the first GPU where there is one.

    Raises:
        BadInput: the images do not fit the plan's network, or the device is not there.
    """

    def __init__(self, folder: SiteFolder, plan: Plan, memory: Path, device: str = "auto"):
        expected = (plan.task, plan.network.in_channels, plan.network.labels)
        if (folder.task, folder.channels, folder.labels) != expected:
            raise BadInput(
                f"site {folder.name}: task, channels and labels are {(folder.task, folder.channels, folder.labels)}, "
                f"the run expects {expected}"
            )
        check_image_size(plan.network, folder.image_size)
        self.folder, self.plan, self.memory = folder, plan, memory
        self.device = pick_device(device, folder.name)
        self.method = plan.build_method()

    @cached_property
    def _network(self) -> torch.nn.Module:
        network = build_network(self.plan.network).to(self.device)
        # channels last: an epoch on a CPU takes 3/4 of its time
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    @cached_property
    def _slices(self) -> Slices:
        return Slices(self.folder.cases("training"))

    def train(self, task: Task) -> Reply:
        """Validate the received model, report what the method asks for, train for a round, remember it."""
        started = time.perf_counter()
        flat.load(self._network, task.parameters, task.buffers)
        overlaps = self._evaluate("validation")
        values = self._report(task)
        flat.load(self._network, task.parameters, task.buffers)
        seed = random_seed(self.plan.seed, self.folder.name, task.round)
        loss = train(self._network, self._slices, self.plan.training, seed)
        trained, buffers = flat.get_parameters(self._network), flat.get_buffers(self._network)
        self._remember(task.round, _Memory(task.parameters.clone(), trained, buffers))  # a view would save all it views
        return Reply(
            round=task.round,
            update=trained - task.parameters,
            buffers=buffers,
            num_samples=len(self._slices),
            overlaps=overlaps,
            values=values,
            train_loss=loss,
            seconds=time.perf_counter() - started,
        )

    def test(self, task: Task) -> Reply:
        """Evaluate the site's final model on its testing split."""
        started = time.perf_counter()
        flat.load(self._network, task.parameters, task.buffers)
        return Reply(
            round=task.round,
            update=torch.empty(0),
            buffers={},
            num_samples=len(self._slices),
            overlaps=self._evaluate("testing"),
            seconds=time.perf_counter() - started,
        )

    def _evaluate(self, split: str) -> tuple[Overlap, ...]:
        cases = self.folder.cases(split)
        return tuple(evaluate(self._network, cases, self.plan.network.labels, self.plan.training.amp))

    def _report(self, task: Task) -> dict[str, float]:
        """The method's site half, where the site's last update is part of the received model."""
        memory = self._recall(task.round - 1)
        weight, data_share = task.weight, task.data_share
        if not self.method.asks or memory is None or weight is None or data_share is None:
            return {}
        if weight >= 1 or data_share >= 1:  # nobody else is in the model: there is no leaving out
            return {}
        others = flat.buffers_without(task.buffers, memory.buffers, data_share)

        def validation_dice(parameters: Tensor) -> float:
            flat.load(self._network, parameters, others)
            return mean_dice(self._evaluate("validation"))

        vectors = (task.parameters, memory.received, memory.trained)
        received, previous, own_previous = (vector.to(self.device) for vector in vectors)
        return self.method.report(SiteView(received, previous, own_previous, weight, validation_dice))

    def _file(self, round: int) -> Path:
        return self.memory / f"round_{round:05d}.pt"

    def _remember(self, round: int, memory: _Memory) -> None:
        write_atomically(self._file(round), lambda file: torch.save(vars(memory), file))
        for file in self.memory.glob("round_*.pt"):
            if file not in (self._file(round), self._file(round - 1)):
                file.unlink()

    def _recall(self, round: int) -> _Memory | None:
        file = self._file(round)
        return _Memory(**torch.load(file, weights_only=True)) if file.exists() else None


def pick_device(device: str, site: str) -> torch.device:
    """The torch device of a setting; `BadInput` naming the site where this machine has no such device."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(
            f"site {site}: device {device!r} cannot be used ({reason}); expected cpu, cuda, cuda:N or auto"
        ) from error
    return chosen
