"""The checkpoint of a run folder: the server's state after its last complete round."""

from pathlib import Path
from typing import Any

import torch

from fedmerit.errors import BadInput

CHECKPOINT = "checkpoint.pt"


def is_finished(run: Path, rounds: int) -> bool:
    """Whether a run folder holds a whole run: trained, tested, models saved."""
    content = read_checkpoint(run)
    return content is not None and content["round"] > rounds


def complete_rounds(run: Path) -> int | None:
    """How many rounds a run folder's checkpoint stands at; None where it does not say."""
    content = read_checkpoint(run)
    return None if content is None else content.get("complete_rounds")  # those of earlier versions do not say


def read_checkpoint(run: Path) -> dict[str, Any] | None:
    """What the checkpoint of a run folder holds; `BadInput` naming it where it is none of ours."""
    path = run / CHECKPOINT
    if not path.exists():
        return None
    try:
        content: dict[str, Any] = torch.load(path, weights_only=True)
    except Exception as error:  # of whatever kind torch's unpickler meets in a spoiled file
        raise BadInput(f"{path}: not readable as a checkpoint ({type(error).__name__}); start another run") from error
    return content
