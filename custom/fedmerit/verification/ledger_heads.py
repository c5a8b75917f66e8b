"""What the server told the sites of its ledger, against the ledger and against what it told others."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.x509 import Certificate

from fedmerit.errors import BadInput
from fedmerit.federation.site_log import GAVE
from fedmerit.records.ledger import GENESIS, RecordSignature
from fedmerit.verification.site_logs import Record, SiteLog


@dataclass(frozen=True)
class _AcknowledgedHead:
    """What a line of a log says that the server told of its ledger as a round began."""

    log: SiteLog
    line: int
    entry: Record

    @property
    def where(self) -> str:
        return f"{self.log.path}, line {self.line}"

    @property
    def head(self) -> str:
        return str(self.entry.get("ledger"))

    @property
    def sealed(self) -> RecordSignature:
        return RecordSignature.of(self.entry.get("vouched"))

    def is_signed(self, server: Sequence[Certificate]) -> bool:
        """Whether the server signed that a ledger ended with it as this round began."""
        return self.sealed.is_signed_by(server, self.entry["round"] - 1, self.head)

    def misplaced(self, records: Sequence[Record]) -> str:
        """That it is the ledger's record of another round, where it is."""
        of = next((record["round"] for record in records if record["hash"] == self.head), self.entry["round"] - 1)
        if of == self.entry["round"] - 1:
            return ""
        return f"; it is the ledger's record of round {of}, that {self.log.site}'s log has for another"


def require_consistent_heads(
    logs: Sequence[SiteLog], server: Sequence[Certificate], records: Sequence[Record] = ()
) -> None:
    """Every round began from one ledger, whomever the server told of it.

    Args:
        logs: of sites.
        server: whose signatures count; None: there are none.
        records: of the ledger.

    Raises:
        BadInput: two sites, or one of them twice, were told of two. It says whose fault that is, as far as what the
            server signed shows it.
    """
    first: dict[int, _AcknowledgedHead] = {}
    for log in logs:
        for told in _acknowledged_heads(log):
            if "ledger" not in told.entry:  # which `require_told` names
                continue
            seen = first.setdefault(told.entry["round"], told)
            if seen.head != told.head:
                raise BadInput(
                    f"two ledger heads for round {told.entry['round']}: {seen.where}, was told that the ledger ended "
                    f"with {seen.head}; {told.where}, with {told.head}; "
                    f"{_explain_conflict(seen, told, server, records)}"
                )


def _explain_conflict(
    one: _AcknowledgedHead, other: _AcknowledgedHead, server: Sequence[Certificate], records: Sequence[Record]
) -> str:
    """Whose fault it is that two heads of a round differ."""
    signed = [told.is_signed(server) for told in (one, other)]
    if all(signed):
        if one.sealed.chain == other.sealed.chain:
            return "the server signed both: it keeps two ledgers"
        return "the server signed both, of two chains: one log is of another run, or it keeps two ledgers"
    if any(signed):
        false = other if signed[0] else one
        return (
            f"the server signed one of them alone, not that in {false.where}: that log was changed, or the server told "
            f"it without signing{false.misplaced(records)}"
        )
    if misplaced := one.misplaced(records) or other.misplaced(records):
        return f"the server signed neither for this round{misplaced}"
    return "neither is signed by the server: it keeps two ledgers, or a log was changed"


def require_acknowledged_ledger(
    ledger: Path, records: Sequence[Record], log: SiteLog, server: Sequence[Certificate]
) -> None:
    """`BadInput` where the ledger is not the one that the server told the site of, or did not sign what it told."""
    complete = [GENESIS, *(record["hash"] for record in records)]
    for told in _acknowledged_heads(log):
        if "ledger" not in told.entry:
            raise BadInput(f"{told.where}: not a record of a site's log; it lacks ledger, what the server told")
        before = told.entry["round"]
        stands = complete[before] if before < len(complete) else None
        if told.head != stands:
            raise BadInput(
                f"{told.where}: the server said its ledger ended with {told.head}; "
                + (
                    f"{ledger} lacks that record, or is older than the log"
                    if stands is None
                    else f"{ledger}, line {before}, has {stands}"
                )
                + _explain_mismatch(told, records, server)
            )
        if server and "vouched" in told.entry and not told.is_signed(server):
            raise BadInput(f"{told.where}: what it has for the server's signature is none of the server's for that")


def _explain_mismatch(told: _AcknowledgedHead, records: Sequence[Record], server: Sequence[Certificate]) -> str:
    """Whose fault it is that a head is not the ledger's."""
    if not server or not told.entry["round"]:
        return ""
    chains = {RecordSignature.of(record.get("signature")).chain for record in records}
    if told.is_signed(server):
        of_the_run = told.sealed.chain in chains
        return "; the server signed that" if of_the_run else "; the server signed that of another chain, or run"
    return f"; the server did not sign that for round {told.entry['round']}{told.misplaced(records)}"


def find_unsigned_heads(logs: Sequence[SiteLog]) -> list[str]:
    """The sites whose logs lack the server's signature of something that it told of its ledger."""
    return [
        log.site
        for log in logs
        if any(told.entry["round"] and "vouched" not in told.entry for told in _acknowledged_heads(log))
    ]


def _acknowledged_heads(log: SiteLog) -> list[_AcknowledgedHead]:
    """The records of the server's tasks; in what a site gives another the server has no part."""
    entries = enumerate(log.entries, start=1)
    return [_AcknowledgedHead(log, line, entry) for line, entry in entries if entry["work"] != GAVE]
