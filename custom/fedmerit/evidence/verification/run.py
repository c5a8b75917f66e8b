"""Verification of a run folder: is it complete, the server's own, and what its sites wrote down."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path

from cryptography.x509 import Certificate

from fedmerit.errors import BadInput
from fedmerit.evidence.closing_record import CLOSING, CROSS_SITE, MODELS, Closing
from fedmerit.evidence.ledger import GENESIS, read_verified_records
from fedmerit.evidence.signatures import (
    CERTIFICATE,
    Trust,
    certificate_name,
    parse_certificates,
    read_certificates,
    require_owner,
    subject,
)
from fedmerit.evidence.verification.ledger_heads import (
    compare_log_ends,
    find_unsigned_heads,
    has_countersigned,
    require_acknowledged_ledger,
    require_consistent_heads,
    require_same_closing,
    verify_closing,
)
from fedmerit.evidence.verification.measurements import compare_answers, compare_matrix
from fedmerit.evidence.verification.models import compare_models, compare_plan, list_sites
from fedmerit.evidence.verification.outcomes import compare_measured, replay_rounds
from fedmerit.evidence.verification.record_schema import Record, read_ledger
from fedmerit.evidence.verification.results import compare_tables, read_tables, require_no_added_rows, require_same_run
from fedmerit.evidence.verification.site_logs import (
    PeerExchange,
    SiteLog,
    compare_enrolments,
    compare_peer_models,
    compare_ratings,
    compare_updates,
    explain_missing,
    read_site_log,
)
from fedmerit.files import require_inside
from fedmerit.schema.run_info import read_run
from fedmerit.server.checkpoint import CHECKPOINT, complete_rounds, is_finished

SIGNING_ENGINES = ("poc", "prod")  # engines whose servers have a certificate, and so sign


@dataclass(frozen=True)
class Verification:
    """What was verified, and what was not."""

    records: int  # of the ledger
    signer: str | None  # whose certificate signed them; None: they are not signed
    updates: Mapping[str, int] = field(default_factory=dict)  # by site whose log agrees: how many both have
    answers: Mapping[str, int] = field(default_factory=dict)  # likewise, of its measurements in results.csv
    peer_models: tuple[PeerExchange, ...] = ()  # between those whose logs were given
    unproven: tuple[str, ...] = ()  # in sentences


def verify_run(run: Path, site_logs: Sequence[Path] = (), trust: Trust | None = None) -> Verification:
    """Check the ledger of a run folder, its results and models; the logs of sites against it, and each other.

    Args:
        trust: whose signatures count; the records have to be signed then. Without it they are checked with the
            certificate in the run folder, if they are signed.

    Raises:
        BadInput: something was changed, left out or reordered, is not signed or by another, or two of them disagree;
            file and line are named, and what differs.
    """
    ledger = run / "ledger.jsonl"
    require_inside(run)
    records = read_ledger(ledger)
    certificates = _signing_certificates(run, records, trust)
    if certificates:
        read_verified_records(ledger, certificates)
    logs = _read_logs(site_logs, trust)
    require_consistent_heads(logs, certificates, records)
    _require_rounds(run, ledger, records)
    sites = list_sites(run, records)
    updates, answers, silent = {}, {}, list[str]()
    for log in logs:
        require_acknowledged_ledger(ledger, records, log, certificates)
        updates[log.site] = compare_updates(ledger, records, log)
        silent += explain_missing(records, log)
        silent += compare_ratings(ledger, records, log)
        compare_enrolments(ledger, records, log)
    head = records[-1]["hash"] if records else GENESIS
    closing = verify_closing(run, head, certificates)
    there = (run / "results.csv").exists()
    if closing and not there:
        raise BadInput(f"{run / 'results.csv'}: file not found; every run that came to its end has one")
    table = read_tables(run) if there else None
    if table:
        compare_tables(table, records)
        if closing:
            require_no_added_rows(table, records, sites)
        for log in logs:
            answers[log.site], unsaid = compare_answers(table, records, _planned_rounds(records), log, sites)
            silent += unsaid
        if closing and CROSS_SITE.as_posix() in closing.files:
            compare_matrix(table, run)
    if records:
        silent += compare_plan(run, records, logs)
        played, unshown = replay_rounds(run, ledger, records, sites)
        silent += unshown
        for log in logs:
            silent += compare_measured(played, log, sites)
    if table:
        require_same_run(table, run)
    if closing and records:
        silent += compare_models(run, records, logs, table.rows if table else None)
    between = [compare_peer_models(giver, receiver) for giver, receiver in permutations(logs, 2)]
    enrolled = _enrolled_certificates(ledger, records, trust)
    silent += compare_log_ends(ledger, records, closing, logs, enrolled, trust is not None and trust.is_authority)
    require_same_closing(run, closing, logs, certificates)
    return Verification(
        records=len(records),
        signer="; then by ".join(map(subject, certificates)) or None,
        updates=updates,
        answers=answers,
        peer_models=tuple(one for one in between if one.models or one.lost),
        unproven=(*_list_unproven(records, certificates, trust, closing, logs, sites), *silent),
    )


def _list_unproven(
    records: Sequence[Record],
    certificates: Sequence[Certificate],
    trust: Trust | None,
    closing: Closing | None,
    logs: Sequence[SiteLog],
    sites: Sequence[str],
) -> Iterator[str]:
    """What this much evidence leaves open."""
    rounds = _planned_rounds(records)
    if certificates and not trust:
        yield "whose the certificate in the run folder is: --certificate takes the rootCA.pem of your startup kit"
    if certificates and trust and not trust.is_authority:
        yield "whose the certificates beside the sites' logs are: --certificate takes the rootCA.pem of a startup kit"
    if not records:
        yield "that anything was run: the ledger holds no record"
    elif len(records) < rounds:
        yield f"that there was no more: {len(records)} of {rounds} rounds are there; unfinished, or cut short"
    elif closing is None:
        yield "that results and models are those of the run: it is not closed yet"
    took_part = {site for record in records for site in (*record["participants"], *record["weights"])}
    if lacking := sorted({*sites, *took_part} - {log.site for log in logs}):
        yield (
            f"that the server sent all sites the same, and took what they sent: the logs of {', '.join(lacking)} are "
            "missing (--site-log)"
        )
    if records and (unheard := sorted({*lacking} - took_part)):
        yield f"that the run had {', '.join(unheard)}, and why no record has anything that they sent"
    if certificates and (without := find_unsigned_heads(logs)):
        yield f"that the server said what the logs of {', '.join(without)} have of it: its signature is not there"
    if closing and (unheard := [log.site for log in logs if log.site not in closing.site_logs]):
        yield f"that the logs of {', '.join(unheard)} are whole: {CLOSING} does not say how they ended"
    if closing and (untold := [log.site for log in logs if not has_countersigned(log, certificates)]):
        yield f"that the run was not closed again: the logs of {', '.join(untold)} do not say how it was when it ended"
    if unsigned := [log.site for log in logs if not log.certificates]:
        yield f"that the logs of {', '.join(unsigned)} are theirs, and whole: they are not signed"


def _signing_certificates(run: Path, records: Sequence[Record], trust: Trust | None) -> Sequence[Certificate]:
    """What the records have to be signed with; nothing if they are not signed and need not be."""
    ledger = run / "ledger.jsonl"
    if not any("signature" in record for record in records):
        if trust and records:
            raise BadInput(
                f"{ledger}, line 1: it is not signed; expected a signature of the server, as {trust.path} "
                f"({subject(trust.anchor)}) has it"
            )
        if (run / CERTIFICATE).exists() and records:
            raise BadInput(f"{ledger}, line 1: it is not signed, and {run / CERTIFICATE} says that the server signs")
        if records and _read_engine(run) in SIGNING_ENGINES:
            raise BadInput(
                f"{ledger}, line 1: it is not signed, and {run / 'run.json'} says that the run's server had a "
                "certificate to sign with"
            )
        return ()
    certificates = read_certificates(run / CERTIFICATE)
    for one in certificates:
        if trust:
            trust.require(one, trust.server_name, str(ledger))
        else:
            require_owner(one, certificate_name(certificates[0]), str(ledger))
    return certificates


def _enrolled_certificates(
    ledger: Path, records: Sequence[Record], trust: Trust | None
) -> dict[str, list[Certificate]]:
    """By site, the certificates that it enrolled with; none without an authority to say whose they are."""
    found: dict[str, list[Certificate]] = {}
    if trust is None or not trust.is_authority:
        return found
    for record in records:
        for site, one in record.get("guard", {}).get("enrolled", {}).items():
            where = f"{ledger}, line {record['round'] + 1}: certificate of {site}"
            if "certificate" in one:
                for certificate in parse_certificates(one["certificate"].encode(), where):
                    trust.require(certificate, site, where)
                    found.setdefault(site, []).append(certificate)
    return found


def _read_engine(run: Path) -> str | None:
    return read_run(run).get("engine") if (run / "run.json").exists() else None


def _read_logs(paths: Sequence[Path], trust: Trust | None) -> list[SiteLog]:
    logs: dict[str, SiteLog] = {}
    for path in paths:
        log = read_site_log(path, trust)
        if log.site in logs:
            raise BadInput(f"{path}: is a second log of {log.site}; give one of each site")
        logs[log.site] = log
    return list(logs.values())


def _require_rounds(run: Path, ledger: Path, records: Sequence[Record]) -> None:
    """`BadInput` if records are fewer or more than the run came to."""
    expected = complete_rounds(run)
    if expected is not None and len(records) != expected:
        raise BadInput(
            f"{ledger}: holds {len(records)} records, but {run / CHECKPOINT} stands at {expected} complete rounds; "
            "records were removed or put in at its end"
        )
    if not records:
        if left := next((path for path in (run / CLOSING, *(run / MODELS).glob("*.pt")) if path.exists()), None):
            raise BadInput(f"{ledger}: holds no record, and {left} is of a run that ended; its records were removed")
        return
    rounds, closed = _planned_rounds(records), (run / CLOSING).exists()
    if closed and len(records) < rounds:
        raise BadInput(f"{ledger}: holds {len(records)} of {rounds} rounds, and {run / CLOSING} ends the run")
    if closed:
        return
    if is_finished(run, rounds):
        raise BadInput(f"{run / CLOSING}: file not found; {run / CHECKPOINT} says that the run came to its end")
    if expected is None and any((run / MODELS).glob("*.pt")):
        raise BadInput(f"{run / CLOSING}: file not found; {run / MODELS} holds final models")


def _planned_rounds(records: Sequence[Record]) -> int:
    """How many rounds the run has, as its records say."""
    return int(records[-1]["of"]) if records else 0
