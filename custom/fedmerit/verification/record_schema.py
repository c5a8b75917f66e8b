"""What the records of a ledger or of a site's log have to hold, and the ledger read by that.

The owner of a chain can write anything into it that hashes right.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

from fedmerit.errors import BadInput
from fedmerit.records.ledger import read_verified_records

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Shape:
    """What a value has to be."""

    words: str  # for people
    fits: Callable[[Any], bool]


TEXT = Shape("a text", lambda value: isinstance(value, str))
LARGEST = 2**63  # JSON has numbers that no float holds
WHOLE = Shape("a whole number, 0 or more", lambda value: type(value) is int and 0 <= value < LARGEST)
NUMBER = Shape("a number", lambda value: type(value) is float or (type(value) is int and abs(value) < LARGEST))


def optional_shape(shape: Shape) -> Shape:
    """``shape``, or null."""
    return Shape(f"{shape.words}, or null", lambda value: value is None or shape.fits(value))


def list_shape(shape: Shape) -> Shape:
    """A list; of each of its values ``shape``."""
    return Shape(f"a list, in it {shape.words}", lambda value: isinstance(value, list) and all(map(shape.fits, value)))


def mapping_shape(shape: Shape) -> Shape:
    """An object of whatever names, each with ``shape``."""
    return Shape(
        f"an object, in it by name {shape.words}",
        lambda value: isinstance(value, dict) and all(map(shape.fits, value.values())),
    )


def object_shape(of: Mapping[str, Shape]) -> Shape:
    """An object; if it has one of these names, with that shape."""
    return Shape(
        "an object, in it " + "; ".join(f"{name}: {shape.words}" for name, shape in of.items()),
        lambda value: isinstance(value, dict) and all(of[name].fits(value[name]) for name in of if name in value),
    )


def require_shapes(
    record: Mapping[str, Any], needed: Mapping[str, Shape], possible: Mapping[str, Shape], where: str
) -> None:
    """The fields of a record are what those who read it rely on.

    Args:
        record: of a chain.
        needed: by name, the shapes of fields that it has to have.
        possible: of those that it may have.
        where: it stands, file and line, and what it is not then.

    Raises:
        BadInput: it lacks one, or one is something else.
    """
    for name, shape in {**needed, **possible}.items():
        if name not in record and name in needed:
            raise BadInput(f"{where}: lacks {name}, expected {shape.words}; get the file again from whom it belongs to")
        if name in record and not shape.fits(record[name]):
            raise BadInput(
                f"{where}: {name} is {shortened(record[name])}, expected {shape.words}; get the file again from whom "
                "it belongs to"
            )


LEDGER_REQUIRED: Mapping[str, Shape] = {
    "round": WHOLE,
    "participants": list_shape(TEXT),
    "began": mapping_shape(TEXT),
    "updates": mapping_shape(TEXT),
    "weights": mapping_shape(NUMBER),
    "contributions": mapping_shape(optional_shape(NUMBER)),
    "reputations": mapping_shape(NUMBER),
    "inputs": object_shape({"counts": mapping_shape(NUMBER), "importance": list_shape(NUMBER)}),  # the rest is parsed
    # by `fedmerit.federation.round_inputs.InputsRecord`
    "of": WHOLE,
    "rejected": mapping_shape(TEXT),
    "flagged": list_shape(TEXT),
    "model": TEXT,
    "validation_dice": mapping_shape(NUMBER),
    "rows": TEXT,
    "evaluated": mapping_shape(list_shape(TEXT)),
    "logs": mapping_shape(TEXT),
}
LEDGER_FIRST: dict[str, Shape] = {"plan": TEXT}  # only the first record has it
LEDGER_LAST: dict[str, Shape] = {"saved": mapping_shape(TEXT)}  # only the last record of a finished run has it
LEDGER_OPTIONAL: dict[str, Shape] = {
    "ended": mapping_shape(TEXT),
    "quotas": mapping_shape(NUMBER),
    "joined": list_shape(TEXT),  # sites, with this round
    "left": mapping_shape(object_shape({"rounds": WHOLE, "weight": NUMBER, "contribution": NUMBER})),
    "notes": list_shape(TEXT),  # of the operator, such as why the run was resumed
    "guard": object_shape(
        {
            "bounds": mapping_shape(mapping_shape(NUMBER)),
            "evidence": mapping_shape(NUMBER),
            "verdicts": list_shape(TEXT),
            "enrolled": mapping_shape(
                object_shape({"cases": mapping_shape(WHOLE), "slices": mapping_shape(WHOLE), "certificate": TEXT})
            ),
        }
    ),
}


def read_ledger(path: Path) -> list[Record]:
    """The records of an intact ledger; signatures are not checked.

    Raises:
        BadInput: its chain is not whole, or a record is not that of the next round.
    """
    records = read_verified_records(path)
    for line, record in enumerate(records, start=1):
        where = f"{path}, line {line}"
        what = f"{where}: not the record of a round"
        require_shapes(record, LEDGER_REQUIRED, LEDGER_OPTIONAL | LEDGER_FIRST | LEDGER_LAST, what)
        if record["round"] != line - 1:
            raise BadInput(f"{where}: is of round {record['round']}, expected {line - 1}")
        if record["of"] < line:
            raise BadInput(f"{where}: is of round {line - 1} of {record['of']}, expected more rounds than that")
        if unknown := sorted(set(record["updates"]) - set(record["began"])):
            raise BadInput(f"{where}: began lacks {unknown[0]}, which has an update; expected what it began with")
        require_shapes(
            record, (LEDGER_FIRST if line == 1 else {}) | (LEDGER_LAST if line == record["of"] else {}), {}, what
        )
    return list(records)
