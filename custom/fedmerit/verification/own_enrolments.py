"""What a site committed to, by its own log, against what the ledger says that it did."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit.federation.site_log import ENROLLED
from fedmerit.verification.site_chains import Log, Record

COMMITTED = ("cases", "slices", "fingerprint")  # what both have of it


def compare_enrolments(ledger: Path, records: Sequence[Record], own: Log) -> Iterator[str]:
    """In a sentence, that a log has none of the commitments that the ledger has of its site.

    Raises:
        BadInput: the ledger has another than the log.
    """
    said = [(entry["round"], _committed(entry)) for entry in own.entries if entry["work"] == ENROLLED]
    for record in records:
        round, taken = record["round"], record.get("guard", {}).get("enrolled", {}).get(own.site)
        if taken is None:
            continue
        if not said:  # of an earlier version
            yield f"that what {own.site} enrolled is its own: its log has none"
            return
        if (round, _committed(taken)) not in said:
            raise BadInput(
                f"{ledger}, line {round + 1}: {own.site} enrolled other cases, or another number of them, than "
                f"{own.path} has in round {round}"
            )


def _committed(entry: Record) -> list[object]:
    return [entry.get(name) for name in COMMITTED]
