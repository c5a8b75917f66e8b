"""What auditors' statements show of the sites' work."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cryptography.x509 import Certificate

from fedmerit.errors import BadInput
from fedmerit.evidence.closing_record import Closing, read_closing
from fedmerit.evidence.repeated_work import AUDITS, RepeatedWork, draw_leaf, find_commitments, statement_payload
from fedmerit.evidence.signatures import (
    CERTIFICATE,
    Trust,
    certificate_name,
    is_signed_by_any,
    parse_certificates,
    read_certificates,
    subject,
)
from fedmerit.evidence.verification.chains import RunFiles, SiteLog
from fedmerit.evidence.verification.findings import Contradiction, Finding, join_names, join_rounds, make_finding
from fedmerit.files import read_object
from fedmerit.schema.declarations import read
from fedmerit.schema.records import AuditStatement, RepeatedRound, RoundRecord


def compare_work(files: RunFiles, log: SiteLog) -> RepeatedWork | None:
    """Return what is shown of a site's work; None if its log has no commitments and nobody repeated anything.

    The server, whose certificates sign the ledger, is no auditor of its friends.

    Raises:
        Contradiction: a statement is not its auditor's, or is of another run, commitment or draw than log and ledger.
        BadInput: a statement cannot be read.
    """
    run, records, closing = files.run, files.records, files.closing
    path, commitments = run / AUDITS / f"{log.site}.json", find_commitments(log.entries, records)
    if not path.exists() and not any(entry.commitment for entry in log.entries):
        return None
    drawn = [round for round, one in commitments.items() if draw_leaf(log.site, round, one, records, closing)]
    parties = [*log.certificates, *files.certificates]
    work, repeated = _read_work(run, records, closing, log.site, files.trust, parties)
    for round, one in repeated.items():
        if round not in commitments or (one.root, one.leaves) != (commitments[round].root, commitments[round].leaves):
            raise Contradiction("audit of other steps", path, site=log.site, round=round, log=log.path)
    return replace(work, drawn=drawn)


def summarise_statement(
    run: Path, records: Sequence[RoundRecord], site: str, trust: Trust | None = None
) -> RepeatedWork:
    """Return what an auditor's statement in a run folder says of a site's work, as far as the ledger has the rounds.

    That the site had committed itself to these steps shows only its log: `compare_work`. The auditor's certificate has
    to be of the authority of ``trust``; None: of any.

    Raises:
        Contradiction: the statement is not its auditor's, or of another site, run or draw.
        BadInput: it cannot be read.
    """
    pems = {one.certificate for record in records if (one := record.guard.enrolled.get(site))} - {""}
    parties = [one for pem in pems for one in parse_certificates(pem.encode(), f"{run}: {site}")]
    parties += read_certificates(run / CERTIFICATE) if (run / CERTIFICATE).exists() else []
    return _read_work(run, records, read_closing(run), site, trust, parties)[0]


def _read_work(
    run: Path,
    records: Sequence[RoundRecord],
    closing: Closing | None,
    site: str,
    trust: Trust | None,
    parties: Sequence[Certificate],
) -> tuple[RepeatedWork, Mapping[int, RepeatedRound]]:
    """Return what an auditor's statement says of a site's work, and by round which steps were repeated.

    No auditor is the site, or one of the ``parties``, whose certificates these are.
    """
    path = run / AUDITS / f"{site}.json"
    trained = [record.round for record in records if site in record.participants]
    rounds = len(records) - trained[0] if trained else 0
    if not path.exists():
        return RepeatedWork(site, trained, rounds=rounds), {}
    statement = read_statement(path)
    auditor = _read_auditor(path, statement, trust)
    is_of_run = statement.ledger in {record.hash for record in records} and statement.plan == records[0].plan
    if statement.site != site or not is_of_run:
        raise Contradiction("audit of another run", path, site=site, found=statement.site)
    steps = {int(text): one for text, one in statement.rounds.items()}
    for round, one in steps.items():
        if round not in trained or one.leaf != draw_leaf(site, round, one, records, closing):
            ledger = run / "ledger.jsonl"
            raise Contradiction("audit of other steps", path, site=site, round=round, log=ledger)
    names, keys = {site, *map(certificate_name, parties)}, [one.public_key() for one in parties]
    is_independent = auditor is not None and certificate_name(auditor) not in names and auditor.public_key() not in keys
    faults = {round: one.fault for round, one in steps.items() if one.fault}
    shown = sorted({*steps} - {*faults})
    name = subject(auditor) if auditor else ""
    return RepeatedWork(site, trained, sorted(steps), shown, faults, name, is_independent, rounds), steps


def list_unlogged_statements(run: Path, logs: Sequence[SiteLog]) -> Iterator[Finding]:
    """Yield the sites of whose work there are statements in the run folder, but no log to compare them with."""
    stated = sorted(path.stem for path in (run / AUDITS).glob("*.json"))
    if lacking := [site for site in stated if site not in {log.site for log in logs}]:
        yield make_finding("audits without log", site=join_names(lacking))


def read_statement(path: Path) -> AuditStatement:
    """Read an auditor's statement.

    Raises:
        BadInput: the file holds none.
    """
    statement: AuditStatement = read(AuditStatement, read_object(path), f"{path}: not a statement of an auditor")
    return statement


def _read_auditor(path: Path, statement: AuditStatement, trust: Trust | None) -> Certificate | None:
    """Return the certificate of who signed a statement; None if nobody did."""
    if not statement.signature and not statement.certificate:
        return None
    certificate = parse_certificates(statement.certificate.encode(), f"{path}: certificate")[0]
    if not is_signed_by_any([certificate], statement_payload(statement), statement.signature):
        raise Contradiction("audit signature", path, site=statement.site)
    if trust and trust.is_authority:
        trust.require_issued(certificate, str(path))
    if not certificate_name(certificate):
        raise BadInput(f"{path}: signed by a certificate without a name")
    return certificate


def list_unrepeated(work: RepeatedWork) -> Iterator[Finding]:
    """Yield what is not shown of a site's work."""
    for round, fault in work.faults.items():
        yield make_finding("steps differ", site=work.site, round=round, found=fault)
    if not work.repeated and not work.faults:
        return  # nobody was asked to repeat anything
    if lacking := [round for round in work.trained if round not in work.repeated and round not in work.faults]:
        yield make_finding("steps not repeated", site=work.site, rounds=join_rounds(lacking))
    if work.repeated and not work.is_independent:
        yield make_finding("steps repeated by site", site=work.site)
