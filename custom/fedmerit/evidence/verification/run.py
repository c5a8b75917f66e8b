"""Verification of a run folder: whether it is complete, the server's own, and what its sites wrote down."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path

from cryptography.x509 import Certificate

from fedmerit.errors import BadInput
from fedmerit.evidence.closing_record import CLOSING, CROSS_SITE, MODELS
from fedmerit.evidence.ledger import read_verified_records, require_signatures
from fedmerit.evidence.repeated_work import RepeatedWork
from fedmerit.evidence.signatures import CERTIFICATE, Trust, subject
from fedmerit.evidence.verification.chains import (
    RunFiles,
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
from fedmerit.evidence.verification.replay import PlayedRound, replay_rounds
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
from fedmerit.evidence.verification.site_logs import (
    PeerExchange,
    compare_log,
    compare_peer_models,
    compare_projections,
    compare_rated_models,
    compare_ratings,
    compare_updates,
    find_discarded_updates,
)
from fedmerit.evidence.verification.work import compare_work, list_unlogged_statements, list_unrepeated
from fedmerit.files import require_inside
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
    faults, unproven, signatures, number = Faults(), list[Finding](), Signatures(), 0
    files = RunFiles(run, trust=trust, report=faults.append)
    with faults.collect():
        contents = read_verified_records(ledger)
        files.certificates, number = signing_certificates(run, contents, trust), len(contents)
        if files.certificates:
            require_signatures(ledger, contents, files.certificates)
        signatures = Signatures(bool(files.certificates and trust))  # so a malformed record is the server's
        files.records = parse_ledger(ledger, contents)
    with faults.collect("unreadable file"):
        files.sites = list_sites(run, files.records)
    is_usable, logs = not faults, list[SiteLog]()  # nothing rests on a chain that is not whole
    for path in site_logs:
        with faults.collect():
            logs += read_site_logs([path], trust, known=logs)
    files.logs = logs
    signatures = replace(signatures, sites={log.site for log in logs if log.certificates and files.is_authority})
    if not is_usable:
        return Verification(number, None, faults=tuple(faults), signatures=signatures)
    with faults.collect("unreadable file"):
        files.closing = read_verified_closing(files)
    is_closed = files.closing is not None and "closing signature" not in faults.kinds
    unproven += _compare_chains(files, faults, is_closed)
    updates, answers, played = dict[str, int](), dict[str, int](), list[PlayedRound]()
    for log in logs:
        updates[log.site] = compare_updates(files, log)
        unproven += find_discarded_updates(files, log)
        unproven += compare_ratings(files, log)
        compare_enrolments(files, log)
    compare_rated_models(files)
    table = None
    with faults.collect("unreadable file"):
        table = _compare_results(files)
    for log in logs if table else ():
        assert table is not None
        answers[log.site], questions = compare_with_log(files, table, log)
        unproven += questions
    with faults.collect("unreadable file"):
        if files.records:
            unproven += compare_plan(files)
        if files.records and "plan" not in faults.kinds:  # nothing follows from another plan
            played, questions = replay_rounds(files)
            unproven += questions
            for log in logs:
                unproven += compare_log(files, played, log)
            unproven += compare_projections(files, played)
    answered, measured = set[str](), list[PlayedRound]()
    with faults.collect():
        answered |= {*compare_cases(files)}
    if played and not faults:  # inputs that give no such outcome need not be measured again
        with faults.collect():
            measured = [*compare_kept_updates(files, unproven.append)]
            answered |= {*SHOWN} if measured else set()
    with faults.collect("unreadable file"):
        compare_values(files)
        if table:
            compare_quantities(files, table, [*played, *measured])
            require_same_run(files, table.path, table.rows)
        if files.closing and files.records:
            unproven += compare_models(files, table.rows if table else None)
    exchanges, work = list[PeerExchange](), list[RepeatedWork]()
    for giver, receiver in permutations(logs, 2):
        with faults.collect():
            exchanges.append(compare_peer_models(giver, receiver))
    for log in logs:
        with faults.collect():
            if shown := compare_work(files, log):
                work.append(shown)
                unproven += list_unrepeated(shown)
    unproven += list_unlogged_statements(run, logs)
    require_same_closing(files)
    unproven[:0] = _list_limits(files)
    if not faults:  # a number for what is open makes sense only if the rest holds
        unproven = [weigh_question(question, played) for question in unproven]
        unproven = [question for question in unproven if question.kind not in answered]
        unproven += rest_on_server(files, played, answered)
    return Verification(
        records=len(files.records),
        signer="; then by ".join(map(subject, files.certificates)) or None,
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


def _compare_chains(files: RunFiles, faults: Faults, is_closed: bool) -> list[Finding]:
    """Compare the ends and heads of ledger, logs and closing record with each other; return what is not shown."""
    acknowledged = files.closing if is_closed and "closing of another ledger" not in faults.kinds else None
    enrolled, questions = dict[str, list[Certificate]](), list[Finding]()
    with faults.collect():
        enrolled = enrolled_certificates(files)
    with faults.collect():
        require_consistent_heads(files)
    with faults.collect():
        _require_rounds(files)
    for log in files.logs:
        with faults.collect():
            require_acknowledged_ledger(files, log)
    if "other ledger" not in faults.kinds:  # sites signed the ends with heads of this ledger
        with faults.collect():  # before updates: a site that rewrote its log is convicted by its end
            questions += compare_log_ends(files, acknowledged, enrolled)
    return questions


def _compare_results(files: RunFiles) -> ResultsTable | None:
    """Compare results.csv with the ledger; return it, or None if a run that is not over has none."""
    path = files.run / "results.csv"
    if not path.exists():
        if files.closing:
            files.contradict("missing results", path)
        return None
    table = read_table(files.run)
    compare_with_ledger(files, table)
    require_known_rows(files, table)
    if files.closing:
        require_no_added_rows(files, table)
        if CROSS_SITE.as_posix() in files.closing.files:
            compare_matrix(files, table)
    return table


def _list_limits(files: RunFiles) -> Iterator[Finding]:
    """Yield what this much evidence leaves open."""
    records, certificates, logs, closing = files.records, files.certificates, files.logs, files.closing
    if certificates and not files.trust:
        yield make_finding("owner of the certificate")
    if certificates and files.trust and not files.is_authority:
        yield make_finding("owners of the logs' certificates")
    lacks_authority = {True: not files.is_authority, False: bool(certificates)}  # by whether there is a certificate
    unproven = [site for site, one in files.enrolments.items() if lacks_authority[bool(one.certificate)]]
    if unproven:
        yield make_finding("organisations unproven", site=join_names(sorted(unproven)))
    if not records:
        yield make_finding("empty ledger")
    elif len(records) < records[-1].of:
        yield make_finding("unfinished", found=len(records), expected=records[-1].of)
    elif closing is None:
        yield make_finding("not closed")
    took_part = {site for record in records for site in (*record.participants, *record.weights)}
    lacking = sorted({*files.sites, *took_part} - {log.site for log in logs})
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


def _require_rounds(files: RunFiles) -> None:
    """Require that there are as many records as the run came to."""
    run, ledger, records = files.run, files.ledger, files.records
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
