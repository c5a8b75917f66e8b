"""The records of a run's ledger, one of each round."""

from collections.abc import Mapping
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit.records.ledger import read_verified_records
from fedmerit.verification.record_schema import (
    NUMBER,
    TEXT,
    WHOLE,
    Shape,
    list_shape,
    mapping_shape,
    object_shape,
    optional_shape,
    require_shapes,
)
from fedmerit.verification.site_logs import Record

LEDGER_REQUIRED: Mapping[str, Shape] = {
    "round": WHOLE,
    "participants": list_shape(TEXT),
    "began": mapping_shape(TEXT),
    "updates": mapping_shape(TEXT),
    "weights": mapping_shape(NUMBER),
    "contributions": mapping_shape(optional_shape(NUMBER)),
    "of": WHOLE,
    "rejected": mapping_shape(TEXT),
    "flagged": list_shape(TEXT),
    "model": TEXT,
    "validation_dice": mapping_shape(NUMBER),
    "rows": TEXT,
    "evaluated": mapping_shape(list_shape(TEXT)),
}
LEDGER_FIRST: dict[str, Shape] = {"plan": TEXT}  # only the first record has it
LEDGER_LAST: dict[str, Shape] = {"saved": mapping_shape(TEXT)}  # only the last record of a finished run has it
LEDGER_OPTIONAL: dict[str, Shape] = {
    "guard": object_shape(
        {
            "bounds": mapping_shape(mapping_shape(NUMBER)),
            "indicators": mapping_shape(list_shape(TEXT)),
            "verdicts": list_shape(TEXT),
            "enrolled": mapping_shape(object_shape({"cases": mapping_shape(WHOLE), "slices": mapping_shape(WHOLE)})),
        }
    ),
}


def read_ledger(path: Path) -> list[Record]:
    """The records of an intact ledger, whoever signed it.

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
