"""Whether a run's ledger is whole and the server's own, and whether what a site wrote down agrees with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.x509 import Certificate

from fedmerit.errors import BadInput
from fedmerit.ledger import GENESIS, verified_records
from fedmerit.messages import TRAIN
from fedmerit.server import CHECKPOINT, complete_rounds
from fedmerit.signing import CERTIFICATE, read_certificate, require_vouched, subject

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Verified:
    """What was found to be whole."""

    records: int  # of the ledger
    signer: str | None  # whose certificate signed them; None: they are not signed
    site: str | None = None  # whose log agrees with them
    updates: int = 0  # of that site, that stand in both


def verify_run(run: Path, site_log: Path | None = None, trusted: Path | None = None) -> Verified:
    """Check the ledger of a run folder; the log of a site against it.

    Args:
        run: the run folder.
        site_log: of one of its sites.
        trusted: the server's certificate, or that of who issued it; the records have to be signed then. Without it
            they are checked with the certificate in the run folder, where they are signed.

    Raises:
        BadInput: a record was changed, left out or reordered, is not signed, or the two disagree; file and line are
            named, and what differs.
    """
    ledger = run / "ledger.jsonl"
    records = verified_records(ledger)
    certificate = _certificate(run, records, trusted)
    if certificate:
        verified_records(ledger, certificate)
    expected = complete_rounds(run)
    if expected is not None and len(records) != expected:
        raise BadInput(
            f"{ledger}: holds {len(records)} records, but {run / CHECKPOINT} stands at {expected} complete rounds; "
            "records were removed or put in at its end"
        )
    for line, record in enumerate(records, start=1):
        if record.get("round") != line - 1:
            raise BadInput(f"{ledger}, line {line}: is of round {record.get('round')}, expected {line - 1}")
    signer = subject(certificate) if certificate else None
    if site_log is None:
        return Verified(len(records), signer)
    site, updates = _compare(ledger, records, site_log, verified_records(site_log))
    return Verified(len(records), signer, site, updates)


def _certificate(run: Path, records: Sequence[Record], trusted: Path | None) -> Certificate | None:
    """What the records have to be signed with; None where they are not signed and need not be."""
    if not any("signature" in record for record in records):
        if trusted and records:
            raise BadInput(f"{run / 'ledger.jsonl'}, line 1: it is not signed; expected a signature of {trusted}")
        return None
    certificate = read_certificate(run / CERTIFICATE)
    if trusted:
        require_vouched(certificate, trusted)
    return certificate


def _compare(ledger: Path, records: Sequence[Record], log: Path, entries: Sequence[Record]) -> tuple[str, int]:
    """The site of a log and in how many rounds its update is in the ledger; `BadInput` where the two disagree."""
    names = {entry.get("site") for entry in entries}
    if len(names) != 1:
        raise BadInput(f"{log}: holds the log of {len(names)} sites, expected that of one")
    site = str(names.pop())
    sent: dict[int, list[tuple[int, Record]]] = {}
    for line, entry in enumerate(entries, start=1):
        _require_told(ledger, records, log, line, entry)
        if entry.get("work") == TRAIN:
            sent.setdefault(entry["round"], []).append((line, entry))
    taken = [record for record in records if site in record["updates"]]
    for record in taken:
        where = f"{ledger}, line {record['round'] + 1}"
        if record["round"] not in sent:
            raise BadInput(f"{where}: holds an update of {site}, but {log} has none in round {record['round']}")
        for what, name in (("model it began with", "began"), ("update", "updates")):
            own = "received" if name == "began" else "update"
            lines = sent[record["round"]]
            if all(entry[own] != record[name][site] for _, entry in lines):
                raise BadInput(
                    f"{where}: the {what} of {site} is {record[name][site]}, "
                    f"{log}, line {lines[-1][0]}, says {lines[-1][1][own]}"
                )
    return site, len(taken)


def _require_told(ledger: Path, records: Sequence[Record], log: Path, line: int, entry: Record) -> None:
    """`BadInput` where the ledger is not the one that the server told the site of."""
    complete = [GENESIS, *(record["hash"] for record in records)]
    try:
        told, before = entry["ledger"], entry["round"]
        stands = complete[before] if before < len(complete) else None
    except (KeyError, TypeError, IndexError):
        raise BadInput(f"{log}, line {line}: not a record of a site's log") from None
    if told != stands:
        raise BadInput(
            f"{log}, line {line}: the server said its ledger ended with {told}; "
            + (
                f"{ledger} lacks that record, or is older than the log"
                if stands is None
                else f"{ledger}, line {before}, has {stands}"
            )
        )
