"""Heads: what one party's file says that another party's chain or run ended with, and who signed that.

| head | in | signed by |
|---|---|---|
| the server's ledger as a round began | each site's log | the server |
| the closing record of the run | each site's log, at its end | the server |
| a site's log as the site answered | the ledger, and the closing record | the site |
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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
from fedmerit.evidence.verification.chains import RunFiles, SiteLog
from fedmerit.evidence.verification.findings import Contradiction, Finding, at, join_names, make_finding
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


def require_consistent_heads(files: RunFiles) -> None:
    """Require that every round began from one ledger at all sites; else say whose fault it is, if signatures show it.

    Raises:
        Contradiction: an entry of a log lacks the server's head.
    """
    first: dict[int, LedgerHead] = {}
    for log in files.logs:
        for head in ledger_heads(log, files.certificates):
            seen = first.setdefault(head.round, head)
            if seen.hash != head.hash:
                because = _explain_conflict(seen, head, files.records)
                is_signed = seen.is_signed and head.is_signed and seen.signature.chain == head.signature.chain
                both = {"is_signed": is_signed, "other": head.where, "because": because}
                place = {"site": head.site, "round": head.round, "found": head.hash, "expected": seen.hash}
                files.contradict("two ledgers", seen.where, **place, **both)
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


def require_acknowledged_ledger(files: RunFiles, log: SiteLog) -> None:
    """Require that a site acknowledged this ledger, and that the server signed what it sent.

    Raises:
        Contradiction: the log has another head, or a signature that is not the server's.
    """
    records, server = files.records, files.certificates
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
            lacks = f"{files.ledger} lacks that record, or is older than the log"
            has = lacks if expected is None else f"{files.line(head.round - 1)}, has {expected}"
            raise Contradiction(
                "other ledger", head.where, site=log.site, round=head.round, found=head.hash, expected=has,
                because=because, is_cut=expected is None,
            )  # fmt: skip
        if server and head.has_signature and not head.is_signed:
            raise Contradiction("head signature", head.where, site=log.site, round=head.round)


def has_unsigned_heads(log: SiteLog) -> bool:
    """Return whether a log lacks the server's signature of a ledger head."""
    return any(entry.round and not entry.vouched for entry in log.entries if entry.work != GAVE)


def read_verified_closing(files: RunFiles) -> Closing | None:
    """Read the closing record of a run; return None if there is none.

    It has to be the server's, of this ledger, and of the files that are there.
    """
    run, server = files.run, files.certificates
    closing, path = read_closing(run), run / CLOSING
    if closing is None:
        return None
    head = files.records[-1].hash if files.records else GENESIS
    if server and not is_signed_by_any(server, closing_payload(closing.ledger, closing.digest), closing.signature):
        how = "it is not signed" if closing.signature is None else "its signature is not the server's"
        files.contradict("closing signature", path, found=how)
    if closing.signature and not server:
        files.contradict("signatures removed", path)
    if closing.ledger != head:
        files.contradict("closing of another ledger", path, found=closing.ledger, expected=head)
    require_file_sizes(run, [name for name in closing.files if (run / name).is_file()])
    for name, digest in closing.files.items():
        if not (run / name).is_file():
            files.contradict("missing file", run / name, closing=path)
        elif sha256(run / name) != digest:
            files.contradict("changed file", run / name, closing=path)
    for file in covered_files(run):
        if file.relative_to(run).as_posix() not in closing.files:
            files.contradict("added file", file, closing=path)
    return closing


def require_same_closing(files: RunFiles) -> None:
    """Require that every site noted the run folder's closing record, or none if there is none."""
    closing, path, server = files.closing, files.run / CLOSING, files.certificates
    for log in files.logs:
        for line, entry in log.lines(CLOSED):
            if closing and entry.closing == closing.digest:
                continue
            where = at(log.path, line)
            if server and not _has_server_signature(entry, server):
                files.contradict("unsigned other closing", where, site=log.site, closing=path)
                continue
            signed = ", and the server signed that" if server else ", or that log is of another run"
            how = "was closed again since" if closing else "is missing"
            files.contradict("closed again", path, where, site=log.site, found=how, because=signed)


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


def log_ends(files: RunFiles, closing: Closing | None) -> Iterator[LogEnd]:
    """Yield the ends of sites' logs that the server's files have, in the order of rounds, the closing record's last."""
    signed = (record_head(record.model_dump(include={"hash", "signature"})) for record in files.records)
    heads = list(enumerate([GENESIS, *signed]))
    for record in files.records:
        for site, text in record.logs.items():
            yield LogEnd(files.line(record.round), site, *split_head(text), heads[record.round :][:1])
    for site, text in closing.site_logs.items() if closing else ():
        yield LogEnd(str(files.run / CLOSING), site, *split_head(text), heads[::-1])


def compare_log_ends(
    files: RunFiles, closing: Closing | None, enrolled: Mapping[str, Certificates]
) -> Iterator[Finding]:
    """Yield what is not shown of the logs' ends; only what a site signed convicts it.

    Args:
        files: the run's files.
        closing: the closing record, if its signature counts and it is of this ledger.
        enrolled: certificates of each site's enrolments, by the ledger.
    """
    logs = {log.site: log for log in files.logs}
    unsigned, disputed, cut = set[str](), set[str](), set[str]()
    hashes = {log.site: {entry.hash for entry in log.entries} for log in files.logs}
    for site, log in logs.items():
        if log.certificates and any(site in one.participants and site not in one.logs for one in files.records):
            unsigned.add(site)
    for end in log_ends(files, closing):
        own_log = logs.get(end.site)
        certificates = [*(own_log.certificates if own_log else ()), *enrolled.get(end.site, ())]
        lacks = own_log is not None and end.hash not in hashes[end.site]
        round = end.signed_round(certificates)
        if round is None and certificates and (lacks or end.signature):
            whose = "the server invented it" if files.is_authority else "of another key, or invented by the server"
            files.contradict("invented log end", end.where, site=end.site, found=end.hash, because=whose)
            continue
        if lacks and round and own_log:
            if end.site not in cut:
                whose = "" if files.is_authority else ", by the certificates in these folders"
                place = {"site": end.site, "round": round, "expected": end.hash, "ledger": end.where}
                files.contradict("cut log", own_log.path, **place, because=whose)
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
