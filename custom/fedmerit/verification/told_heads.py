"""What the server told the sites of its ledger, against the ledger and against what it told others."""

from collections.abc import Sequence
from pathlib import Path

from cryptography.x509 import Certificate

from fedmerit.errors import BadInput
from fedmerit.federation.site_log import GAVE
from fedmerit.records.ledger import GENESIS
from fedmerit.records.signing import signed_by
from fedmerit.verification.site_chains import Log, Record


def require_one_story(logs: Sequence[Log], server: Certificate | None) -> None:
    """`BadInput` where the server told two sites, or one of them twice, that a round began from two ledgers."""
    first: dict[int, tuple[Log, int, Record]] = {}
    for log in logs:
        for line, entry in _told(log):
            seen, at, other = first.setdefault(entry["round"], (log, line, entry))
            if other.get("ledger") != entry.get("ledger"):
                both = [_vouched(one, server) for one in (other, entry)]
                whose = (
                    "the server signed both: it keeps two ledgers"
                    if all(both)
                    else "the server signed one of them alone; the other log was changed, or the server did not sign"
                    if any(both)
                    else "neither is signed by the server: it keeps two ledgers, or a log was changed"
                )
                raise BadInput(
                    f"two stories of round {entry['round']}: {seen.path}, line {at}, was told that the ledger ended "
                    f"with {other.get('ledger')}; {log.path}, line {line}, with {entry.get('ledger')}; {whose}"
                )


def require_told(ledger: Path, records: Sequence[Record], log: Log, server: Certificate | None) -> None:
    """`BadInput` where the ledger is not the one that the server told the site of, or did not sign what it told."""
    complete = [GENESIS, *(record["hash"] for record in records)]
    for line, entry in _told(log):
        if "ledger" not in entry:
            raise BadInput(f"{log.path}, line {line}: not a record of a site's log")
        told, before = entry["ledger"], entry["round"]
        stands = complete[before] if before < len(complete) else None
        if told != stands:
            raise BadInput(
                f"{log.path}, line {line}: the server said its ledger ended with {told}; "
                + (
                    f"{ledger} lacks that record, or is older than the log"
                    if stands is None
                    else f"{ledger}, line {before}, has {stands}"
                )
            )
        if server and "vouched" in entry and not _vouched(entry, server):
            raise BadInput(f"{log.path}, line {line}: what it has for the server's signature is none of the server's")


def _told(log: Log) -> list[tuple[int, Record]]:
    """The records of the server's tasks, with their lines; in what a site gives another the server has no part."""
    return [(line, entry) for line, entry in enumerate(log.entries, start=1) if entry["work"] != GAVE]


def _vouched(entry: Record, server: Certificate | None) -> bool:
    return server is not None and signed_by(server, str(entry.get("ledger")), entry.get("vouched"))
