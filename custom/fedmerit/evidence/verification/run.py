"""Verification of a run folder: whether it is complete, the server's own, and what its sites wrote down."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path

from cryptography.x509 import Certificate

from fedmerit.errors import BadInput
from fedmerit.evidence.closing_record import CLOSING, CROSS_SITE, MODELS, Closing
from fedmerit.evidence.ledger import GENESIS, read_verified_records, require_signatures
from fedmerit.evidence.repeated_work import RepeatedWork
from fedmerit.evidence.signatures import CERTIFICATE, Trust, subject
from fedmerit.evidence.verification.chains import (
    SiteLog,
    enrolled_certificates,
    list_sites,
    parse_ledger,
    read_site_logs,
    signing_certificates,
)
from fedmerit.evidence.verification.enrolments import compare_cases, compare_enrolments
from fedmerit.evidence.verification.findings import (
    Contradiction,
    Faults,
    Finding,
    Movement,
    Report,
    Signatures,
    join_names,
    make_finding,
)
from fedmerit.evidence.verification.heads import (
    compare_log_ends,
    has_countersigned,
    has_unsigned_heads,
    read_verified_closing,
    require_acknowledged_ledger,
    require_consistent_heads,
    require_same_closing,
)
from fedmerit.evidence.verification.kept_updates import SHOWN, compare_kept_updates
from fedmerit.evidence.verification.models import compare_models, compare_plan
from fedmerit.evidence.verification.outcomes import compare_log, compare_projections, replay_rounds
from fedmerit.evidence.verification.replay import PlayedRound
from fedmerit.evidence.verification.results import (
    ResultsTable,
    compare_matrix,
    compare_quantities,
    compare_values,
    compare_with_ledger,
    compare_with_log,
    read_table,
    require_known_rows,
    require_no_added_rows,
    require_same_run,
)
from fedmerit.evidence.verification.sensitivity import largest_movement, rest_on_server, weigh_question
from fedmerit.evidence.verification.updates import (
    PeerExchange,
    compare_peer_models,
    compare_rated_models,
    compare_ratings,
    compare_updates,
    find_discarded_updates,
)
from fedmerit.evidence.verification.work import compare_work, list_unlogged_statements, list_unrepeated
from fedmerit.files import require_inside
from fedmerit.schema.records import RoundRecord
from fedmerit.server.checkpoint import CHECKPOINT, complete_rounds, is_finished


@dataclass(frozen=True)
class Verification:
    """A verification's result: what it compared, what contradicts, and what it leaves open."""

    records: int  # of the ledger
    signer: str | None  # owner of the certificate that signs them; None if they are not signed
    updates: Mapping[str, int] = field(default_factory=dict)  # by site with a log: updates in ledger and log
    answers: Mapping[str, int] = field(default_factory=dict)  # by site with a log: measurements in results.csv and log
    peer_models: tuple[PeerExchange, ...] = ()  # between sites with logs
    work: tuple[RepeatedWork, ...] = ()  # of sites with a log that commits to their steps
    unproven: tuple[Finding, ...] = ()  # open questions
    faults: tuple[Finding, ...] = ()  # contradictions
    signatures: Signatures = field(default_factory=Signatures)

    @property
    def moved(self) -> Movement:
        """The largest change of an aggregation weight that the open questions could have caused."""
        return largest_movement(question.moved for question in self.unproven if question.moved)

    def attribute(self, fault: Finding) -> str:
        """Return whose signature convicts whom of one of the contradictions."""
        return self.signatures.attribute(fault, self.faults)


def verify_run(run: Path, site_logs: Sequence[Path] = (), trust: Trust | None = None) -> Verification:
    """Compare the files of a run as `examine_run` does, and require that nothing contradicts.

    Raises:
        Contradiction: something was changed, left out or reordered, or two files disagree; it has all contradictions.
        BadInput: ledger, a log or the certificate is missing, or the folder may not be read.
    """
    found = examine_run(run, site_logs, trust)
    if found.faults:
        raise Contradiction.of_all(found.faults)
    return found


def examine_run(run: Path, site_logs: Sequence[Path] = (), trust: Trust | None = None) -> Verification:
    """Compare the ledger of a run folder, its results and models, and the logs of sites, each with the others.

    Args:
        run: the run folder.
        site_logs: logs of sites.
        trust: whose signatures count; the records have to be signed then. Without it they are checked with the
            certificate in the run folder, if they are signed.

    Raises:
        BadInput: ledger, a log or the certificate is missing, or the folder may not be read.
    """
    ledger = run / "ledger.jsonl"
    require_inside(run)
    _require_usable(ledger, site_logs, trust)
    faults, unproven, records, certificates = Faults(), list[Finding](), list[RoundRecord](), list[Certificate]()
    logs, number, is_authority = list[SiteLog](), 0, trust is not None and trust.is_authority
    signatures = Signatures()
    with faults.collect():
        contents = read_verified_records(ledger)
        certificates, number = list(signing_certificates(run, contents, trust)), len(contents)
        if certificates:
            require_signatures(ledger, contents, certificates)
        signatures = Signatures(bool(certificates and trust))  # so a malformed record is the server's
        records = parse_ledger(ledger, contents)
    with faults.collect("unreadable file"):
        list_sites(run, records)
    is_usable = not faults  # nothing rests on a chain that is not whole
    for path in site_logs:
        with faults.collect():
            logs += read_site_logs([path], trust, known=logs)
    signed_logs = {log.site for log in logs if log.certificates and is_authority}
    signatures = replace(signatures, sites=signed_logs)
    if not is_usable:
        return Verification(number, None, faults=tuple(faults), signatures=signatures)
    report = faults.append
    closing = None
    with faults.collect("unreadable file"):
        closing = read_verified_closing(run, records[-1].hash if records else GENESIS, certificates, report)
    kinds = {fault.kind for fault in faults}
    is_closed = closing is not None and "closing signature" not in kinds
    acknowledged = closing if is_closed and "closing of another ledger" not in kinds else None
    enrolled = dict[str, list[Certificate]]()
    with faults.collect():
        enrolled = enrolled_certificates(ledger, records, trust)
    with faults.collect():
        require_consistent_heads(logs, certificates, records, report)
    with faults.collect():
        _require_rounds(run, ledger, records)
    for log in logs:
        with faults.collect():
            require_acknowledged_ledger(ledger, records, log, certificates)
    if not any(fault.kind == "other ledger" for fault in faults):  # sites signed the ends with heads of this ledger
        with faults.collect():  # before updates: a site that rewrote its log is convicted by its end
            unproven += compare_log_ends(ledger, records, acknowledged, logs, enrolled, is_authority, report)
    sites, rounds = list_sites(run, records), records[-1].of if records else 0
    updates, answers, played = dict[str, int](), dict[str, int](), list[PlayedRound]()
    for log in logs:
        updates[log.site] = compare_updates(ledger, records, log, report)
        unproven += find_discarded_updates(ledger, records, log, report)
        unproven += compare_ratings(ledger, records, log, report)
        compare_enrolments(ledger, records, log, report)
    compare_rated_models(records, logs, report)
    table = None
    with faults.collect("unreadable file"):
        table = _compare_results(run, records, sites, closing, report)
    for log in logs if table else ():
        assert table is not None
        answers[log.site], questions = compare_with_log(table, records, rounds, log, sites, report)
        unproven += questions
    with faults.collect("unreadable file"):
        if records:
            unproven += compare_plan(run, records, logs, report)
        if records and "plan" not in {fault.kind for fault in faults}:  # nothing follows from another plan
            played, questions = replay_rounds(run, ledger, records, sites, report)
            unproven += questions
            for log in logs:
                unproven += compare_log(played, log, sites, report)
            unproven += compare_projections(played, logs, report)
    answered, measured = set[str](), list[PlayedRound]()
    with faults.collect():
        answered |= {*compare_cases(ledger, records, logs, report)}
    if played and not faults:  # inputs that give no such outcome need not be measured again
        with faults.collect():
            measured = [*compare_kept_updates(run, records, sites, logs, report, unproven.append)]
            answered |= {*SHOWN} if measured else set()
    with faults.collect("unreadable file"):
        compare_values(run, records, logs, report)
        if table:
            compare_quantities(table, [*played, *measured], report)
            require_same_run(table, run, report)
        if closing and records:
            unproven += compare_models(run, records, logs, table.rows if table else None, report)
    exchanges = list[PeerExchange]()
    for giver, receiver in permutations(logs, 2):
        with faults.collect():
            exchanges.append(compare_peer_models(giver, receiver))
    work = list[RepeatedWork]()
    for log in logs:
        with faults.collect():
            if shown := compare_work(run, records, closing, log, trust, certificates):
                work.append(shown)
                unproven += list_unrepeated(shown)
    unproven += list_unlogged_statements(run, logs)
    require_same_closing(run, closing, logs, certificates, report)
    unproven[:0] = _list_limits(records, certificates, trust, closing, logs, sites)
    if not faults:  # a number for what is open makes sense only if the rest holds
        unproven = [weigh_question(question, played) for question in unproven]
        unproven = [question for question in unproven if question.kind not in answered]
        unproven += rest_on_server(run, records, played, sites, logs, answered)
    return Verification(
        records=len(records),
        signer="; then by ".join(map(subject, certificates)) or None,
        updates=updates,
        answers=answers,
        peer_models=tuple(exchange for exchange in exchanges if exchange.models or exchange.lost),
        work=tuple(work),
        unproven=tuple(unproven),
        faults=tuple(faults),
        signatures=replace(signatures, closing=signatures.server and is_closed),
    )


def _require_usable(ledger: Path, site_logs: Sequence[Path], trust: Trust | None) -> None:
    """Raise `BadInput` if a file that the user named is missing, or names nobody: that contradicts nothing."""
    for path, expected in [(ledger, "the ledger of a run"), *((path, "the log of a site") for path in site_logs)]:
        if not path.is_file():
            raise BadInput(f"{path}: file not found; expected {expected}")
    if trust and (trust.anchor is not None) and (ledger.parent / CERTIFICATE).exists():
        _ = trust.server_name


def _compare_results(
    run: Path, records: Sequence[RoundRecord], sites: Sequence[str], closing: Closing | None, report: Report
) -> ResultsTable | None:
    """Compare results.csv with the ledger; return it, or None if a run that is not over has none."""
    if not (run / "results.csv").exists():
        if closing:
            report(make_finding("missing results", run / "results.csv"))
        return None
    table = read_table(run)
    compare_with_ledger(table, records, report)
    require_known_rows(table, records, report)
    if closing:
        require_no_added_rows(table, records, sites, report)
        if CROSS_SITE.as_posix() in closing.files:
            compare_matrix(table, run, report)
    return table


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
    enrolments = {site: one for record in records for site, one in record.guard.enrolled.items()}
    is_authority = trust is not None and trust.is_authority
    unproven = [site for site, one in enrolments.items() if (certificates if not one.certificate else not is_authority)]
    if unproven:
        yield make_finding("organisations unproven", site=join_names(sorted(unproven)))
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
