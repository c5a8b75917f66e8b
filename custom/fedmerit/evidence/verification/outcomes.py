"""The outcomes in the ledger against those that `replay` computes, and the sites' logs against both.

A site knows its own counts, values, ratings and update, and how far the model that it was sent lies from the one
before: that has to be what the inner products and the weights in the ledger give.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedmerit.errors import BadInput
from fedmerit.evidence.verification.chains import SiteLog
from fedmerit.evidence.verification.enrolments import require_certified
from fedmerit.evidence.verification.findings import (
    WHOLE,
    Finding,
    Movement,
    Report,
    at,
    join_rounds,
    make_finding,
    stop,
)
from fedmerit.evidence.verification.replay import PlayedRound, Replay, all_raters
from fedmerit.evidence.verification.results import PLACES
from fedmerit.guard.work import log_e_values
from fedmerit.methods.registry import METHODS
from fedmerit.schema.records import EVALUATE, TRAIN, LogEntry, RoundRecord
from fedmerit.schema.run_info import read_run
from fedmerit.server.membership import departures
from fedmerit.server.round_inputs import SERVER
from fedmerit.site.step_evidence import DIRECTIONS

ROUNDING = 1e-9  # of numbers that are computed twice in float64, possibly in another order
MODEL_ROUNDING = 2.0**-22  # of a model in float32, relative to its norm: a step rounds each entry by at most 2^-24
CHANCE = 1e-6  # probability, without work, of what a log shows
LENGTH_ROUNDING = 1e-8  # of squared lengths, for models in float32
SLACK = 4.0  # times what the scores allow: entries differ in size; real runs reached .26, generated ones 1.7

GRAM_ROUNDING = 1e-9  # of eigenvalues of inner products, relative to the largest
REST_ROUNDING = 1e-6  # likewise, of rests, which are differences

Line = tuple[int, LogEntry]  # of a log


def replay_rounds(
    run: Path, ledger: Path, records: Sequence[RoundRecord], sites: Sequence[str], report: Report = stop
) -> tuple[list[PlayedRound], list[Finding]]:
    """Compute all rounds again and require the outcomes that the ledger has.

    Args:
        run: the run folder, whose run.json has the plan that the ledger names.
        ledger: the file that holds the records.
        records: all of them.
        sites: all that ever took part.

    Returns:
        The rounds, and what is not shown of them.

    Raises:
        Contradiction: the ledger has another outcome than follows from its inputs, or a round began with other models
            than those that the round before ended with.
    """
    questions = list(_require_same_models(ledger, records, report))
    require_certified(ledger, records, report)
    info = read_run(run)
    method = info["plan"]["method"]
    if method not in METHODS.ours:
        return [], [*questions, make_finding("foreign method", found=method, moved=Movement(WHOLE))]
    played = list[PlayedRound]()
    where = f"{info.file}: its plan"
    try:
        if SERVER in all_raters(records) and not info["plan"].get("server_images"):
            first = next(one for one in records if any(SERVER in by for by in one.inputs.ratings.values()))
            report(make_finding("server images", at(ledger, first.round + 1), round=first.round))
        for record in records:
            if record.of != info["plan"]["rounds"]:
                values = {"found": record.of, "expected": info["plan"]["rounds"]}
                report(make_finding("planned rounds", at(ledger, record.round + 1), **values))
        replay = Replay(info, records, sites)
        for record in records:
            line = at(ledger, record.round + 1)
            where = f"{line}: inputs of round {record.round}"
            played.append(replay.play(record, line))
            _require_possible_products(played[-1], report)
            _compare_outcome(played[-1], report)
    except BadInput:
        raise
    except Exception as error:  # of whatever kind the code of methods meets in numbers that no round has
        report(make_finding("no outcome", where, found=f"{type(error).__name__}: {error}"))
        return played, questions
    if not replay.sees_updates:
        questions.append(make_finding("models unseen"))
    elif not replay.method.sums_updates:
        questions.append(make_finding("models no sums", found=method))
    return played, questions


def _require_possible_products(played: PlayedRound, report: Report) -> None:
    """Require that inner products can be those of some vectors: their matrix has no negative eigenvalue."""
    inputs = played.inputs
    matrices = [("updates", inputs.reports.products, GRAM_ROUNDING)]
    matrices += [("parts of updates", part, REST_ROUNDING) for part in (() if inputs.parts is None else inputs.parts)]
    if inputs.measured is not None:
        matrices.append(("rests of updates", inputs.measured.rests, REST_ROUNDING))
    for what, products, rounding in matrices:
        if products is not None and len(products):
            values = torch.linalg.eigvalsh(products.nan_to_num(0.0))
            if float(values[0]) < -rounding * float(values.abs().max()):
                place = {"round": played.record.round, "quantity": what}
                report(make_finding("impossible products", played.line, **place, found=float(values[0])))


def _require_same_models(ledger: Path, records: Sequence[RoundRecord], report: Report) -> Iterator[Finding]:
    """Require that every site began a round with what the round before ended with, and round 0 with one model."""
    allocated = list[int]()
    model, ended = next(iter(records[0].began.values()), ""), dict[str, str]()
    for number, record in enumerate(records):
        where = at(ledger, number + 1)
        if record.inputs.importance:
            allocated.append(number)
        for site, began in record.began.items() if number not in allocated else ():
            expected = ended.get(site, model)
            if ended and site in record.joined:
                yield make_finding("joined model", where, site=site, round=number)
            elif began != expected:
                because = f"with which round {number - 1} ended" if number else "as the others"
                place = {"site": site, "round": number, "found": began, "expected": expected}
                report(make_finding("model swapped", where, **place, because=because))
        if record.left != departures(records[:number], record.left):
            report(make_finding("departures", where, round=number))
        model, ended = record.model, record.ended
    if allocated:
        yield make_finding("submodels", rounds=", ".join(map(str, allocated)))


def _compare_outcome(played: PlayedRound, report: Report) -> None:
    record, outcome, n = played.record, played.outcome, len(played.sites)
    computed = {
        "weights": outcome.weights,
        "contributions": outcome.contribution,
        "reputations": outcome.reputation,
        "quotas": outcome.quantities.get("quota", torch.full((n,), math.nan)),
    }
    flags = outcome.quantities.get("flagged", torch.zeros(n))
    for row, site in enumerate(played.sites):
        if site in record.participants:
            for name, values in computed.items():
                _require_same(report, getattr(record, name).get(site), float(values[row]), name, site, played)
            _require_same(report, site in record.flagged, bool(flags[row]), "flagged", site, played)
    recorded, guard, rounded = record.guard, played.guard, 2 * 10.0**-PLACES
    named = {*played.sites, *recorded.verdicts}
    verdicts, expected_verdicts = ({site: site in part.verdicts for site in named} for part in (recorded, guard))
    by_site: list[tuple[str, Mapping[str, Any], Mapping[str, Any], float]] = [
        ("verdicts", verdicts, expected_verdicts, ROUNDING),
        ("evidence", recorded.evidence, guard.evidence, rounded),
    ]
    for name in sorted({*recorded.bounds, *guard.bounds} - {"statistics_bound"}):  # that is of no update
        by_site.append((f"bound {name}", recorded.bounds.get(name, {}), guard.bounds.get(name, {}), rounded))
    if record.ended:
        by_site.append(("models", dict.fromkeys(record.ended, True), dict.fromkeys(played.sites, True), ROUNDING))
    for name, found, expected, tolerance in by_site:
        for site in sorted({*found, *expected}):
            _require_same(report, found.get(site), expected.get(site), name, site, played, tolerance)


def _require_same(
    report: Report,
    found: Any,
    computed: Any,
    quantity: str,
    site: str,
    played: PlayedRound,
    tolerance: float = ROUNDING,
) -> None:
    if isinstance(computed, float) and math.isnan(computed):
        computed = None
    same = found == computed
    if isinstance(found, float | int) and isinstance(computed, float | int) and not same:
        same = math.isclose(found, computed, rel_tol=tolerance, abs_tol=tolerance)
    if not same:
        place = {"site": site, "round": played.record.round, "quantity": quantity}
        report(make_finding("outcome", played.line, **place, found=found, expected=computed))


def compare_log(
    played: Sequence[PlayedRound], log: SiteLog, sites: Sequence[str], report: Report = stop
) -> Iterator[Finding]:
    """Yield the verdicts against a site that its log does not support.

    Raises:
        Contradiction: the ledger has other counts, values, ratings, products or scores of the site than its log.
    """
    if log.site not in sites:
        return
    for round in played:
        if log.site in round.record.participants and (line := _find_training(round.record, log)):
            _compare_reported(round, line, log, report)
        _compare_ratings(round, log, report)
    steps = list(logged_steps(played, log))
    for before, line in steps:
        _compare_step(before, line, log, report)
    yield from _compare_work(played, [(before, entry.step) for before, (_, entry) in steps], log, report)


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


def _compare_reported(played: PlayedRound, line: Line, log: SiteLog, report: Report) -> None:
    (number, entry), site, reports = line, log.site, played.inputs.reports
    where, row = at(log.path, number), played.sites.index(site)
    unknown = torch.full((len(played.sites),), math.nan, dtype=torch.float64)
    logged: dict[str, tuple[float | None, Tensor]] = {"images": (entry.images, reports.num_samples[row])}
    for name in dict.fromkeys((*reports.values, *entry.values)):
        logged[name] = entry.values.get(name), reports.values.get(name, unknown)[row]
    if "update" in entry.step and played.inputs.size:
        assert reports.products is not None
        logged["squared norm of the update"] = entry.step["update"], reports.products[row, row]
    if "update" in entry.step and not played.inputs.size:
        report(make_finding("not encrypted", played.line, site=site, round=played.record.round, log=where))
    for quantity, (measured, recorded) in logged.items():
        _require_logged(report, played, float(recorded), measured, quantity, site, where)
    for name in dict.fromkeys((*reports.pairs, *entry.pairs)):
        recorded_pairs = reports.pairs[name][row] if name in reports.pairs else unknown
        for peer, recorded_pair in zip(played.sites, recorded_pairs.tolist(), strict=True):
            measured = entry.pairs.get(name, {}).get(peer)
            _require_logged(report, played, recorded_pair, measured, f"{name} of {peer} in the report", site, where)


def _require_logged(
    report: Report,
    played: PlayedRound,
    recorded: float,
    measured: float | None,
    quantity: str,
    site: str,
    where: str,
    tolerance: float = ROUNDING,
) -> None:
    logged = math.nan if measured is None else float(measured)
    both_missing = math.isnan(recorded) and math.isnan(logged)
    if not both_missing and not math.isclose(recorded, logged, rel_tol=ROUNDING, abs_tol=tolerance):
        place = {"site": site, "round": played.record.round, "quantity": quantity}
        report(make_finding("reported", played.line, **place, found=recorded, expected=measured, log=where))


def _compare_step(before: PlayedRound, line: Line, log: SiteLog, report: Report) -> None:
    """Compare the step from a round's model to the next one with the step that the recorded weights give."""
    row, step = before.sites.index(log.site), line[1].step
    if before.steps is None or "moved" not in step or before.steps[row].isnan().any():
        return
    products, shares = before.inputs.reports.products, before.steps[row]
    assert products is not None
    along, squared = float(products[row] @ shares), float(shares @ products @ shares)
    rounding = MODEL_ROUNDING * math.sqrt(max(step["model"], 0.0))
    own_norm, moved = math.sqrt(float(products[row, row])), math.sqrt(max(squared, 0.0))
    checks = (
        ("squared length of the step that the weights give", squared, step["moved"], rounding * (2 * moved + rounding)),
        (
            "the step that the weights give, along the update",
            along,
            step["before"],
            rounding * (own_norm + moved + rounding),
        ),
    )
    for quantity, computed, measured, tolerance in checks:
        where = at(log.path, line[0])
        _require_logged(report, before, computed, measured, quantity, log.site, where, tolerance + ROUNDING * squared)


def _compare_ratings(played: PlayedRound, log: SiteLog, report: Report) -> None:
    round = played.record.round
    answers = [(line, entry.rating) for line, entry in log.lines(EVALUATE, round) if entry.rating is not None]
    for what, ratings in played.inputs.ratings.items():
        if log.site in ratings:
            rating = played.record.inputs.ratings[what][log.site]
            matching = [logged for _, logged in answers if logged.dice == rating.dice]
            if not matching:
                line, last = answers[-1] if answers else (0, None)
                values = {"quantity": what, "found": rating.dice, "expected": last and last.dice}
                place = f"{at(log.path, line)}," if line else log.path
                report(make_finding("rating", played.line, site=log.site, round=round, **values, log=place))
                continue
            for quantity in ("cases", "losses", "patients", "soft"):
                if all(getattr(logged, quantity) != getattr(rating, quantity) for logged in matching):
                    named = {"site": log.site, "quantity": quantity, "what": what}
                    report(make_finding("rating details", played.line, round=round, **named, log=log.path))


def _compare_work(
    played: Sequence[PlayedRound],
    steps: Sequence[tuple[PlayedRound, Mapping[str, float]]],
    log: SiteLog,
    report: Report,
) -> Iterator[Finding]:
    """Compare a verdict against a site with what the site's log shows of its work; see `fedmerit.site.step_evidence`.

    The ledger's scores z_j of a site with each other, and the parts a_j u_j of these in the step of its model, bound
    what the log can show: by Cauchy and Schwarz z² ≤ Σ z_j² κ, κ = Σ ‖a_j u_j‖² / ‖Σ a_j r_j‖², if the entries of
    updates are of about equal sizes. So a log that shows more does not contradict a wrong verdict, but untrue scores.

    Args:
        played: the rounds.
        steps: the rounds of which the log has a step, with what the site measured of it.
        log: the site's log.

    Raises:
        Contradiction: the log shows work in rounds whose scores show none.
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
        values = {"found": max(chance, 1e-99), "rounds": join_rounds(rounds), "log": log.path}
        report(make_finding("unworked verdict", against[0].line, site=log.site, round=begin, **values))


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


def compare_projections(
    played: Sequence[PlayedRound], logs: Sequence[SiteLog], report: Report = stop
) -> Iterator[Finding]:
    """Compare the projections of each step of the model, by the logs, with those of the sum of updates that it is.

    Yields the sites whose logs were given, and lack the projections of an update that is in the sum.

    Raises:
        Contradiction: a step has another projection than the sum of the updates, by the weights of the outcome.
    """
    known: dict[tuple[int, str], dict[str, LogEntry]] = {}  # by round and ledger head, then by site
    for log in logs:
        for before, (_, entry) in logged_steps(played, log):
            if [len(row) for row in entry.projections] == [DIRECTIONS] * 2 and "moved" in entry.step:
                known.setdefault((before.record.round, entry.ledger), {})[log.site] = entry
    given, lacking = {log.site for log in logs}, dict[str, list[int]]()
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
            _compare_projected(round, by_site, report)
    for site, numbers in lacking.items():
        yield make_finding("steps unproven", site=site, rounds=join_rounds(numbers), numbers=numbers)


def _compare_projected(before: PlayedRound, by_site: Mapping[str, LogEntry], report: Report) -> None:
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
            place = {"site": site, "round": before.record.round}
            found = differs / moved if moved else math.inf
            report(make_finding("projected step", before.line, **place, found=found))
