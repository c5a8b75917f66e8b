"""The checkpoint of a run folder: the server's state after its last complete round."""

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch

from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import write_durably
from fedmerit.tensor_files import load_tensors

CHECKPOINT = "checkpoint.pt"


def is_finished(run: Path, rounds: int) -> bool:
    """Return whether a run folder holds a complete run: trained, tested, models saved."""
    content = read_checkpoint(run)
    return content is not None and content["round"] > rounds


def complete_rounds(run: Path) -> int | None:
    """Return the number of complete rounds of a run folder's checkpoint; None if it has none."""
    content = read_checkpoint(run)
    return None if content is None else content["complete_rounds"]


def read_checkpoint(run: Path) -> dict[str, Any] | None:
    """Return the content of a run folder's checkpoint; None if it has none.

    Raises:
        BadInput: the checkpoint cannot be read.
    """
    path = run / CHECKPOINT
    if not path.exists():
        return None
    try:
        content: dict[str, Any] = load_tensors(path)
    except BadInput as error:
        raise BadInput(f"{error}; not readable as a checkpoint, start another run") from None
    counts = (content.get("round"), content.get("complete_rounds")) if isinstance(content, dict) else (None,)
    if not all(isinstance(count, int) for count in counts):
        raise BadInput(f"{path}: not a checkpoint of FedMerit; start another run")
    return content


def write_checkpoint(run: Path, content: Mapping[str, Any]) -> None:
    """Write a run folder's checkpoint, durably: sites learn the round and refuse tasks of earlier ones.

    Raises:
        RunFailed: up to the first round: it could not be read again, as it holds more than numbers and tensors.
    """

    def write(file: IO[bytes]) -> None:
        torch.save(dict(content), file)
        if content["round"] > 1:
            return
        file.flush()
        try:
            load_tensors(Path(file.name))
        except BadInput as error:
            fault = str(error).removeprefix(file.name)
            raise RunFailed(
                f"{run / CHECKPOINT}{fault}; keep only numbers and plain tensors in a method's state"
            ) from error

    write_durably(run / CHECKPOINT, write)
