"""What a round gave a site, and what the site remembers of it on disk.

The memory of round t is one file, written when the round is done and kept until round t+1 is. A process that is
killed, swapped out or replaced loses nothing, and a round can be repeated.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedmerit.contract.flat import Buffers
from fedmerit.files import write_atomically
from fedmerit.schema.scores import Overlap
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
    commitment: Mapping[str, Any] = field(default_factory=dict)  # to the steps, as of `CommitmentRecord`; {}: to none
    mechanism: Mapping[str, Any] = field(default_factory=dict)  # of DP-SGD, as of `Mechanism`; {}: it trained without


@dataclass(frozen=True)
class Trained:
    """A result of a site's round, and what the site reports of the model that it received."""

    learned: Learned
    num_samples: int  # training images, or steps if the trainer counts these
    overlaps: tuple[Overlap, ...] = ()  # of the received model, by case and label; (): not known
    trained_overlaps: tuple[Overlap, ...] = ()  # of the trained one on the same cases, if the run asks for them
    values: Mapping[str, float] = field(default_factory=dict)  # what the method asks for and is known
    metric: str = ""  # what the overlaps are scores of, if the site took it from its script's answers
    restarts: int = 0  # how often the site's script was started again since the answer before
    unsent: int = 0  # tensors of the model that the site's script left out
    evaluation_fault: str = ""  # why the site's script cannot evaluate, if it was tried with this training


@dataclass(frozen=True)
class Memory:
    """A site's memory of a round."""

    received: Tensor  # (d,)
    trained: Tensor  # (d,)
    buffers: Buffers  # after training
    weights: Mapping[str, float] = field(default_factory=dict)  # of its peers
    kept: Mapping[str, Tensor] = field(default_factory=dict)  # as in `Learned`
    own: tuple[Tensor, Buffers] | None = None  # likewise
    old: Tensor | None = None  # as of `step_evidence.list_old_parts`
    answer: Mapping[str, Any] | None = None  # the rest of what the training gave, as of `keep_answer`

    @property
    def model(self) -> Tensor:
        """(d,) the model after the round: received plus update, rounded as if the update had been sent."""
        return self.received + (self.trained - self.received)


class MemoryFolder:
    """The memories of one site, in a folder that only they are in."""

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
        """Return the memory of ``round``, if it is there."""
        file = self._file(round)
        return _load(file) if file.exists() else None

    def latest(self, round: int) -> Memory | None:
        """Return the memory of the last round before ``round`` that the site did."""
        files = self._files(round)
        return _load(max(files)) if files else None

    def _file(self, round: int) -> Path:
        return self.path / f"round_{round:05d}.pt"

    def _files(self, round: int) -> list[Path]:
        """Return the files of earlier rounds."""
        return [file for file in self.path.glob("round_*.pt") if file < self._file(round)]


def _load(file: Path) -> Memory:
    return Memory(**load_tensors(file))


OVERLAPS = ("overlaps", "trained_overlaps")
OF_MEMORY = ("trained", "buffers", "weights", "kept", "own")  # fields of `Learned` that a `Memory` has, too


def keep_answer(trained: Trained, received: Tensor, question: str, seconds: float) -> Mapping[str, Any]:
    """Return all fields of ``trained`` and of what it learned that a `Memory` lacks, in what a file of tensors holds.

    Args:
        trained: of the round.
        received: (d,) the model that it began with.
        question: digest of what was asked for.
        seconds: that it took.
    """
    learned = trained.learned
    is_difference = torch.equal(learned.update, learned.trained - received)  # of an attack it need not be
    answer = {**vars(trained), **vars(learned), "question": question, "seconds": seconds}
    answer |= {name: [asdict(one) for one in answer[name]] for name in OVERLAPS}
    answer["update"] = None if is_difference else learned.update
    return {name: _plain(value) for name, value in answer.items() if name not in ("learned", *OF_MEMORY)}


def _plain(value: Any) -> Any:
    """Return a mapping, and those in it, as dictionaries; anything else unchanged."""
    return {name: _plain(part) for name, part in value.items()} if isinstance(value, Mapping) else value


def recall_answer(memory: Memory | None, received: Tensor, question: str) -> tuple[Trained, float] | None:
    """Return what the round gave, and the seconds that it took; None if it was asked for something else.

    ``memory``: of the round, None if it is not done; the others are those of `keep_answer`.
    """
    kept = memory and memory.answer
    if memory is None or not kept or kept["question"] != question or not torch.equal(memory.received, received):
        return None
    parts = {**kept, **{name: getattr(memory, name) for name in OF_MEMORY}, "update": unfiltered_update(memory)}
    parts |= {name: tuple(Overlap.from_dict(**one) for one in kept[name]) for name in OVERLAPS}
    parts["learned"] = Learned(**{field.name: parts[field.name] for field in fields(Learned)})
    return Trained(**{field.name: parts[field.name] for field in fields(Trained)}), kept["seconds"]


def unfiltered_update(memory: Memory) -> Tensor:
    """Return (d,) what the training gave, whatever a privacy filter made of it."""
    kept = memory.answer["update"] if memory.answer else None
    return memory.trained - memory.received if kept is None else kept
