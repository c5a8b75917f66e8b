"""A training's checkpoint: one that was killed within a round continues at its step, and ends with the same bits.

It has the model, the optimiser, the generators and the position. The order of images is drawn again up to there. How
far the training is, is in a small file beside it.
"""

import hashlib
import json
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import write_atomically
from fedmerit.tensor_files import load_tensors

INTERVAL = 60.0  # seconds of training between two checkpoints
MOST_SHARE = 0.01  # of the time of a training that writing them may take
PROGRESS, PROGRESS_INTERVAL = "training_progress.txt", 5.0  # steps done and in all; seconds between two notes of them
log = logging.getLogger(__name__)


class Restorable(Protocol):
    """A thing with a state: a network, an optimizer, an augmenter."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state, of tensors, numbers and texts."""

    def load_state_dict(self, state: dict[str, Any]) -> object:
        """Take a state over."""


class TrainingCheckpoint:
    """A checkpoint of one training.

    Args:
        file: where it is written.
        identity: of all that the training depends on; a checkpoint with another one is not used.
        faults: by peer, why its predictions are not available any more; they grow during the training.
    """

    def __init__(self, file: Path, identity: str, faults: dict[str, str] | None = None):
        self.file, self.identity, self.faults = file, identity, {} if faults is None else faults
        self._due = time.monotonic() + INTERVAL
        self._noted = -PROGRESS_INTERVAL
        self._written = False

    def restore(self, total: Tensor, *parts: Restorable) -> int:
        """Give ``total`` and ``parts`` the state of the last checkpoint; the steps done then, 0 if there is none."""
        if not self.file.exists():
            return 0
        try:
            content = load_tensors(self.file)
            if content["identity"] != self.identity:
                return 0
        except (BadInput, KeyError, TypeError) as error:
            log.warning("%s: not used, the round's training begins again (%s)", self.file.name, type(error).__name__)
            return 0
        total.copy_(content["total"])
        for part, state in zip(parts, _copied(content["parts"]), strict=True):
            part.load_state_dict(state)
        self.faults.update(content["faults"])
        self._written = True
        log.info("training continues after step %d", content["step"])
        return int(content["step"])

    def consider(self, step: int, steps: int, total: Tensor, *parts: Restorable) -> None:
        """Write one after ``step`` of ``steps`` if it is due, or if the training ends here and has one."""
        started = time.monotonic()
        if started - self._noted > PROGRESS_INTERVAL:
            self._noted = started
            with suppress(OSError):
                (self.file.parent / PROGRESS).write_text(f"{step} of {steps}")
        if started < self._due and not (step == steps and self._written):
            return
        content = {"identity": self.identity, "step": step, "faults": self.faults, "total": total}
        content["parts"] = [dict(part.state_dict()) for part in parts]
        try:
            write_atomically(self.file, lambda stream: torch.save(content, stream))
            self._written = True
        except (OSError, RunFailed) as error:  # the training does without
            log.warning("no checkpoint of the round's training (%s)", type(error).__name__)
        now = time.monotonic()
        self._due = now + max(INTERVAL, (now - started) / MOST_SHARE)


class RoundCheckpoints:
    """The checkpoints of all trainings of a site's round, of which methods may do several.

    Args:
        folder: the site's own.
        identity: what the round's trainings depend on, beside what the one before gave; of any JSON.
    """

    def __init__(self, folder: Path, identity: Sequence[object]):
        self.folder, self.count = folder, 0
        self.identity = hashlib.sha256(json.dumps([torch.__version__, *identity]).encode()).hexdigest()

    def next(self, faults: dict[str, str] | None = None) -> TrainingCheckpoint:
        """Return the checkpoint of the next training; ``faults`` as of `TrainingCheckpoint`."""
        self.count += 1
        return TrainingCheckpoint(self.folder / f"training_{self.count}.pt", f"{self.identity} {self.count}", faults)


def remove_checkpoints(folder: Path) -> None:
    """Remove those of a round that is done."""
    for file in folder.glob("training_*.*"):
        file.unlink(missing_ok=True)


def _copied(content: Any) -> Any:
    """Return the content with tensors of its own instead of those mapped from the file, which will change."""
    if isinstance(content, Tensor):
        return content.clone()
    if isinstance(content, dict):
        return {name: _copied(value) for name, value in content.items()}
    return type(content)(map(_copied, content)) if isinstance(content, list | tuple) else content
