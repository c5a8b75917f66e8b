"""What sites acknowledged: ledger heads, against the ledger and each other, and the closing record of the run.

And what sites said of their own logs as they answered, which the server keeps.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.x509 import Certificate

from fedmerit.errors import BadInput
from fedmerit.evidence.closing_record import CLOSING, Closing, closing_payload, covered_files, read_closing
from fedmerit.evidence.ledger import GENESIS, RecordSignature, log_payload, record_head, split_head
from fedmerit.evidence.signatures import is_signed_by_any
from fedmerit.evidence.verification.record_schema import Record
from fedmerit.evidence.verification.site_logs import SiteLog
from fedmerit.files import sha256
from fedmerit.site.site_log import CLOSED, GAVE


def verify_closing(run: Path, head: str, server: Sequence[Certificate]) -> Closing | None:
    """The closing record, None if there is none.

    Args:
        head: hash of its ledger's last record.
        server: certificates of whose signature the ledger has; none: it is not signed.

    Raises:
        BadInput: it is not the server's, or of another ledger or other files than those there.
    """
    closing, path = read_closing(run), run / CLOSING
    if closing is None:
        return None
    signed = closing_payload(closing.ledger, closing.digest)
    if server and not is_signed_by_any(server, signed, closing.signature):
        how = "it is not signed" if closing.signature is None else "its signature is not the server's"
        raise BadInput(f"{path}: {how}; it was written or changed by somebody else")
    if closing.signature and not server:
        raise BadInput(f"{path}: is signed, and the ledger is not; its signatures were removed")
    if closing.ledger != head:
        raise BadInput(f"{path}: is of a ledger that ended with {closing.ledger}, this one ends with {head}")
    for name, said in closing.files.items():
        if not (run / name).is_file():
            raise BadInput(f"{run / name}: is missing; {path} lists it")
        if sha256(run / name) != said:
            raise BadInput(f"{run / name}: was changed after the run; {path} has another SHA-256")
    for file in covered_files(run):
        if file.relative_to(run).as_posix() not in closing.files:
            raise BadInput(f"{file}: was put there after the run; {path} does not list it")
    return closing


def require_same_closing(
    run: Path, closing: Closing | None, logs: Sequence[SiteLog], server: Sequence[Certificate]
) -> None:
    """`BadInput` if a site noted another closing record than the run folder's; None: the folder has none."""
    for log in logs:
        for line, entry in enumerate(log.entries, start=1):
            if entry["work"] != CLOSED or (closing and entry["closing"] == closing.digest):
                continue
            if server and not _has_server_signature(entry, server):
                raise BadInput(
                    f"{log.path}, line {line}: says that the run was closed otherwise than {run / CLOSING}, and has no "
                    "signature of the server's for that: the log was changed, or the server did not sign what it sent"
                )
            what = "was closed again since" if closing else "is missing"
            raise BadInput(
                f"{run / CLOSING}: {what}; by {log.path}, line {line}, {log.site} noted another when the run "
                f"ended{', and the server signed that' if server else ', or that log is of another run'}"
            )


def has_countersigned(log: SiteLog, server: Sequence[Certificate]) -> bool:
    """Whether a site noted how the run was closed, with the server's signature if it has a key."""
    return any(
        entry["work"] == CLOSED and (not server or _has_server_signature(entry, server)) for entry in log.entries
    )


def _has_server_signature(entry: Record, server: Sequence[Certificate]) -> bool:
    return is_signed_by_any(server, closing_payload(str(entry.get("ledger")), entry["closing"]), entry.get("sealed"))


@dataclass(frozen=True)
class _LogEnd:
    """What the server's files have of a site's own log: how it ended when the site answered."""

    where: str
    site: str
    said: str  # as in `messages.Reply.log`
    heads: Sequence[tuple[int, str]]  # round and head of the server's that the site had then, one of these

    @property
    def last(self) -> str:
        """The hash of the log's last record."""
        return split_head(self.said)[0]

    def signed_round(self, certificates: Sequence[Certificate]) -> int | None:
        """The round for which the key of one of these signed it; None: for no round of this ledger."""
        signature = split_head(self.said)[1]
        for round, head in self.heads:
            if is_signed_by_any(certificates, log_payload(head, round, self.last), signature):
                return round
        return None


def compare_log_ends(
    ledger: Path,
    records: Sequence[Record],
    closing: Closing | None,
    logs: Sequence[SiteLog],
    enrolled: Mapping[str, Sequence[Certificate]],
    is_authority: bool,
) -> Iterator[str]:
    """In sentences, what is not shown of the sites' logs; the server's files have how these ended as sites answered.

    Only what a site signed convicts it, and only the authority tells whose a certificate is.

    Args:
        ledger: the file, of which the next are the records.
        closing: of the run; None: it is not closed.
        enrolled: by site, certificates of its enrolments, by the ledger.
        is_authority: whether all certificates were issued by the authority that counts.

    Raises:
        BadInput: the server's files have an end of a site's log that the site did not sign and should have, or a log
            lacks what its site signed.
    """
    given, unsigned, other = {log.site: log for log in logs}, set[str](), set[str]()
    hashes = {log.site: {entry["hash"] for entry in log.entries} for log in logs}
    for own in logs:
        taken = [record for record in records if own.site in record["participants"]]
        if own.certificates and any(own.site not in record["logs"] for record in taken):
            unsigned.add(own.site)
    for end in _log_ends(ledger, records, closing):
        log = given.get(end.site)
        certificates = [*(log.certificates if log else ()), *enrolled.get(end.site, ())]
        lacks = log is not None and end.last not in hashes[log.site]
        round = end.signed_round(certificates)
        if round is None and certificates and (lacks or split_head(end.said)[1]):
            whose = "the server invented it" if is_authority else "of another key, or invented by the server"
            raise BadInput(
                f"{end.where}: has for the end of the log of {end.site} {end.last}, which {end.site} did not sign "
                f"in that round of this run: {whose}; this does not accuse {end.site}"
            )
        if lacks and round and log:
            whose = "" if is_authority else ", by the certificates in these folders"
            raise BadInput(
                f"{log.path}: {end.site} signed that its log ended with {end.last} ({end.where}){whose}, and its "
                "log lacks that record: it was cut, lost or rewritten at the site"
            )
        if lacks:
            other.add(end.site)
        elif log and log.certificates and round is None:
            unsigned.add(end.site)
    if unsigned:
        yield f"that the logs of {', '.join(sorted(unsigned))} are whole: how they ended is not signed by these sites"
    if other:
        yield (
            f"whether the logs of {', '.join(sorted(other))} were cut, or the server invented how they ended: they "
            "lack a record that it says they had, and no signature shows who is right"
        )


def _log_ends(ledger: Path, records: Sequence[Record], closing: Closing | None) -> Iterator[_LogEnd]:
    """In the order of rounds, the closing record's last."""
    heads = list(enumerate([GENESIS, *map(record_head, records)]))
    for record in records:
        for site, said in record["logs"].items():
            yield _LogEnd(f"{ledger}, line {record['round'] + 1}", site, said, heads[record["round"] :][:1])
    for site, said in closing.site_logs.items() if closing else ():
        yield _LogEnd(str(ledger.parent / CLOSING), site, said, heads[::-1])


@dataclass(frozen=True)
class _AcknowledgedHead:
    """What a line of a log says of the server's ledger as a round began."""

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
        return RecordSignature.parse(self.entry.get("vouched"))

    def is_signed(self, server: Sequence[Certificate]) -> bool:
        """Whether the server signed that a ledger ended with it as this round began."""
        return self.sealed.is_signed_by(server, self.entry["round"] - 1, self.head)

    def misplaced(self, records: Sequence[Record]) -> str:
        """That it is the ledger's record of another round, if it is."""
        of = next((record["round"] for record in records if record["hash"] == self.head), self.entry["round"] - 1)
        if of == self.entry["round"] - 1:
            return ""
        return f"; it is the ledger's record of round {of}, that {self.log.site}'s log has for another"


def require_consistent_heads(
    logs: Sequence[SiteLog], server: Sequence[Certificate], records: Sequence[Record] = ()
) -> None:
    """Every round began from one ledger, at all sites.

    Args:
        server: whose signatures count; None: there are none.

    Raises:
        BadInput: two sites, or one of them twice, acknowledged two. It says whose fault that is, as far as what the
            server signed shows it.
    """
    first: dict[int, _AcknowledgedHead] = {}
    for log in logs:
        for task in _acknowledged_heads(log):
            if "ledger" not in task.entry:  # which `require_acknowledged_ledger` names
                continue
            seen = first.setdefault(task.entry["round"], task)
            if seen.head != task.head:
                raise BadInput(
                    f"two ledger heads for round {task.entry['round']}: {seen.where}, says that the ledger ended "
                    f"with {seen.head}; {task.where}, with {task.head}; "
                    f"{_explain_conflict(seen, task, server, records)}"
                )


def _explain_conflict(
    one: _AcknowledgedHead, other: _AcknowledgedHead, server: Sequence[Certificate], records: Sequence[Record]
) -> str:
    """Whose fault it is that two heads of a round differ."""
    signed = [task.is_signed(server) for task in (one, other)]
    if all(signed):
        if one.sealed.chain == other.sealed.chain:
            return "the server signed both: it keeps two ledgers"
        return "the server signed both, of two chains: one log is of another run, or it keeps two ledgers"
    if any(signed):
        false = other if signed[0] else one
        return (
            f"the server signed only one of them, not that in {false.where}: that log was changed, or the server did "
            f"not sign what it sent{false.misplaced(records)}"
        )
    if misplaced := one.misplaced(records) or other.misplaced(records):
        return f"the server signed neither for this round{misplaced}"
    return "neither is signed by the server: it keeps two ledgers, or a log was changed"


def require_acknowledged_ledger(
    ledger: Path, records: Sequence[Record], log: SiteLog, server: Sequence[Certificate]
) -> None:
    """`BadInput` if the ledger is not the one that the site acknowledged, or the server did not sign what it sent."""
    complete = [GENESIS, *(record["hash"] for record in records)]
    for task in _acknowledged_heads(log):
        if "ledger" not in task.entry:
            raise BadInput(f"{task.where}: not a record of a site's log; it lacks ledger, the server's head")
        before = task.entry["round"]
        expected = complete[before] if before < len(complete) else None
        if task.head != expected:
            raise BadInput(
                f"{task.where}: the server said its ledger ended with {task.head}; "
                + (
                    f"{ledger} lacks that record, or is older than the log"
                    if expected is None
                    else f"{ledger}, line {before}, has {expected}"
                )
                + _explain_mismatch(task, records, server)
            )
        if server and "vouched" in task.entry and not task.is_signed(server):
            raise BadInput(f"{task.where}: what it has for the server's signature is none of the server's for that")


def _explain_mismatch(task: _AcknowledgedHead, records: Sequence[Record], server: Sequence[Certificate]) -> str:
    """Whose fault it is that a head is not the ledger's."""
    if not server or not task.entry["round"]:
        return ""
    chains = {RecordSignature.parse(record.get("signature")).chain for record in records}
    if task.is_signed(server):
        of_the_run = task.sealed.chain in chains
        return "; the server signed that" if of_the_run else "; the server signed that of another chain, or run"
    return f"; the server did not sign that for round {task.entry['round']}{task.misplaced(records)}"


def find_unsigned_heads(logs: Sequence[SiteLog]) -> list[str]:
    """The sites whose logs lack the server's signature of a ledger head."""
    return [
        log.site
        for log in logs
        if any(task.entry["round"] and "vouched" not in task.entry for task in _acknowledged_heads(log))
    ]


def _acknowledged_heads(log: SiteLog) -> list[_AcknowledgedHead]:
    """The records of the server's tasks; in what a site gives another the server has no part."""
    entries = enumerate(log.entries, start=1)
    return [_AcknowledgedHead(log, line, entry) for line, entry in entries if entry["work"] != GAVE]
