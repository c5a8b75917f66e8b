"""What a round gave a site, and what the site remembers of it on disk.

The memory of round t is one file, written when the round is done and kept until round t+1 is. A process that is
killed, swapped out or replaced loses nothing, and a round can be repeated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedmerit.contract.flat import Buffers
from fedmerit.files import write_atomically
from fedmerit.tensor_files import load_tensors


@dataclass(frozen=True)
class Learned:
    """The result of a round's training."""

    update: Tensor  # (d,) trained minus received
    trained: Tensor  # (d,)
    buffers: Buffers  # after training
    loss: float  # mean of the batches
    pairs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # what it reports of its peers
    weights: Mapping[str, float] = field(default_factory=dict)  # of its peers from now on
    vectors: Mapping[str, Tensor] = field(default_factory=dict)  # (d,) each, to send beside the update
    kept: Mapping[str, Tensor] = field(default_factory=dict)  # what the method keeps here for the next round
    own: tuple[Tensor, Buffers] | None = None  # a model of the site's own (d,), and its statistics


@dataclass(frozen=True)
class Memory:
    """What a site remembers of a round."""

    received: Tensor  # (d,)
    trained: Tensor  # (d,)
    buffers: Buffers  # after training
    weights: Mapping[str, float] = field(default_factory=dict)  # of its peers
    kept: Mapping[str, Tensor] = field(default_factory=dict)  # as in `Learned`
    own: tuple[Tensor, Buffers] | None = None  # likewise
    old: Tensor | None = None  # as of `witness.list_old_parts`
    answer: Mapping[str, Any] | None = None  # the rest of what the training gave, as of `kept_answer`

    @property
    def model(self) -> Tensor:
        """(d,) the model after the round: received plus update, rounded as if the update had been sent."""
        return self.received + (self.trained - self.received)


class MemoryFolder:
    """The memories of one site.

    Args:
        path: a folder of its own.
    """

    def __init__(self, path: Path):
        self.path = path

    def remember(self, round: int, memory: Memory) -> None:
        """Write the memory of ``round``, and delete all but that and the one before."""
        file = self._file(round)
        write_atomically(file, lambda stream: torch.save(vars(memory), stream))
        kept = (file, max(self._files(round), default=None))
        for old in self.path.glob("round_*.pt"):
            if old not in kept:
                old.unlink()

    def read(self, round: int) -> Memory | None:
        """The memory of ``round``, if it is there."""
        file = self._file(round)
        return _load(file) if file.exists() else None

    def latest(self, round: int) -> Memory | None:
        """The memory of the last round before ``round`` that the site did."""
        files = self._files(round)
        return _load(max(files)) if files else None

    def _file(self, round: int) -> Path:
        return self.path / f"round_{round:05d}.pt"

    def _files(self, round: int) -> list[Path]:
        """Of earlier rounds."""
        return [file for file in self.path.glob("round_*.pt") if file < self._file(round)]


def _load(file: Path) -> Memory:
    return Memory(**load_tensors(file))
