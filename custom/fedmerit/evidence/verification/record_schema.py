"""What the records of a ledger or of a site's log have to hold, and the ledger read by that.

The owner of a chain can write anything into it that hashes right.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fedmerit.errors import BadInput
from fedmerit.evidence.ledger import read_verified_records
from fedmerit.files import parse

Record = Mapping[str, Any]
LARGEST = 2**63  # JSON has numbers that no float holds


def _within(value: Any) -> Any:
    if type(value) is int and abs(value) >= LARGEST:
        raise ValueError("more than a number may be")
    return value


Whole = Annotated[int, Field(ge=0, lt=LARGEST)]
Number = Annotated[float, BeforeValidator(_within)]


class Schema(BaseModel):
    """What a record, or an object in it, holds of what anything rests on; it may hold more."""

    model_config = ConfigDict(strict=True)


class _Inputs(Schema):  # the rest is parsed by `fedmerit.server.round_inputs.InputsRecord`
    counts: dict[str, Number] = {}
    importance: list[Number] = []


class _Left(Schema):
    rounds: Whole = 0
    weight: Number = 0
    contribution: Number = 0


class _Enrolled(Schema):
    cases: dict[str, Whole] = {}
    slices: dict[str, Whole] = {}
    certificate: str = ""


class _Guard(Schema):
    bounds: dict[str, dict[str, Number]] = {}
    evidence: dict[str, Number] = {}
    verdicts: list[str] = []
    enrolled: dict[str, _Enrolled] = {}


class _Round(Schema):
    round: Whole
    participants: list[str]
    began: dict[str, str]
    updates: dict[str, str]
    weights: dict[str, Number]
    contributions: dict[str, Number | None]
    reputations: dict[str, Number]
    inputs: _Inputs
    of: Whole
    rejected: dict[str, str]
    flagged: list[str]
    model: str
    validation_dice: dict[str, Number]
    rows: str
    evaluated: dict[str, list[str]]
    logs: dict[str, str]
    plan: str = ""  # the first record has it
    saved: dict[str, str] = {}  # the last record of a finished run has it
    ended: dict[str, str] = {}
    quotas: dict[str, Number] = {}
    joined: list[str] = []  # sites, with this round
    left: dict[str, _Left] = {}
    notes: list[str] = []  # of the operator, such as why the run was resumed
    guard: _Guard = _Guard()


class LogEntry(Schema):
    """A record of a site's log, of whatever work."""

    site: str
    round: Whole
    work: str
    ledger: str = ""
    vouched: str = ""
    received: str = ""
    update: str = ""
    split: str = ""
    peer: str = ""
    plan: str = ""
    closing: str = ""
    sealed: str = ""
    model: str | None = None
    overlaps: list[str] = []
    images: Whole = 0
    values: dict[str, Number] = {}
    pairs: dict[str, dict[str, Number]] = {}
    step: dict[str, Number] = {}
    dice: list[Number] = []


def require_fields(kind: type[Schema], record: Any, needed: Iterable[str], where: str) -> None:
    """`BadInput`, beginning with ``where``, if a record is not of that ``kind``, or lacks a name that is ``needed``."""
    try:
        parse(kind, record, where)
        if lacking := [name for name in needed if name not in record]:
            raise BadInput(f"{where}: lacks {lacking[0]}")
    except BadInput as error:
        raise BadInput(f"{error}; get the file again from whom it belongs to") from None


def read_ledger(path: Path) -> list[Record]:
    """The records of an intact ledger; signatures are not checked.

    Raises:
        BadInput: its chain is not whole, or a record is not that of the next round.
    """
    records = read_verified_records(path)
    for line, record in enumerate(records, start=1):
        where = f"{path}, line {line}"
        needed = ["plan"] * (line == 1) + ["saved"] * (line == record.get("of"))
        require_fields(_Round, record, needed, f"{where}: not the record of a round")
        if record["round"] != line - 1:
            raise BadInput(f"{where}: is of round {record['round']}, expected {line - 1}")
        if record["of"] < line:
            raise BadInput(f"{where}: is of round {line - 1} of {record['of']}, expected more rounds than that")
        if unknown := sorted(set(record["updates"]) - set(record["began"])):
            raise BadInput(f"{where}: began lacks {unknown[0]}, which has an update; expected what it began with")
    return list(records)
