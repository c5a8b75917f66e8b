"""The checkpoint of a run folder: the server's state after its last complete round."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedmerit.errors import BadInput
from fedmerit.files import write_durably

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
    counts = (content.get("round"), content.get("complete_rounds", 0)) if isinstance(content, dict) else (None,)
    if not all(isinstance(count, int) for count in counts):
        raise BadInput(f"{path}: not a checkpoint of FedMerit's; start another run")
    return content


def write_checkpoint(run: Path, content: Mapping[str, Any]) -> None:
    """The checkpoint of a run folder from now on: sites are told of the round, and answer in none before it again."""
    write_durably(run / CHECKPOINT, lambda file: torch.save(dict(content), file))


def known_sites(checkpoint: Mapping[str, Any], sites: Sequence[str], run: Path) -> list[str]:
    """The sites of a run that goes on with ``sites``, or some of them; `BadInput` where one is none of its own."""
    known: list[str] = checkpoint["sites"]
    if unknown := sorted(set(sites) - set(known)):
        raise BadInput(
            f"{run}: its sites are {', '.join(known)}, and {', '.join(unknown)} is none of them; "
            "continue with the same sites or start another run"
        )
    return known
