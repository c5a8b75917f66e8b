"""Compare the projections of each step of the model, which sites' logs have, with those of the updates that it sums."""

import math
from collections.abc import Iterator, Mapping, Sequence

from fedmerit.evidence.verification.chains import SiteLog
from fedmerit.evidence.verification.findings import Finding, Report, join_rounds, make_finding, stop
from fedmerit.evidence.verification.outcomes import MODEL_ROUNDING, ROUNDING, logged_steps
from fedmerit.evidence.verification.replay import PlayedRound
from fedmerit.schema.records import LogEntry
from fedmerit.site.step_evidence import DIRECTIONS


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
