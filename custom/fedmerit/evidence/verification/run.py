"""Verification of a run folder: whether it is complete, the server's own, and what its sites wrote down."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path

from cryptography.x509 import Certificate

from fedmerit.evidence.closing_record import CLOSING, CROSS_SITE, MODELS, Closing
from fedmerit.evidence.ledger import GENESIS, read_verified_records
from fedmerit.evidence.signatures import Trust, subject
from fedmerit.evidence.verification.chains import (
    SiteLog,
    enrolled_certificates,
    list_sites,
    read_ledger,
    read_site_logs,
    signing_certificates,
)
from fedmerit.evidence.verification.findings import Contradiction, Finding, join_names, make_finding
from fedmerit.evidence.verification.heads import (
    compare_log_ends,
    has_countersigned,
    has_unsigned_heads,
    read_verified_closing,
    require_acknowledged_ledger,
    require_consistent_heads,
    require_same_closing,
)
from fedmerit.evidence.verification.models import compare_models, compare_plan
from fedmerit.evidence.verification.outcomes import compare_log, replay_rounds
from fedmerit.evidence.verification.results import (
    compare_matrix,
    compare_with_ledger,
    compare_with_log,
    read_table,
    require_no_added_rows,
    require_same_run,
)
from fedmerit.evidence.verification.updates import (
    PeerExchange,
    compare_enrolments,
    compare_peer_models,
    compare_ratings,
    compare_updates,
    find_discarded_updates,
)
from fedmerit.files import require_inside
from fedmerit.schema.records import RoundRecord
from fedmerit.server.checkpoint import CHECKPOINT, complete_rounds, is_finished


@dataclass(frozen=True)
class Verification:
    """A verification's result: what it compared, and what it leaves open."""

    records: int  # of the ledger
    signer: str | None  # owner of the certificate that signs them; None if they are not signed
    updates: Mapping[str, int] = field(default_factory=dict)  # by site with a log: updates in ledger and log
    answers: Mapping[str, int] = field(default_factory=dict)  # by site with a log: measurements in results.csv and log
    peer_models: tuple[PeerExchange, ...] = ()  # between sites with logs
    unproven: tuple[Finding, ...] = ()  # open questions


def verify_run(run: Path, site_logs: Sequence[Path] = (), trust: Trust | None = None) -> Verification:
    """Compare the ledger of a run folder, its results and models, and the logs of sites, each with the others.

    Args:
        run: the run folder.
        site_logs: logs of sites.
        trust: whose signatures count; the records have to be signed then. Without it they are checked with the
            certificate in the run folder, if they are signed.

    Raises:
        Contradiction: something was changed, left out or reordered, or two files disagree.
        BadInput: a file is not readable, or is signed by another than its owner.
    """
    ledger = run / "ledger.jsonl"
    require_inside(run)
    records = read_ledger(ledger)
    certificates = signing_certificates(run, records, trust)
    if certificates:
        read_verified_records(ledger, certificates)
    logs = read_site_logs(site_logs, trust)
    require_consistent_heads(logs, certificates, records)
    _require_rounds(run, ledger, records)
    sites, rounds = list_sites(run, records), records[-1].of if records else 0
    updates, answers, unproven = {}, {}, list[Finding]()
    for log in logs:
        require_acknowledged_ledger(ledger, records, log, certificates)
        updates[log.site] = compare_updates(ledger, records, log)
        unproven += find_discarded_updates(records, log)
        unproven += compare_ratings(ledger, records, log)
        compare_enrolments(ledger, records, log)
    closing = read_verified_closing(run, records[-1].hash if records else GENESIS, certificates)
    table = None
    if (run / "results.csv").exists():
        table = read_table(run)
        compare_with_ledger(table, records)
        if closing:
            require_no_added_rows(table, records, sites)
        for log in logs:
            answers[log.site], open_questions = compare_with_log(table, records, rounds, log, sites)
            unproven += open_questions
        if closing and CROSS_SITE.as_posix() in closing.files:
            compare_matrix(table, run)
    elif closing:
        raise Contradiction("missing results", run / "results.csv")
    if records:
        unproven += compare_plan(run, records, logs)
        played, open_questions = replay_rounds(run, ledger, records, sites)
        unproven += open_questions
        for log in logs:
            unproven += compare_log(played, log, sites)
    if table:
        require_same_run(table, run)
    if closing and records:
        unproven += compare_models(run, records, logs, table.rows if table else None)
    exchanges = [compare_peer_models(giver, receiver) for giver, receiver in permutations(logs, 2)]
    enrolled = enrolled_certificates(ledger, records, trust)
    is_authority = trust is not None and trust.is_authority
    unproven += compare_log_ends(ledger, records, closing, logs, enrolled, is_authority)
    require_same_closing(run, closing, logs, certificates)
    return Verification(
        records=len(records),
        signer="; then by ".join(map(subject, certificates)) or None,
        updates=updates,
        answers=answers,
        peer_models=tuple(exchange for exchange in exchanges if exchange.models or exchange.lost),
        unproven=(*_list_limits(records, certificates, trust, closing, logs, sites), *unproven),
    )


def _list_limits(
    records: Sequence[RoundRecord],
    certificates: Sequence[Certificate],
    trust: Trust | None,
    closing: Closing | None,
    logs: Sequence[SiteLog],
    sites: Sequence[str],
) -> Iterator[Finding]:
    """Yield what this much evidence leaves open."""
    if certificates and not trust:
        yield make_finding("owner of the certificate")
    if certificates and trust and not trust.is_authority:
        yield make_finding("owners of the logs' certificates")
    if not records:
        yield make_finding("empty ledger")
    elif len(records) < records[-1].of:
        yield make_finding("unfinished", found=len(records), expected=records[-1].of)
    elif closing is None:
        yield make_finding("not closed")
    took_part = {site for record in records for site in (*record.participants, *record.weights)}
    lacking = sorted({*sites, *took_part} - {log.site for log in logs})
    by_site = {
        "logs missing": lacking,
        "sites unheard": [site for site in lacking if records and site not in took_part],
        "heads unsigned": [log.site for log in logs if certificates and has_unsigned_heads(log)],
        "log ends unknown": [log.site for log in logs if closing and log.site not in closing.site_logs],
        "not countersigned": [log.site for log in logs if closing and not has_countersigned(log, certificates)],
        "logs unsigned": [log.site for log in logs if not log.certificates],
    }
    for kind, names in by_site.items():
        if names:
            yield make_finding(kind, site=join_names(names), closing=CLOSING)


def _require_rounds(run: Path, ledger: Path, records: Sequence[RoundRecord]) -> None:
    """Require that there are as many records as the run came to."""
    expected, closing, checkpoint = complete_rounds(run), run / CLOSING, run / CHECKPOINT
    if expected is not None and len(records) != expected:
        raise Contradiction("missing records", ledger, found=len(records), expected=expected, checkpoint=checkpoint)
    if not records:
        if left := next((path for path in (closing, *(run / MODELS).glob("*.pt")) if path.exists()), None):
            raise Contradiction("emptied ledger", ledger, found=left)
        return
    rounds = records[-1].of
    if closing.exists():
        if len(records) < rounds:
            raise Contradiction("closed early", ledger, found=len(records), expected=rounds, closing=closing)
        return
    if is_finished(run, rounds):
        raise Contradiction("missing closing", closing, because=f"{checkpoint} says that the run came to its end")
    if expected is None and any((run / MODELS).glob("*.pt")):
        raise Contradiction("missing closing", closing, because=f"{run / MODELS} holds final models")
