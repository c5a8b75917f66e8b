"""The sites' logs against the ledger, against the rounds computed again, and against each other.

What a site sent and answered about models has to be what the ledger says of it. A site knows its own counts, values,
ratings and update, and how far the model that it was sent lies from the one before: that has to be what the inner
products and the weights in the ledger give. What sites gave each other is not in the ledger: there, the logs of the two
have to agree.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from fedmerit.evidence.ledger import texts_digest
from fedmerit.evidence.verification.chains import RunFiles, SiteLog
from fedmerit.evidence.verification.findings import Contradiction, Finding, at, join_rounds, make_finding
from fedmerit.evidence.verification.replay import ROUNDING, PlayedRound
from fedmerit.guard.work import log_e_values
from fedmerit.schema.records import EVALUATE, GAVE, GOT, TRAIN, LogEntry, RoundRecord
from fedmerit.site.step_evidence import DIRECTIONS

MODEL_ROUNDING = 2.0**-22  # of a model in float32, relative to its norm: a step rounds each entry by at most 2^-24
CHANCE = 1e-6  # probability, without work, of what a log shows
LENGTH_ROUNDING = 1e-8  # of squared lengths, for models in float32
SLACK = 4.0  # times what the scores allow: entries differ in size; real runs reached .26, generated ones 1.7

Kind = tuple[str, int]  # split, and number of models: if a round was repeated one answer of each kind counts
Line = tuple[int, LogEntry]  # of a log


def compare_updates(files: RunFiles, log: SiteLog) -> int:
    """Return in how many rounds the ledger has an update of a log's site; each has to be in the log."""
    took_part = [record for record in files.records if log.site in record.updates]
    for record in took_part:
        lines = list(log.lines(TRAIN, record.round))
        if not lines:
            files.contradict("update not in log", record, log)
            continue
        for quantity, recorded, field in (
            ("model it began with", record.began[log.site], "received"),
            ("update", record.updates[log.site], "update"),
        ):
            if all(getattr(entry, field) != recorded for _, entry in lines):
                (line, entry), place = lines[-1], {"site": log.site, "quantity": quantity, "found": recorded}
                logged = {"log": f"{at(log.path, line)},", "expected": getattr(entry, field)}
                files.contradict("other update", record, **place, **logged)
    return len(took_part)


def find_discarded_updates(files: RunFiles, log: SiteLog) -> Iterator[Finding]:
    """Yield the rounds in which a site trained and the ledger has nothing of it, by the reason that the ledger gives.

    If the site signs its log this is a dispute, which is reported: of site and server, each signed the contrary. Also
    yielded are rounds without the site of which its log has no task: nothing shows that it was asked.
    """
    without = [record for record in files.records if log.site not in (*record.participants, *record.updates)]
    trained = {entry.round for _, entry in log.lines(TRAIN)}
    discarded = [record for record in without if record.round in trained]
    yield from _list_discarded("update discarded", discarded, files, log, "an answer in that round")
    tasks = {entry.round for _, entry in log.lines()}
    yield from _list_absent([record for record in without if record.round not in tasks], log.site)


def compare_ratings(files: RunFiles, log: SiteLog) -> Iterator[Finding]:
    """Yield the rounds in which a site rated models and the ledger has not that this counted.

    If the site signs its log, that is a dispute, and reported. Also yielded are rounds in which the site took part, and
    the ledger says why something of it did not count, of which its log has nothing.
    """
    discarded = []
    for record in files.records:
        counted, answers = record.evaluated.get(log.site, ()), _rating_digests(log, record.round)
        if any(all(digest not in digests for digests in answers.values()) for digest in counted):
            files.contradict("rating not in log", record, log)
        if any(not digests.intersection(counted) for digests in answers.values()):
            discarded.append(record)
    yield from _list_discarded("rating discarded", discarded, files, log, "its evaluations of that round")
    refused = [record for record in files.records if log.site in record.rejected and log.site in record.participants]
    yield from _list_absent([record for record in refused if record not in discarded], log.site)


def compare_rated_models(files: RunFiles) -> None:
    """Require that all sites which rated in a round rated the same models, by their logs."""
    for record in files.records:
        first: dict[Kind, tuple[str, set[str]]] = {}
        for log in files.logs:
            counted, rated = record.evaluated.get(log.site, ()), dict[Kind, tuple[str, set[str]]]()
            for line, entry in log.lines(EVALUATE, record.round):
                if entry.overlaps and texts_digest(entry.overlaps) in counted:
                    kind = entry.split, len(entry.overlaps)
                    rated.setdefault(kind, (at(log.path, line), set()))[1].add(entry.received)
            for kind, (where, models) in rated.items():
                other, others = first.setdefault(kind, (where, models))
                if models.isdisjoint(others):
                    files.contradict("rated models", where, other, site=log.site, round=record.round)


def _list_absent(records: Sequence[RoundRecord], site: str) -> Iterator[Finding]:
    for reason, rounds in _by_reason(records, site).items():
        yield make_finding("absence unproven", site=site, found=reason, rounds=join_rounds(rounds), numbers=rounds)


def _by_reason(records: Sequence[RoundRecord], site: str) -> dict[str, list[int]]:
    reasons: dict[str, list[int]] = {}
    for record in records:
        reasons.setdefault(record.rejected.get(site, "nothing of it"), []).append(record.round)
    return reasons


def _list_discarded(
    kind: str, records: Sequence[RoundRecord], files: RunFiles, log: SiteLog, answer: str
) -> Iterator[Finding]:
    for reason, rounds in _by_reason(records, log.site).items():
        if not log.certificates:
            yield make_finding(kind, site=log.site, found=reason, rounds=join_rounds(rounds), numbers=rounds)
            continue
        for round in rounds:
            files.contradict("answer left out", files.line(round), log, round=round, quantity=answer, found=reason)


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


def compare_log(files: RunFiles, played: Sequence[PlayedRound], log: SiteLog) -> Iterator[Finding]:
    """Yield the verdicts against a site that its log does not support.

    The log has to have the counts, values, ratings, products and scores of the site that the ledger has.
    """
    if log.site not in files.sites:
        return
    for round in played:
        if log.site in round.record.participants and (line := _find_training(round.record, log)):
            _compare_reported(files, round, line, log)
        _compare_rating(files, round, log)
    steps = list(logged_steps(played, log))
    for before, line in steps:
        _compare_step(files, before, line, log)
    yield from _compare_work(files, played, [(before, entry.step) for before, (_, entry) in steps], log)


def logged_steps(played: Sequence[PlayedRound], log: SiteLog) -> Iterator[tuple[PlayedRound, Line]]:
    """Yield the rounds after which a log has the step from their model to the next one, with its entry."""
    for before, round in pairwise(played):
        line, ended = _find_training(round.record, log), before.record.ended.get(log.site, before.record.model)
        if line is None or not _remembers(before, line, log):
            continue
        if log.site in round.record.participants or line[1].received == ended:  # its answer may have been lost
            yield before, line
    for line in log.lines(EVALUATE, len(played)) if played else ():
        record = played[-1].record
        if line[1].received == record.ended.get(log.site, record.model) and _remembers(played[-1], line, log):
            yield played[-1], line


def _find_training(record: RoundRecord, log: SiteLog) -> Line | None:
    """Return the entry of the update that counted, with what the site reported.

    An entry about what a filter made of the update has only digests; the report is in the entry before.
    """
    reported = None
    for line, entry in log.lines(TRAIN, record.round):
        reported = entry if entry.images is not None else reported
        if record.updates.get(log.site) in (None, entry.update):
            fields = {name: getattr(entry, name) for name in entry.model_fields_set}
            return line, reported.model_copy(update=fields) if reported else entry
    return None


def _remembers(before: PlayedRound, line: Line, log: SiteLog) -> bool:
    """Return whether what the site had of the round before, as it wrote this entry, is the update that counted."""
    earlier = [entry.update for number, entry in log.lines(TRAIN, before.record.round) if number < line[0]]
    return bool(earlier) and earlier[-1] == before.record.updates.get(log.site)


def _compare_reported(files: RunFiles, played: PlayedRound, line: Line, log: SiteLog) -> None:
    entry, site, reports = line[1], log.site, played.inputs.reports
    row = played.sites.index(site)
    unknown = torch.full((len(played.sites),), math.nan, dtype=torch.float64)
    logged: dict[str, tuple[float | None, Tensor]] = {"images": (entry.images, reports.num_samples[row])}
    for name in dict.fromkeys((*reports.values, *entry.values)):
        logged[name] = entry.values.get(name), reports.values.get(name, unknown)[row]
    if "update" in entry.step and played.inputs.size:
        assert reports.products is not None
        logged["squared norm of the update"] = entry.step["update"], reports.products[row, row]
    if "update" in entry.step and not played.inputs.size:
        files.contradict("not encrypted", played.record, at(log.path, line[0]), site=site)
    for quantity, (measured, recorded) in logged.items():
        _require_logged(files, played, log, line, quantity, float(recorded), measured)
    for name in dict.fromkeys((*reports.pairs, *entry.pairs)):
        recorded_pairs = reports.pairs[name][row] if name in reports.pairs else unknown
        for peer, recorded_pair in zip(played.sites, recorded_pairs.tolist(), strict=True):
            measured = entry.pairs.get(name, {}).get(peer)
            _require_logged(files, played, log, line, f"{name} of {peer} in the report", recorded_pair, measured)


def _require_logged(
    files: RunFiles,
    played: PlayedRound,
    log: SiteLog,
    line: Line,
    quantity: str,
    recorded: float,
    measured: float | None,
    tolerance: float = ROUNDING,
) -> None:
    logged = math.nan if measured is None else float(measured)
    both_missing = math.isnan(recorded) and math.isnan(logged)
    if not both_missing and not math.isclose(recorded, logged, rel_tol=ROUNDING, abs_tol=tolerance):
        place = {"site": log.site, "quantity": quantity, "found": recorded, "expected": measured}
        files.contradict("reported", played.record, at(log.path, line[0]), **place)


def _compare_step(files: RunFiles, before: PlayedRound, line: Line, log: SiteLog) -> None:
    """Compare the step from a round's model to the next one with the step that the recorded weights give."""
    row, step = before.sites.index(log.site), line[1].step
    if before.steps is None or "moved" not in step or before.steps[row].isnan().any():
        return
    products, shares = before.inputs.reports.products, before.steps[row]
    assert products is not None
    along, squared = float(products[row] @ shares), float(shares @ products @ shares)
    rounding = MODEL_ROUNDING * math.sqrt(max(step["model"], 0.0))
    own_norm, moved = math.sqrt(float(products[row, row])), math.sqrt(max(squared, 0.0))
    given, rounded = "the step that the weights give", ROUNDING * squared
    length = squared, step["moved"], rounding * (2 * moved + rounding) + rounded
    _require_logged(files, before, log, line, f"squared length of {given}", *length)
    projected = along, step["before"], rounding * (own_norm + moved + rounding) + rounded
    _require_logged(files, before, log, line, f"{given}, along the update", *projected)


def _compare_rating(files: RunFiles, played: PlayedRound, log: SiteLog) -> None:
    record = played.record
    answers = [(line, entry.rating) for line, entry in log.lines(EVALUATE, record.round) if entry.rating is not None]
    for what, ratings in record.inputs.ratings.items():
        if log.site in ratings:
            rating = ratings[log.site]
            matching = [logged for _, logged in answers if logged.dice == rating.dice]
            if not matching:
                line, last = answers[-1] if answers else (0, None)
                values = {"quantity": what, "found": rating.dice, "expected": last and last.dice}
                place = f"{at(log.path, line)}," if line else log.path
                files.contradict("rating", record, place, site=log.site, **values)
                continue
            for quantity in ("cases", "losses", "patients", "soft"):
                if all(getattr(logged, quantity) != getattr(rating, quantity) for logged in matching):
                    files.contradict("rating details", record, log, quantity=quantity, what=what)


def _compare_work(
    files: RunFiles,
    played: Sequence[PlayedRound],
    steps: Sequence[tuple[PlayedRound, Mapping[str, float]]],
    log: SiteLog,
) -> Iterator[Finding]:
    """Compare a verdict against a site with what the site's log shows of its work; see `fedmerit.site.step_evidence`.

    The ledger's scores z_j of a site with each other, and the parts a_j u_j of these in the step of its model, bound
    what the log can show: by Cauchy and Schwarz z² ≤ Σ z_j² κ, κ = Σ ‖a_j u_j‖² / ‖Σ a_j r_j‖², if the entries of
    updates are of about equal sizes. So a log that shows more does not contradict a wrong verdict, but untrue scores.
    ``steps`` are the rounds of which the log has a step, with what the site measured of it.
    """
    against = [one for one in played if log.site in one.guard.verdicts]
    if not against:
        return
    rounds, shown, allowed = list[int](), 0.0, 0.0
    for round, step in steps:
        counts = round.record.round <= against[-1].record.round and _counts_against(round, log.site)
        if counts and (evidence := _evidence_of_work(round, step, log.site)):
            rounds.append(round.record.round)
            shown, allowed = shown + evidence[0], allowed + evidence[1]
    begin = against[0].record.round
    if not rounds:
        yield make_finding("verdict unsupported", site=log.site, round=begin)
        return
    chance = float(torch.special.gammaincc(torch.tensor(len(rounds) / 2).double(), torch.tensor(shown / 2).double()))
    if chance < CHANCE and shown > SLACK * allowed:
        values = {"found": max(chance, 1e-99), "rounds": join_rounds(rounds)}
        files.contradict("unworked verdict", against[0].record, log, **values)


def _counts_against(played: PlayedRound, site: str) -> bool:
    measured = played.inputs.measured
    return measured is not None and float(log_e_values(measured.scores)[played.sites.index(site)]) > 0


def _evidence_of_work(played: PlayedRound, step: Mapping[str, float], site: str) -> tuple[float, float] | None:
    """Return z² of a round, χ² with one degree of freedom without work, and the most that its scores allow.

    None means that the step is only the site's own, or unknown.
    """
    products, row, measured = played.inputs.reports.products, played.sites.index(site), played.inputs.measured
    if played.steps is None or products is None or measured is None or "rrqq" not in step:
        return None
    shares = played.steps[row]
    own_share, squares = float(shares[row]), shares.square() * products.diagonal()
    variance = step["rrqq"] - 2 * own_share * step["rrrq"] + own_share**2 * step["rrrr"]
    length = step["qq"] - 2 * own_share * step["rq"] + own_share**2 * step["rr"]
    most, rounding = float(squares.sum() - squares[row]), LENGTH_ROUNDING * (step["qq"] + own_share**2 * step["rr"])
    if not min(most, length - rounding) > 0:  # also if either is NaN
        return None
    scores = measured.scores[row].nan_to_num(0.0)
    along = step["rq"] - own_share * step["rr"]
    return along**2 / variance if variance > 0 else 0.0, float(scores.square().sum()) * most / length


def compare_projections(files: RunFiles, played: Sequence[PlayedRound]) -> Iterator[Finding]:
    """Compare the projections of each step of the model, by the logs, with those of the sum of updates that it is.

    Yields the sites whose logs were given, and lack the projections of an update that is in the sum.
    """
    known: dict[tuple[int, str], dict[str, LogEntry]] = {}  # by round and ledger head, then by site
    for log in files.logs:
        for before, (_, entry) in logged_steps(played, log):
            if [len(row) for row in entry.projections] == [DIRECTIONS] * 2 and "moved" in entry.step:
                known.setdefault((before.record.round, entry.ledger), {})[log.site] = entry
    given, lacking = {log.site for log in files.logs}, dict[str, list[int]]()
    for round in played:
        if round.steps is None:
            continue
        number = round.record.round
        of_round = [by_site for (logged, _), by_site in known.items() if logged == number]
        summed = round.steps.nan_to_num().any(dim=0).tolist()
        needed = {site for site, is_summed in zip(round.sites, summed, strict=True) if is_summed}
        for site in sorted((needed & given).difference(*of_round)):
            lacking.setdefault(site, []).append(number)
        for by_site in of_round:
            _compare_projected(files, round, by_site)
    for site, numbers in lacking.items():
        yield make_finding("steps unproven", site=site, rounds=join_rounds(numbers), numbers=numbers)


def _compare_projected(files: RunFiles, before: PlayedRound, by_site: Mapping[str, LogEntry]) -> None:
    assert before.steps is not None
    for site, entry in by_site.items():
        shares = before.steps[before.sites.index(site)]
        parts = {peer: float(share) for peer, share in zip(before.sites, shares, strict=True) if share}
        if shares.isnan().any() or not set(parts) <= set(by_site):
            continue
        computed = [
            sum(share * by_site[peer].projections[0][k] for peer, share in parts.items()) for k in range(DIRECTIONS)
        ]
        differs = max(abs(one - other) for one, other in zip(computed, entry.projections[1], strict=True))
        moved = math.sqrt(max(entry.step["moved"], 0.0))
        rounding = 2 * MODEL_ROUNDING * (math.sqrt(max(entry.step["model"], 0.0)) + moved)
        if differs > rounding + ROUNDING * moved:
            found = differs / moved if moved else math.inf
            files.contradict("projected step", before.record, site=site, found=found)
