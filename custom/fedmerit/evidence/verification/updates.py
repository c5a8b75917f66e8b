"""What a site's log and the ledger, or the logs of two sites, have of the same updates and ratings.

What a site sent and answered about models has to be what the ledger says of it. What sites gave each
other is not in the ledger: there, the logs of the two have to agree.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmerit.evidence.ledger import texts_digest
from fedmerit.evidence.verification.chains import SiteLog
from fedmerit.evidence.verification.findings import Contradiction, Finding, Report, at, join_rounds, make_finding, stop
from fedmerit.schema.records import EVALUATE, GAVE, GOT, TRAIN, LogEntry, RoundRecord

Kind = tuple[str, int]  # split, and number of models: if a round was repeated one answer of each kind counts


def compare_updates(ledger: Path, records: Sequence[RoundRecord], log: SiteLog, report: Report = stop) -> int:
    """Return in how many rounds the update of a log's site is in the ledger.

    Raises:
        Contradiction: ledger and log disagree about an update or the model that it began with.
    """
    took_part = [record for record in records if log.site in record.updates]
    for record in took_part:
        place: dict[str, Any] = {"where": at(ledger, record.round + 1), "site": log.site, "round": record.round}
        lines = list(log.lines(TRAIN, record.round))
        if not lines:
            report(make_finding("update not in log", **place, log=log.path))
            continue
        for quantity, recorded, field in (
            ("model it began with", record.began[log.site], "received"),
            ("update", record.updates[log.site], "update"),
        ):
            if all(getattr(entry, field) != recorded for _, entry in lines):
                line, entry = lines[-1]
                logged = getattr(entry, field)
                values = {"quantity": quantity, "found": recorded, "expected": logged, "log": f"{at(log.path, line)},"}
                report(make_finding("other update", **place, **values))
    return len(took_part)


def find_discarded_updates(
    ledger: Path, records: Sequence[RoundRecord], log: SiteLog, report: Report = stop
) -> Iterator[Finding]:
    """Yield the rounds in which a site trained and the ledger has nothing of it, by the reason that the ledger gives.

    If the site signs its log this is a dispute, which is reported: of site and server, each signed the contrary. Also
    yielded are rounds without the site of which its log has no task: nothing shows that it was asked.
    """
    without = [record for record in records if log.site not in (*record.participants, *record.updates)]
    trained = {entry.round for _, entry in log.lines(TRAIN)}
    discarded = [record for record in without if record.round in trained]
    yield from _list_discarded("update discarded", discarded, ledger, log, "an answer in that round", report)
    tasks = {entry.round for _, entry in log.lines()}
    yield from _list_absent([record for record in without if record.round not in tasks], log.site)


def compare_ratings(
    ledger: Path, records: Sequence[RoundRecord], log: SiteLog, report: Report = stop
) -> Iterator[Finding]:
    """Yield the rounds in which a site rated models and the ledger has not that this counted.

    If the site signs its log, that is a dispute, and reported. Also yielded are rounds in which the site took part, and
    the ledger says why something of it did not count, of which its log has nothing.

    Raises:
        Contradiction: a record has a rating that the site did not give.
    """
    discarded = []
    for record in records:
        counted, answers = record.evaluated.get(log.site, ()), _rating_digests(log, record.round)
        if any(all(digest not in digests for digests in answers.values()) for digest in counted):
            place = {"site": log.site, "round": record.round}
            report(make_finding("rating not in log", at(ledger, record.round + 1), **place, log=log.path))
        if any(not digests.intersection(counted) for digests in answers.values()):
            discarded.append(record)
    yield from _list_discarded("rating discarded", discarded, ledger, log, "its evaluations of that round", report)
    refused = [record for record in records if log.site in record.rejected and log.site in record.participants]
    yield from _list_absent([record for record in refused if record not in discarded], log.site)


def compare_rated_models(records: Sequence[RoundRecord], logs: Sequence[SiteLog], report: Report = stop) -> None:
    """Require that all sites which rated in a round rated the same models, by their logs.

    Raises:
        Contradiction: two sites had different models to rate.
    """
    for record in records:
        first: dict[Kind, tuple[str, set[str]]] = {}
        for log in logs:
            counted, rated = record.evaluated.get(log.site, ()), dict[Kind, tuple[str, set[str]]]()
            for line, entry in log.lines(EVALUATE, record.round):
                if entry.overlaps and texts_digest(entry.overlaps) in counted:
                    kind = entry.split, len(entry.overlaps)
                    rated.setdefault(kind, (at(log.path, line), set()))[1].add(entry.received)
            for kind, (where, models) in rated.items():
                other, others = first.setdefault(kind, (where, models))
                if models.isdisjoint(others):
                    place = {"site": log.site, "round": record.round, "log": other}
                    report(make_finding("rated models", where, **place))


def _list_absent(records: Sequence[RoundRecord], site: str) -> Iterator[Finding]:
    for reason, rounds in _by_reason(records, site).items():
        yield make_finding("absence unproven", site=site, found=reason, rounds=join_rounds(rounds), numbers=rounds)


def _by_reason(records: Sequence[RoundRecord], site: str) -> dict[str, list[int]]:
    reasons: dict[str, list[int]] = {}
    for record in records:
        reasons.setdefault(record.rejected.get(site, "nothing of it"), []).append(record.round)
    return reasons


def _list_discarded(
    kind: str, records: Sequence[RoundRecord], ledger: Path, log: SiteLog, answer: str, report: Report
) -> Iterator[Finding]:
    for reason, rounds in _by_reason(records, log.site).items():
        if not log.certificates:
            yield make_finding(kind, site=log.site, found=reason, rounds=join_rounds(rounds), numbers=rounds)
            continue
        for round in rounds:
            place = {"site": log.site, "round": round, "quantity": answer}
            report(make_finding("answer left out", at(ledger, round + 1), **place, found=reason, log=log.path))


def _rating_digests(log: SiteLog, round: int) -> dict[Kind, set[str]]:
    digests: dict[Kind, set[str]] = {}
    for _, entry in log.lines(EVALUATE, round):
        if entry.overlaps:
            digests.setdefault((entry.split, len(entry.overlaps)), set()).add(texts_digest(entry.overlaps))
    return digests


@dataclass(frozen=True)
class PeerExchange:
    """The models that one site gave another, by the logs of both."""

    giver: str
    receiver: str
    models: int  # that both logs have, each round's once
    lost: tuple[int, ...] = ()  # rounds in which no answer came, by the receiver's log


def compare_peer_models(giver: SiteLog, receiver: SiteLog) -> PeerExchange:
    """Compare what the first site gave the second.

    Either may have a round more than once: a process that was killed asks again. That no answer came does not
    contradict that a model was sent.

    Raises:
        Contradiction: one log lacks what the other one has.
    """
    gave = [line for line in giver.lines(GAVE) if line[1].peer == receiver.site]
    got = [line for line in receiver.lines(GOT) if line[1].peer == giver.site]
    lost = set()
    for line, entry in got:
        if entry.model is not None:
            words = {"who": receiver.site, "verb": "got", "of": f" of {giver.site}"}
            _require_matching(gave, entry, at(receiver.path, line), giver.path, words)
    for line, entry in gave:
        answers = [other.model for _, other in got if other.round == entry.round]
        if entry.model in answers:
            continue
        if None not in answers:
            words = {"who": giver.site, "verb": f"gave {receiver.site}", "of": ""}
            _require_matching(got, entry, at(giver.path, line), receiver.path, words)
        lost.add(entry.round)
    shared = {entry.round for _, entry in got if entry.model is not None}
    return PeerExchange(giver.site, receiver.site, len(shared), tuple(sorted(lost - shared)))


def _require_matching(
    others: Sequence[tuple[int, LogEntry]], entry: LogEntry, where: str, path: Path, words: dict[str, str]
) -> None:
    lines = [(line, other.model) for line, other in others if other.round == entry.round]
    if all(model != entry.model for _, model in lines):
        has = f", line {lines[-1][0]}, says {lines[-1][1]}" if lines else " has no such record"
        raise Contradiction("peer model", where, **words, round=entry.round, found=entry.model, expected=has, log=path)
