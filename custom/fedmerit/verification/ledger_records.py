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
}
LEDGER_OPTIONAL: Mapping[str, Shape] = {  # those of earlier versions lack some
    "of": WHOLE,
    "plan": TEXT,
    "rejected": mapping_shape(TEXT),
    "flagged": list_shape(TEXT),
    "model": TEXT,
    "validation_dice": mapping_shape(NUMBER),
    "rows": TEXT,
    "evaluated": mapping_shape(list_shape(TEXT)),
    "saved": mapping_shape(TEXT),
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
        require_shapes(record, LEDGER_REQUIRED, LEDGER_OPTIONAL, f"{where}: not the record of a round")
        if record["round"] != line - 1:
            raise BadInput(f"{where}: is of round {record['round']}, expected {line - 1}")
        if record.get("of", line) < line:
            raise BadInput(f"{where}: is of round {line - 1} of {record['of']}, expected more rounds than that")
        if unknown := sorted(set(record["updates"]) - set(record["began"])):
            raise BadInput(f"{where}: began lacks {unknown[0]}, which has an update; expected what it began with")
    return list(records)
