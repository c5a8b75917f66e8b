"""The records of a run's ledger, one of each round."""

from collections.abc import Mapping
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit.records.ledger import verified_records
from fedmerit.verification.shapes import (
    NUMBER,
    TEXT,
    WHOLE,
    Shape,
    by_name,
    fields,
    list_of,
    or_nothing,
    require_shapes,
)
from fedmerit.verification.site_chains import Record

NEEDED: Mapping[str, Shape] = {
    "round": WHOLE,
    "participants": list_of(TEXT),
    "began": by_name(TEXT),
    "updates": by_name(TEXT),
    "weights": by_name(NUMBER),
    "contributions": by_name(or_nothing(NUMBER)),
}
POSSIBLE: Mapping[str, Shape] = {  # those of earlier versions lack some
    "of": WHOLE,
    "plan": TEXT,
    "rejected": by_name(TEXT),
    "flagged": list_of(TEXT),
    "model": TEXT,
    "validation_dice": by_name(NUMBER),
    "rows": TEXT,
    "evaluated": by_name(list_of(TEXT)),
    "saved": by_name(TEXT),
    "guard": fields(
        {
            "bounds": by_name(by_name(NUMBER)),
            "signs": by_name(list_of(TEXT)),
            "verdicts": list_of(TEXT),
            "enrolled": by_name(fields({"cases": by_name(WHOLE), "slices": by_name(WHOLE)})),
        }
    ),
}


def read_ledger(path: Path) -> list[Record]:
    """The records of an intact ledger, whoever signed it.

    Raises:
        BadInput: its chain is not whole, or a record is not that of the next round.
    """
    records = verified_records(path)
    for line, record in enumerate(records, start=1):
        where = f"{path}, line {line}"
        require_shapes(record, NEEDED, POSSIBLE, f"{where}: not the record of a round")
        if record["round"] != line - 1:
            raise BadInput(f"{where}: is of round {record['round']}, expected {line - 1}")
        if record.get("of", line) < line:
            raise BadInput(f"{where}: is of round {line - 1} of {record['of']}, expected more rounds than that")
        if unknown := sorted(set(record["updates"]) - set(record["began"])):
            raise BadInput(f"{where}: began lacks {unknown[0]}, which has an update; expected what it began with")
    return list(records)
