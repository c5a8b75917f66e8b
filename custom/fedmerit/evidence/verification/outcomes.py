"""The outcome that the ledger holds against that of `replay`, and what sites measured against both.

A site knows its own counts, values, ratings and update, and how far the model that it was sent lies from the one
before: that has to be what the inner products and the weights in the ledger give.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedmerit.errors import BadInput
from fedmerit.evidence.verification.own_work import compare_work
from fedmerit.evidence.verification.record_schema import Record
from fedmerit.evidence.verification.replay import PlayedRound, Replay
from fedmerit.evidence.verification.results import PLACES
from fedmerit.evidence.verification.site_logs import SiteLog
from fedmerit.methods.registry import OWN
from fedmerit.schema.configuration.specs import HE
from fedmerit.schema.messages import EVALUATE, TRAIN
from fedmerit.schema.run_info import read_run
from fedmerit.server.membership import departures
from fedmerit.server.round_inputs import SERVER

ROUNDING = 1e-9  # of what is computed twice in float64, maybe in another order
MODEL_ROUNDING = 2.0**-22  # of a model in float32, relative to its norm: each step rounds every entry by at most 2^-24
CHANGED = "one of them was changed, or the server computed it otherwise"

Entry = tuple[int, Record]  # of a log, with its line


def replay_rounds(
    run: Path, ledger: Path, records: Sequence[Record], sites: Sequence[str]
) -> tuple[list[PlayedRound], list[str]]:
    """All rounds, each with the outcome that the ledger has; in sentences, what is not shown of them.

    Args:
        run: the run folder, whose run.json has the plan that the ledger names.

    Raises:
        BadInput: the ledger has another outcome than what came gives, or a round began with other models than those
            that the one before ended with; line, round, site and quantity are named, and what differs.
    """
    silent = list(_require_chained(ledger, records))
    info = read_run(run)
    method = info["plan"]["method"]
    if method not in OWN:
        return [], [*silent, f"that weights, contributions and verdicts follow from what came: {method} is not ours"]
    encrypted = HE in (info.get("privacy") or ())
    played = list[PlayedRound]()
    where = f"{info.file}: its plan"
    try:
        rated = [by for record in records for by in record["inputs"].get("ratings", {}).values()]
        has_images = bool(info.get("server_sites")) or any(SERVER in by for by in rated)
        joined = {site for record in records for site in record.get("joined", ())}
        replay = Replay(info["plan"], sites, joined, not encrypted, has_images)
        for number, record in enumerate(records, start=1):
            where = f"{ledger}, line {number}: inputs of round {record['round']}"
            played.append(replay.play(record, f"{ledger}, line {number}"))
            _compare_outcome(played[-1], replay.sites)
    except BadInput:
        raise
    except Exception as error:  # of whatever kind the code of methods meets in numbers that no round has
        raise BadInput(f"{where}: no outcome follows ({type(error).__name__}: {error}); {CHANGED}") from error
    if not replay.sees_updates:
        silent.append("that the models are made by these weights: the server did not see the updates")
    elif not replay.method.sums_updates:
        silent.append(f"that the models are made by these weights: those of {method} are no sums of whole updates")
    return played, silent


def _require_chained(ledger: Path, records: Sequence[Record]) -> Iterator[str]:
    """Every site begins a round with what the round before ended with, and round 0 with the model of all."""
    allocated, before = list[str](), dict[str, Any](model=next(iter(records[0]["began"].values()), ""))
    for number, record in enumerate(records):
        ended, round = before.get("ended", {}), record["round"]
        if record["inputs"].get("importance"):
            allocated.append(str(round))
        for site, began in record["began"].items() if not allocated or allocated[-1] != str(round) else ():
            expected = ended.get(site, before["model"])
            if ended and site in record.get("joined", ()):
                yield f"that the model which {site} began with, as it joined, is made of the others'"
            elif began != expected:
                raise BadInput(
                    f"{ledger}, line {number + 1}: {site} began round {round} with model {began}, expected {expected}, "
                    f"{f'with which round {round - 1} ended' if number else 'as the others'}: a model was swapped"
                )
        if (left := record.get("left", {})) != departures(records[:number], left):
            raise BadInput(
                f"{ledger}, line {number + 1}: says of sites that left another history than the records: {CHANGED}"
            )
        before = dict(record)
    if allocated:
        yield f"that the models of rounds {', '.join(allocated)} are parts of those before: submodels were allocated"


def _compare_outcome(played: PlayedRound, sites: Sequence[str]) -> None:
    record, outcome = played.record, played.outcome
    computed = {
        "weights": outcome.weights,
        "contributions": outcome.contribution,
        "reputations": outcome.reputation,
        "quotas": outcome.quantities.get("quota", torch.full((len(sites),), math.nan)),
    }
    flags = outcome.quantities.get("flagged", torch.zeros(len(sites)))
    for row, site in enumerate(sites):
        if site in record["participants"]:
            for name, values in computed.items():
                _require_same(record.get(name, {}).get(site), float(values[row]), name, site, played)
            _require_same(site in record["flagged"], bool(flags[row]), "flagged", site, played)
    said, found = record.get("guard", {}), played.guard
    rounded = 2 * 10.0**-PLACES
    for site in sites:
        _require_same(site in said.get("verdicts", ()), site in found.get("verdicts", ()), "verdicts", site, played)
        one, other = (part.get("evidence", {}).get(site) for part in (said, found))
        _require_same(one, other, "evidence", site, played, rounded)
        for name in ("clipped", "counted_images", "reward_group_share"):
            one, other = (part.get("bounds", {}).get(name, {}).get(site) for part in (said, found))
            _require_same(one, other, f"bound {name}", site, played, rounded)


def _require_same(
    found: Any, computed: Any, name: str, site: str, played: PlayedRound, tolerance: float = ROUNDING
) -> None:
    if isinstance(computed, float) and math.isnan(computed):
        computed = None
    same = found == computed
    if isinstance(found, float | int) and isinstance(computed, float | int) and not same:
        same = math.isclose(found, computed, rel_tol=tolerance, abs_tol=tolerance)
    if not same:
        raise BadInput(
            f"{played.line}: {name} of {site} in round {played.record['round']}: {found}, expected {computed}, which "
            f"follows from the inputs of the rounds; {CHANGED}"
        )


def compare_measured(played: Sequence[PlayedRound], log: SiteLog, sites: Sequence[str]) -> Iterator[str]:
    """In sentences, verdicts against a site that its ``log`` does not show to be right.

    Raises:
        BadInput: the ledger has other counts, values, ratings, products or scores of the site than its log.
    """
    if log.site not in sites:
        return
    for one in played:
        entry = _find_training(one.record, log)
        if entry is not None and log.site in one.record["participants"]:
            _compare_reported(one, entry[1], _where(log, entry), log.site)
        _compare_ratings(one, log)
    steps = list(_logged_steps(played, log))
    for before, entry in steps:
        _compare_step(before, entry, log)
    yield from compare_work(played, [(before, entry[1].get("step", {})) for before, entry in steps], log)


def _logged_steps(played: Sequence[PlayedRound], log: SiteLog) -> Iterator[tuple[PlayedRound, Entry]]:
    """Of rounds, where a log has the step from their model to the next."""
    for before, one in pairwise(played):
        entry = _find_training(one.record, log)
        if entry is not None and log.site in one.record["participants"] and _remembers(before, entry, log):
            yield before, entry
    for entry in _numbered(log):
        final = played and (entry[1]["work"], entry[1]["round"]) == (EVALUATE, len(played))
        if final and _is_of(played[-1], entry[1], log) and _remembers(played[-1], entry, log):
            yield played[-1], entry


def _numbered(log: SiteLog) -> Iterator[Entry]:
    return enumerate(log.entries, start=1)


def _where(log: SiteLog, entry: Entry) -> str:
    return f"{log.path}, line {entry[0]}"


def _trainings(log: SiteLog, round: int) -> list[Entry]:
    return [one for one in _numbered(log) if (one[1]["work"], one[1]["round"]) == (TRAIN, round)]


def _find_training(record: Record, log: SiteLog) -> Entry | None:
    """What a log has of the update that counted; a line of what a filter made of it has only that."""
    sent, reported = record["updates"].get(log.site), dict[str, Any]()
    for line, entry in _trainings(log, record["round"]):
        reported = dict(entry) if "images" in entry else reported
        if sent in (None, entry["update"]):
            return line, {**reported, **entry}
    return None


def _remembers(before: PlayedRound, entry: Entry, log: SiteLog) -> bool:
    """Whether what a site had of the round before, as it wrote an entry, is the update that counted."""
    earlier = [one["update"] for line, one in _trainings(log, before.record["round"]) if line < entry[0]]
    return bool(earlier) and earlier[-1] == before.record["updates"].get(log.site)


def _is_of(one: PlayedRound, entry: Record, log: SiteLog) -> bool:
    """Whether an entry is of the model that a round ended with."""
    return bool(entry.get("received") == one.record.get("ended", {}).get(log.site, one.record["model"]))


def _compare_reported(one: PlayedRound, entry: Record, where: str, site: str) -> None:
    reports, round, row = one.inputs.reports, one.record["round"], one.sites.index(site)
    said: dict[str, tuple[object, Tensor]] = {"images": (entry.get("images"), reports.num_samples[row])}
    said |= {name: (entry.get("values", {}).get(name), values[row]) for name, values in reports.values.items()}
    step = entry.get("step", {})
    if "update" in step and one.inputs.size:
        assert reports.products is not None
        said["squared norm of the update"] = step["update"], reports.products[row, row]
    for name, (measured, recorded) in said.items():
        _require_logged(float(recorded), measured, name, f"{one.line}: ", site, round, where)
    for name, recorded_pairs in reports.pairs.items():
        of_peers = entry.get("pairs", {}).get(name, {})
        for peer, recorded in zip(one.sites, recorded_pairs[row].tolist(), strict=True):
            what = f"{name} of {peer} in the report"
            _require_logged(recorded, of_peers.get(peer), what, f"{one.line}: ", site, round, where)


def _require_logged(
    recorded: float, measured: Any, name: str, line: str, site: str, round: int, where: str, tolerance: float = ROUNDING
) -> None:
    other = math.nan if measured is None else float(measured)
    if not (math.isnan(recorded) and math.isnan(other)) and not math.isclose(
        recorded, other, rel_tol=ROUNDING, abs_tol=tolerance
    ):
        raise BadInput(f"{line}{name} of {site} in round {round}: {recorded}, expected {measured}, as {where}, has it")


def _compare_step(before: PlayedRound, entry: Entry, log: SiteLog) -> None:
    """The step from the model of one round to the next, as the site measured it."""
    step, row = entry[1].get("step", {}), before.sites.index(log.site)
    if before.steps is None or "moved" not in step or before.steps[row].isnan().any():
        return
    products, parts, round = before.inputs.reports.products, before.steps[row], before.record["round"]
    assert products is not None
    along, squared = float(products[row] @ parts), float(parts @ products @ parts)
    slack = MODEL_ROUNDING * math.sqrt(max(step["model"], 0.0))
    own, moved = math.sqrt(float(products[row, row])), math.sqrt(max(squared, 0.0))
    checks = (
        ("squared length of the step that the weights give", squared, step["moved"], slack * (2 * moved + slack)),
        ("the step that the weights give, along the update", along, step["before"], slack * (own + moved + slack)),
    )
    for name, given, measured, tolerance in checks:
        slack = tolerance + ROUNDING * squared
        _require_logged(given, measured, name, f"{before.line}: ", log.site, round, _where(log, entry), slack)


def _compare_ratings(one: PlayedRound, log: SiteLog) -> None:
    round = one.record["round"]
    answers = [
        (entry, said["dice"])
        for entry, said in _numbered(log)
        if (said["work"], said["round"]) == (EVALUATE, round) and "dice" in said
    ]
    for what, ratings in one.inputs.ratings.items():
        if log.site not in ratings:
            continue
        dice = list(ratings[log.site].dice)
        if all(said != dice for _, said in answers):
            last = answers[-1] if answers else (0, None)
            raise BadInput(
                f"{one.line}: ratings of {what} by {log.site} in round {round}: {dice}, expected what "
                f"{log.path}{f', line {last[0]},' if answers else ''} has: {last[1]}"
            )
