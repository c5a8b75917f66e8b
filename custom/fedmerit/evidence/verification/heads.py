"""Heads: what one party's file says that another party's chain or run ended with, and who signed that.

| head | in | signed by |
|---|---|---|
| the server's ledger as a round began | each site's log | the server |
| the closing record of the run | each site's log, at its end | the server |
| a site's log as the site answered | the ledger, and the closing record | the site |
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.x509 import Certificate

from fedmerit.evidence.closing_record import (
    CLOSING,
    Closing,
    closing_payload,
    covered_files,
    read_closing,
    require_file_sizes,
)
from fedmerit.evidence.ledger import GENESIS, RecordSignature, log_payload, record_head, split_head
from fedmerit.evidence.signatures import is_signed_by_any
from fedmerit.evidence.verification.chains import SiteLog
from fedmerit.evidence.verification.findings import Contradiction, Finding, Report, at, join_names, make_finding, stop
from fedmerit.files import sha256
from fedmerit.schema.records import CLOSED, GAVE, LogEntry, RoundRecord

Certificates = Sequence[Certificate]


@dataclass(frozen=True)
class LedgerHead:
    """A hash of the server's ledger in a site's log, as a round began."""

    where: str
    site: str
    round: int
    hash: str
    signature: RecordSignature
    has_signature: bool
    is_signed: bool  # by the server, for the record before this round

    def misplacement(self, records: Sequence[RoundRecord]) -> str:
        """Return words that name the round whose record has this hash, if it is another one."""
        match = next((record.round for record in records if record.hash == self.hash), self.round - 1)
        if match == self.round - 1:
            return ""
        return f"; it is the ledger's record of round {match}, that {self.site}'s log has for another"


def ledger_heads(log: SiteLog, server: Certificates) -> Iterator[LedgerHead]:
    """Yield the ledger heads in a log; models that the site gives a peer come without one.

    Raises:
        Contradiction: an entry lacks the head or has a signature that is not the server's for it.
    """
    for line, entry in log.lines():
        where = at(log.path, line)
        if entry.work == GAVE:
            continue
        if not entry.ledger:
            raise Contradiction("no head", where)
        signature = RecordSignature.parse(entry.vouched)
        is_signed = signature.is_signed_by(server, entry.round - 1, entry.ledger)
        yield LedgerHead(where, log.site, entry.round, entry.ledger, signature, bool(entry.vouched), is_signed)


def require_consistent_heads(
    logs: Sequence[SiteLog], server: Certificates, records: Sequence[RoundRecord] = (), report: Report = stop
) -> None:
    """Require that every round began from one ledger at all sites.

    Raises:
        Contradiction: two entries acknowledge different ledgers; it says whose fault that is, as far as the server's
            signatures show it.
    """
    first: dict[int, LedgerHead] = {}
    for log in logs:
        for head in ledger_heads(log, server):
            seen = first.setdefault(head.round, head)
            if seen.hash != head.hash:
                because = _explain_conflict(seen, head, records)
                is_signed = seen.is_signed and head.is_signed and seen.signature.chain == head.signature.chain
                both = {"is_signed": is_signed, "other": head.where, "because": because}
                place = {"site": head.site, "round": head.round, "found": head.hash, "expected": seen.hash}
                report(make_finding("two ledgers", seen.where, **place, **both))
                break


def _explain_conflict(first: LedgerHead, second: LedgerHead, records: Sequence[RoundRecord]) -> str:
    if first.is_signed and second.is_signed:
        if first.signature.chain == second.signature.chain:
            return "the server signed both: it keeps two ledgers"
        return "the server signed both, of two chains: one log is of another run, or it keeps two ledgers"
    if first.is_signed or second.is_signed:
        unsigned = second if first.is_signed else first
        return (
            f"the server signed only one of them, not that in {unsigned.where}: that log was changed, or the server "
            f"did not sign what it sent{unsigned.misplacement(records)}"
        )
    if misplaced := first.misplacement(records) or second.misplacement(records):
        return f"the server signed neither for this round{misplaced}"
    return "neither is signed by the server: it keeps two ledgers, or a log was changed"


def require_acknowledged_ledger(
    ledger: Path, records: Sequence[RoundRecord], log: SiteLog, server: Certificates
) -> None:
    """Require that a site acknowledged this ledger, and that the server signed what it sent.

    Raises:
        Contradiction: the log has another head, or a signature that is not the server's.
    """
    hashes = [GENESIS, *(record.hash for record in records)]
    chains = {RecordSignature.parse(record.signature).chain for record in records}
    for head in ledger_heads(log, server):
        expected = hashes[head.round] if head.round < len(hashes) else None
        if head.hash != expected:
            because = ""
            if server and head.round and head.is_signed:
                of_the_run = head.signature.chain in chains
                because = "; the server signed that" + ("" if of_the_run else " of another chain, or run")
            elif server and head.round:
                because = f"; the server did not sign that for round {head.round}{head.misplacement(records)}"
            lacks = f"{ledger} lacks that record, or is older than the log"
            has = lacks if expected is None else f"{at(ledger, head.round)}, has {expected}"
            raise Contradiction(
                "other ledger", head.where, site=log.site, round=head.round, found=head.hash, expected=has,
                because=because,
            )  # fmt: skip
        if server and head.has_signature and not head.is_signed:
            raise Contradiction("head signature", head.where, site=log.site, round=head.round)


def has_unsigned_heads(log: SiteLog) -> bool:
    """Return whether a log lacks the server's signature of a ledger head."""
    return any(entry.round and not entry.vouched for entry in log.entries if entry.work != GAVE)


def read_verified_closing(run: Path, head: str, server: Certificates, report: Report = stop) -> Closing | None:
    """Read the closing record of a run; return None if there is none.

    Args:
        head: hash of the ledger's last record.
        server: certificates that the ledger is signed with; none if it is not signed.

    Raises:
        Contradiction: the record is not the server's, or is of another ledger or of other files than those there.
    """
    closing, path = read_closing(run), run / CLOSING
    if closing is None:
        return None
    if server and not is_signed_by_any(server, closing_payload(closing.ledger, closing.digest), closing.signature):
        how = "it is not signed" if closing.signature is None else "its signature is not the server's"
        report(make_finding("closing signature", path, found=how))
    if closing.signature and not server:
        report(make_finding("signatures removed", path))
    if closing.ledger != head:
        report(make_finding("closing of another ledger", path, found=closing.ledger, expected=head))
    require_file_sizes(run, [name for name in closing.files if (run / name).is_file()])
    for name, digest in closing.files.items():
        if not (run / name).is_file():
            report(make_finding("missing file", run / name, closing=path))
        elif sha256(run / name) != digest:
            report(make_finding("changed file", run / name, closing=path))
    for file in covered_files(run):
        if file.relative_to(run).as_posix() not in closing.files:
            report(make_finding("added file", file, closing=path))
    return closing


def require_same_closing(
    run: Path, closing: Closing | None, logs: Sequence[SiteLog], server: Certificates, report: Report = stop
) -> None:
    """Require that every site noted the run folder's closing record; None means that the folder has none.

    Raises:
        Contradiction: a site noted another one.
    """
    for log in logs:
        for line, entry in log.lines(CLOSED):
            if closing and entry.closing == closing.digest:
                continue
            where = at(log.path, line)
            if server and not _has_server_signature(entry, server):
                report(make_finding("unsigned other closing", where, site=log.site, closing=run / CLOSING))
                continue
            signed = ", and the server signed that" if server else ", or that log is of another run"
            how = "was closed again since" if closing else "is missing"
            report(make_finding("closed again", run / CLOSING, site=log.site, found=how, log=where, because=signed))


def has_countersigned(log: SiteLog, server: Certificates) -> bool:
    """Return whether a site noted how the run was closed, with the server's signature if the server has a key."""
    return any(not server or _has_server_signature(entry, server) for _, entry in log.lines(CLOSED))


def _has_server_signature(entry: LogEntry, server: Certificates) -> bool:
    return is_signed_by_any(server, closing_payload(entry.ledger, entry.closing), entry.sealed or None)


@dataclass(frozen=True)
class LogEnd:
    """The end of a site's log as the site answered, in a file of the server's."""

    where: str
    site: str
    hash: str
    signature: str | None
    possible_heads: Sequence[tuple[int, str]]  # round and ledger head that the site may have signed with it

    def signed_round(self, certificates: Certificates) -> int | None:
        """Return the round for which one of these keys signed it; None if it did so for no round of this ledger."""
        for round, head in self.possible_heads:
            if is_signed_by_any(certificates, log_payload(head, round, self.hash), self.signature):
                return round
        return None


def log_ends(ledger: Path, records: Sequence[RoundRecord], closing: Closing | None) -> Iterator[LogEnd]:
    """Yield the ends of sites' logs that the server's files have, in the order of rounds, the closing record's last."""
    heads = list(
        enumerate([GENESIS, *(record_head(record.model_dump(include={"hash", "signature"})) for record in records)])
    )
    for record in records:
        for site, text in record.logs.items():
            yield LogEnd(at(ledger, record.round + 1), site, *split_head(text), heads[record.round :][:1])
    for site, text in closing.site_logs.items() if closing else ():
        yield LogEnd(str(ledger.parent / CLOSING), site, *split_head(text), heads[::-1])


def compare_log_ends(
    ledger: Path,
    records: Sequence[RoundRecord],
    closing: Closing | None,
    logs: Sequence[SiteLog],
    enrolled: Mapping[str, Certificates],
    is_authority: bool,
    report: Report = stop,
) -> Iterator[Finding]:
    """Yield what is not shown of the logs' ends; only what a site signed convicts it.

    Args:
        ledger: the file that holds the records.
        closing: the closing record; None if the run is not closed.
        enrolled: certificates of each site's enrolments, by the ledger.
        is_authority: whether the authority that counts issued all certificates: only it tells whose they are.

    Raises:
        Contradiction: the server's files have an end that the site did not sign and should have, or a log lacks what
            its site signed.
    """
    by_site, unsigned, disputed, cut = {log.site: log for log in logs}, set[str](), set[str](), set[str]()
    hashes = {log.site: {entry.hash for entry in log.entries} for log in logs}
    for log in logs:
        if log.certificates and any(log.site in one.participants and log.site not in one.logs for one in records):
            unsigned.add(log.site)
    for end in log_ends(ledger, records, closing):
        own_log = by_site.get(end.site)
        certificates = [*(own_log.certificates if own_log else ()), *enrolled.get(end.site, ())]
        lacks = own_log is not None and end.hash not in hashes[end.site]
        round = end.signed_round(certificates)
        if round is None and certificates and (lacks or end.signature):
            whose = "the server invented it" if is_authority else "of another key, or invented by the server"
            report(make_finding("invented log end", end.where, site=end.site, found=end.hash, because=whose))
            continue
        if lacks and round and own_log:
            if end.site not in cut:
                whose = "" if is_authority else ", by the certificates in these folders"
                place = {"site": end.site, "round": round, "expected": end.hash, "ledger": end.where}
                report(make_finding("cut log", own_log.path, **place, because=whose))
            cut.add(end.site)
            continue
        if lacks:
            disputed.add(end.site)
        elif own_log and own_log.certificates and round is None:
            unsigned.add(end.site)
    if unsigned:
        yield make_finding("log ends unsigned", site=join_names(sorted(unsigned)))
    if disputed:
        yield make_finding("log ends disputed", site=join_names(sorted(disputed)))
