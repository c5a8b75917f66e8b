"""What one site gave another stands in no ledger: there, the logs of the two have to agree with each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit.federation.site_log import GAVE, GOT
from fedmerit.verification.site_chains import Log, Record


@dataclass(frozen=True)
class PeerModels:
    """What one site gave another, by the logs of both."""

    giver: str
    receiver: str
    models: int  # that stand in both, each round's once
    lost: tuple[int, ...] = ()  # rounds in which the receiver says that no answer came


def peer_models_of(giver: Log, receiver: Log) -> PeerModels:
    """What the first site gave the second; `BadInput` where one log lacks what stands in the other.

    A round may stand in either more than once: a process that was killed asks again. That no answer came is no
    contradiction to what was sent.
    """
    gave, got = giver.of(GAVE, receiver.site), receiver.of(GOT, giver.site)
    lost = set()
    for line, entry in got:
        if entry["model"] is not None:
            said = f"{receiver.path}, line {line}: {receiver.site} got model {entry['model']} of {giver.site}"
            _require_among(gave, entry, said, giver.path)
    for line, entry in gave:
        answers = [one["model"] for _, one in got if one["round"] == entry["round"]]
        if entry["model"] in answers:
            continue
        if None not in answers:
            said = f"{giver.path}, line {line}: {giver.site} gave {receiver.site} model {entry['model']}"
            _require_among(got, entry, said, receiver.path)
        lost.add(entry["round"])
    shared = {entry["round"] for _, entry in got if entry["model"] is not None}
    return PeerModels(giver.site, receiver.site, len(shared), tuple(sorted(lost - shared)))


def _require_among(others: Sequence[tuple[int, Record]], entry: Record, said: str, path: Path) -> None:
    """`BadInput`, beginning with what was ``said``, where no record of that round in the log at ``path`` is alike."""
    lines = [(line, other["model"]) for line, other in others if other["round"] == entry["round"]]
    if all(model != entry["model"] for _, model in lines):
        says = f"line {lines[-1][0]}, says {lines[-1][1]}" if lines else "has no such record"
        raise BadInput(f"{said} in round {entry['round']}, but {path}{', ' if lines else ' '}{says}")
