"""The chains that a verification reads: the server's ledger and the sites' logs, each by itself."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from cryptography.x509 import Certificate

from fedmerit.errors import BadInput
from fedmerit.evidence.closing_record import Closing
from fedmerit.evidence.ledger import read_verified_records, require_signatures
from fedmerit.evidence.signatures import (
    CERTIFICATE,
    Trust,
    certificate_name,
    parse_certificates,
    read_certificates,
    require_owner,
    subject,
)
from fedmerit.evidence.verification.findings import Contradiction, Report, at, join_names, make_finding, stop
from fedmerit.schema.declarations import read
from fedmerit.schema.records import CLOSED, GAVE, GOT, TRAIN, EnrolmentRecord, LogEntry, Record, RoundRecord
from fedmerit.schema.run_info import read_run

SIGNING_ENGINES = ("poc", "prod")  # engines whose servers have a certificate, and so sign
NEEDED_FIELDS: Mapping[str, Sequence[str]] = {  # fields of a log entry that are needed, by its work
    TRAIN: ("received", "update"),
    GAVE: ("peer", "model"),
    GOT: ("peer", "model"),
    CLOSED: ("closing",),
}
OF_PARTICIPANTS = (  # fields of a round's record that name nobody else
    *("began", "weights", "contributions", "reputations", "quotas", "validation_dice", "flagged"),
)
Content = Mapping[str, Any]  # of a line of a chain
AnyRecord = TypeVar("AnyRecord", bound=Record)


@dataclass(frozen=True)
class SiteLog:
    """A site's own log."""

    path: Path
    site: str
    entries: Sequence[LogEntry]
    certificates: Sequence[Certificate] = ()  # that sign the entries, in order; empty if they are not signed

    def lines(self, work: str | None = None, round: int | None = None) -> Iterator[tuple[int, LogEntry]]:
        """Yield the entries, of one kind of work or one round only if these are named, with their line numbers."""
        for line, entry in enumerate(self.entries, start=1) if round is None else self._by_round.get(round, ()):
            if work in (None, entry.work):
                yield line, entry

    @cached_property
    def _by_round(self) -> Mapping[int, Sequence[tuple[int, LogEntry]]]:
        """The entries of each round with their line numbers: a log is asked for every round, several times."""
        rounds: dict[int, list[tuple[int, LogEntry]]] = {}
        for line, entry in enumerate(self.entries, start=1):
            rounds.setdefault(entry.round, []).append((line, entry))
        return rounds


@dataclass
class RunFiles:
    """A run's files that a verification compares, and what it does with a contradiction between them."""

    run: Path
    records: Sequence[RoundRecord] = ()  # of the ledger
    logs: Sequence[SiteLog] = ()  # those that sites gave
    sites: Sequence[str] = ()  # all that ever took part, in the order of their models
    certificates: Sequence[Certificate] = ()  # that sign the ledger; none: it is not signed
    trust: Trust | None = None  # whose signatures count
    closing: Closing | None = None  # None: the run is not closed
    report: Report = stop

    @property
    def ledger(self) -> Path:
        """The file of the records."""
        return self.run / "ledger.jsonl"

    @property
    def is_authority(self) -> bool:
        """Whether an authority says whose each certificate is."""
        return self.trust is not None and self.trust.is_authority

    @property
    def enrolments(self) -> dict[str, EnrolmentRecord]:
        """The last enrolment of each site in the ledger, by name."""
        return {site: one for record in self.records for site, one in record.guard.enrolled.items()}

    def line(self, round: int) -> str:
        """Return the text that names a round's line of the ledger."""
        return at(self.ledger, round + 1)

    def contradict(self, kind: str, where: str | Path | RoundRecord, log: Any = "", **values: Any) -> None:
        """Report a contradiction.

        Args:
            kind: a name of `fedmerit.evidence.verification.findings.CONTRADICTIONS`.
            where: file or line; a record stands for its line of the ledger and its round.
            log: the log that says something else; a `SiteLog` stands for its file and its site.
            **values: further ones of `make_finding`.
        """
        if isinstance(where, RoundRecord):
            values = {"round": where.round, **values}
            where = self.line(where.round)
        if isinstance(log, SiteLog):
            values = {"site": log.site, **values}
            log = log.path
        self.report(make_finding(kind, where, log=log, **values))


def read_ledger(path: Path) -> list[RoundRecord]:
    """Read the records of an intact ledger; signatures are not checked.

    Raises:
        BadInput: the chain is not whole, or a record is not that of the next round.
    """
    return parse_ledger(path, read_verified_records(path))


def parse_ledger(path: Path, contents: Sequence[Content]) -> list[RoundRecord]:
    """Return the records of rounds that the lines of a ledger hold.

    Raises:
        Contradiction: a line holds no record, or that of another round, or one with an outcome of sites that took no
            part in it.
    """
    records = []
    for line, content in enumerate(contents, start=1):
        where = at(path, line)
        needed = ["plan"] * (line == 1) + ["saved"] * (line == content.get("of"))
        record = _parse_record(RoundRecord, content, needed, "malformed record", where)
        if record.round != line - 1:
            raise Contradiction("round number", where, found=record.round, expected=line - 1)
        if record.of < line:
            raise Contradiction("number of rounds", where, round=line - 1, found=record.of)
        named = dict.fromkeys(OF_PARTICIPANTS, record.participants) | {"updates": [*record.began]}
        for name, known in named.items():
            if strangers := sorted({*getattr(record, name)}.difference(known)):
                raise Contradiction("stranger", where, site=strangers[0], quantity=name, expected=join_names(known))
        records.append(record)
    return records


def read_site_log(path: Path, trust: Trust | None = None) -> SiteLog:
    """Read a site's log.

    Raises:
        BadInput: the file is missing, its chain is not whole, it is of several sites, it is signed by another than the
            site, or an entry is none of a site's log.
    """
    if not path.exists():
        raise BadInput(f"{path}: file not found; expected the site_log.jsonl of a site's workspace")
    contents = read_verified_records(path)
    names = {str(content.get("site")) for content in contents}
    if len(names) != 1:
        raise Contradiction("several sites", path, found=len(names))
    site, certificates = names.pop(), list[Certificate]()
    if (path.parent / CERTIFICATE).exists() or any(content.get("signature") for content in contents):
        certificates = read_certificates(path.parent / CERTIFICATE)
        for certificate in certificates:
            if trust and trust.is_authority:
                trust.require(certificate, site, str(path))
            else:
                require_owner(certificate, site, str(path))
        require_signatures(path, contents, certificates, site)
    is_signed = bool(certificates and trust and trust.is_authority)
    entries = []
    for line, content in enumerate(contents, start=1):
        needed = NEEDED_FIELDS.get(str(content.get("work")), ())
        of_site = {"site": site, "is_signed": is_signed}
        entries.append(_parse_record(LogEntry, content, needed, "malformed entry", at(path, line), **of_site))
    return SiteLog(path, site, entries, tuple(certificates))


def read_site_logs(paths: Sequence[Path], trust: Trust | None, known: Sequence[SiteLog] = ()) -> list[SiteLog]:
    """Read the logs of several sites, one of each, and none of a site whose log is ``known``."""
    logs: dict[str, SiteLog] = {}
    for path in paths:
        log = read_site_log(path, trust)
        if log.site in {*logs, *(one.site for one in known)}:
            raise Contradiction("second log", path, site=log.site)
        logs[log.site] = log
    return list(logs.values())


def signing_certificates(run: Path, records: Sequence[Content], trust: Trust | None) -> Sequence[Certificate]:
    """Return the certificates that a ledger's lines have to be signed with; none if they need not be signed."""
    ledger = run / "ledger.jsonl"
    if not any(record.get("signature") for record in records):
        because = None
        if trust and records:
            because = f"; expected a signature of the server, as {trust.path} ({subject(trust.anchor)}) has it"
        elif (run / CERTIFICATE).exists() and records:
            because = f", and {run / CERTIFICATE} says that the server signs"
        elif records and _read_engine(run) in SIGNING_ENGINES:
            because = f", and {run / 'run.json'} says that the run's server had a certificate to sign with"
        if because:
            raise Contradiction("unsigned ledger", at(ledger, 1), because=because)
        return ()
    certificates = read_certificates(run / CERTIFICATE)
    for certificate in certificates:
        if trust:
            trust.require(certificate, trust.server_name, str(ledger))
        else:
            require_owner(certificate, certificate_name(certificates[0]), str(ledger))
    return certificates


def enrolled_certificates(files: RunFiles) -> dict[str, list[Certificate]]:
    """Return the certificates that each site enrolled with; none without an authority to say whose they are."""
    enrolled: dict[str, list[Certificate]] = {}
    trust = files.trust
    if trust is None or not trust.is_authority:
        return enrolled
    for record in files.records:
        for site, enrolment in record.guard.enrolled.items():
            if not enrolment.certificate:
                continue
            where, what = files.line(record.round), f"certificate of {site}"
            try:
                certificates = parse_certificates(enrolment.certificate.encode(), what)
                for certificate in certificates:
                    trust.require(certificate, site, what)
            except BadInput as error:  # the server signed that it is the site's
                raise Contradiction("malformed record", where, found=error) from None
            enrolled.setdefault(site, []).extend(certificates)
    return enrolled


def list_sites(run: Path, records: Sequence[RoundRecord]) -> list[str]:
    """Return the sites in the order of their models, as run.json names them; else those that the records name."""
    named = read_run(run).get("sites", ()) if (run / "run.json").exists() else ()
    sites = [site for site in named if isinstance(site, str)]
    return sorted(sites or {site for record in records for site in (*record.participants, *record.rejected)})


def _parse_record(
    kind: type[AnyRecord], content: Content, needed: Iterable[str], fault: str, where: str, **values: Any
) -> AnyRecord:
    """Return a line of a chain as a record; `Contradiction` of the kind ``fault``, with ``values``, if it is none."""
    try:
        record = read(kind, content, "")
        if lacking := [name for name in needed if name not in content]:
            raise BadInput(f"lacks {lacking[0]}")
    except BadInput as error:
        raise Contradiction(fault, where, found=error, **values) from None
    return record


def _read_engine(run: Path) -> str | None:
    return read_run(run).get("engine") if (run / "run.json").exists() else None
