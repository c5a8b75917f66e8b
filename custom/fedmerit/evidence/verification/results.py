"""results.csv against the ledger, the sites' logs and the cross-site matrix."""

import csv
import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from fedmerit.evidence.closing_record import CROSS_SITE, OBSERVED
from fedmerit.evidence.ledger import texts_digest
from fedmerit.evidence.verification.chains import RunFiles, SiteLog
from fedmerit.evidence.verification.findings import Contradiction, Finding, make_finding
from fedmerit.evidence.verification.replay import PLACES, PlayedRound
from fedmerit.files import read_json
from fedmerit.guard.enrolment import may_train_on
from fedmerit.schema.records import EVALUATE, TRAIN, EnrolmentRecord, LogEntry, RoundRecord
from fedmerit.schema.results import (
    EXPECTED,
    FINAL_CANDIDATES,
    PAIRS,
    QUANTITIES,
    ROUND_SPLITS,
    read_results,
    require_each_once,
    row_bytes,
)
from fedmerit.schema.results import read_table as read_rows
from fedmerit.schema.run_info import read_run
from fedmerit.schema.scores import BEST, COUNTS, UNION, Overlap, mean_dice
from fedmerit.site.site_log import Score, overlaps_digest, scores_digest

FIELDS: Mapping[str, str] = {  # by quantity, the field of a record that holds it
    "weight": "weights",
    "contribution": "contributions",
    "reputation": "reputations",
    "quota": "quotas",
    "mean validation dice": "validation_dice",
}
BOUNDS = ("clipped", "statistics_bound", "reward_group_share", "counted_images")
NEUTRAL = {"flagged": 0.0, "mean validation dice": 0.0, **dict.fromkeys(BOUNDS[:3], 1.0)}  # equivalent to no row
ROUNDED = ("evidence", *BOUNDS)
PLAYED = 1e-6  # of numbers that are computed again, from updates on another machine
OF_ABSENT = ("rejected", "weight")  # quantities of a site that took no part in a round
EPSILON_TOLERANCE = 0.01  # of ε, which a hospital's egress filter may round
RUN = ("method", "seed", "fold")  # columns in which all rows of a run agree
KEY = ["round", "split", "site", "coalition", "case", "label", "quantity"]
SCORES = ("dice", "hd95", "nsd", "hd95_px", "nsd_px")
MEASURED = (*SCORES, *COUNTS)
FINAL_QUANTITIES: Mapping[str, Sequence[str]] = {  # by split, the quantities written once all rounds are over
    "validation": MEASURED,
    "testing": (*MEASURED, "bytes_received", "rejected"),
    BEST: MEASURED,
    UNION: SCORES,
    **{
        f"{split}_{name}": (*MEASURED, "final_model_choice")
        for split in ("validation", "testing")
        for name in FINAL_CANDIDATES
    },
}
FINAL_SPLITS = ("testing_", *(f"validation_{name}" for name in FINAL_CANDIDATES))  # measured after all rounds
Cell = tuple[int, str, str]  # round, split, site
Values = Mapping[tuple[int, str, str], float]  # by round, site and quantity


@dataclass(frozen=True)
class ResultsTable:
    """The results.csv of a run."""

    path: Path
    rows: pd.DataFrame
    overlaps: Mapping[Cell, Sequence[Overlap]]

    @cached_property
    def round_values(self) -> Values:
        """The numbers of rounds, beside the mean validation Dice of the model that a round began with."""
        rows = self.rows[(self.rows["split"] == "") & (self.rows["coalition"] == "")].dropna(subset="value")
        columns = (rows[name].tolist() for name in ("round", "site", "quantity", "value"))
        values = {(round, site, quantity): value for round, site, quantity, value in zip(*columns, strict=True)}
        for (round, split, site), overlaps in self.overlaps.items():
            if split == "validation":
                mean = mean_dice(overlaps)
                values[round, site, "mean validation dice"] = math.nan if mean is None else mean
        return values


def read_table(run: Path) -> ResultsTable:
    """Read results.csv; it holds each row once, of one run, and each Dice is that of the voxels beside it."""
    results, path = read_results(run), run / "results.csv"
    for name in RUN:
        if len(values := sorted(set(results[name]))) > 1:
            raise Contradiction("mixed runs", path, quantity=name, found=values[0], expected=values[1])
    require_each_once(results, KEY, path)
    return ResultsTable(path, results, read_overlaps(results, path))


def read_overlaps(results: pd.DataFrame, path: Path) -> dict[Cell, list[Overlap]]:
    """Return the voxel counts in a table of results.

    Raises:
        Contradiction: a Dice is not that of the voxels beside it.
    """
    counts = results[results["quantity"].isin(["dice", *COUNTS])]
    cases: dict[tuple[int, str, str, str, str, str], dict[str, float]] = {}
    columns = ("round", "split", "site", "patient", "case", "label", "quantity", "value")
    for *key, quantity, value in zip(*(counts[name] for name in columns), strict=True):
        cases.setdefault(tuple(key), {})[quantity] = value
    overlaps: dict[Cell, list[Overlap]] = {}
    for (round, split, site, patient, case, label), values in cases.items():
        if split == UNION:
            continue
        place = {"site": site, "round": round, "cell": f"{split} case {case}, {label}"}
        if set(values) == {"dice"}:  # a script's score, of which no voxels are known
            overlap = Overlap.of_score(case, label, values["dice"])
        else:
            if lacking := [name for name in ("dice", *COUNTS) if name not in values]:
                raise Contradiction("counts lacking", path, **place, found=", ".join(lacking))
            if not all(value >= 0 and float(value).is_integer() for value in map(values.__getitem__, COUNTS)):
                text = ", ".join(f"{name} {values[name]:g}" for name in COUNTS)
                raise Contradiction("no counts", path, **place, found=text)
            true, false, missed = (int(values[name]) for name in COUNTS)
            overlap = Overlap(case, label, true, false, missed, patient=patient)
            recorded = values["dice"]
            same = math.isnan(recorded) if overlap.dice is None else math.isclose(overlap.dice, recorded, rel_tol=1e-12)
            if not same:
                raise Contradiction("dice", path, **place, found=recorded, expected=overlap.dice)
        overlaps.setdefault((int(round), str(split), str(site)), []).append(overlap)
    return overlaps


def compare_with_ledger(files: RunFiles, table: ResultsTable) -> None:
    """Require that results.csv has of every round what the ledger has.

    Compared are weights, contributions, rejected and flagged sites, repeated updates, what the guard saw and bounded,
    enrolled counts, validation Dice computed again from the voxels, and the digest of all rows of a round.
    """
    values, records = table.round_values, files.records
    sites, sent = sorted({site for _, site, _ in values}), set[str]()
    for record in records:
        for site, quantity, expected in _recorded_values(record, sites, sent):
            _require_same(files, table, record.round, site, quantity, expected)
        sent.update(record.updates.values())
    _compare_enrolled(files, table)
    for quantity, field in FIELDS.items():
        cells = {(round, site) for (round, site, name), value in values.items() if name == quantity and value}
        extra = cells - {(record.round, site) for record in records for site in getattr(record, field)}
        for round, site in sorted(cell for cell in extra if cell[0] != len(records)):  # that is unfinished, or the end
            files.contradict("extra result", table.path, site=site, round=round, quantity=quantity)
    _compare_row_digests(files, table.path)


def require_known_rows(files: RunFiles, table: ResultsTable) -> None:
    """Require that rounds have rows of known quantities only, of participants or of what was rejected."""
    records = files.records
    took_part = [{*record.participants} for record in records]
    columns = ("round", "split", "site", "quantity", "coalition", "case", "label", "patient")
    for row in zip(*(table.rows[name].tolist() for name in columns), strict=True):
        round, split, site, quantity, coalition, *of_case = row
        if split not in ROUND_SPLITS or not 0 <= round < len(records):
            continue
        is_pair, is_measured = quantity in PAIRS, quantity in MEASURED
        is_plain = (split != "") if is_measured else split == "" and not any(of_case)
        there = (coalition if is_pair else site) in took_part[round] or (quantity in OF_ABSENT and not split)
        if not (quantity in QUANTITIES and is_plain and bool(coalition) == is_pair and there):
            place = {"site": site, "round": round, "quantity": quantity, "cell": coalition and f", {coalition}"}
            files.contradict("unknown row", table.path, **place, expected=len(records))


def compare_quantities(files: RunFiles, table: ResultsTable, played: Sequence[PlayedRound]) -> None:
    """Require that results.csv has what follows from the inputs of the rounds, which were computed again."""
    values = table.round_values
    for one in played:
        for quantity, of_sites in one.quantities.items():
            for site, value in zip(one.sites, of_sites.tolist(), strict=True):
                recorded = values.get((one.record.round, site, quantity), math.nan)
                are_missing = math.isnan(value) and math.isnan(recorded)
                same = are_missing or math.isclose(value, recorded, rel_tol=PLAYED, abs_tol=PLAYED)
                if site in one.record.participants and not same:
                    place = {"site": site, "round": one.record.round, "quantity": quantity}
                    files.contradict("played result", table.path, **place, found=recorded, expected=value)


def _recorded_values(
    record: RoundRecord, sites: Sequence[str], earlier_updates: set[str]
) -> Iterator[tuple[str, str, float | None]]:
    """Yield sites, quantities and what a record has of them."""
    for quantity, field in FIELDS.items():
        yield from ((site, quantity, value) for site, value in getattr(record, field).items())
    for site, images in record.inputs.counts.items():
        yield site, "num_samples", images
    for site in sites:
        if site in record.participants or site in record.rejected:
            yield site, "rejected", None if site in record.participants else 1.0
    times, guard = Counter(record.updates.values()), record.guard
    for site in record.participants:
        update = record.updates.get(site)
        yield site, "flagged", float(site in record.flagged)
        yield site, "repeated", float(update in earlier_updates or times[update or ""] > 1)
        if "verdicts" in guard.model_fields_set:
            yield site, "verdict", float(site in guard.verdicts)
            yield site, "evidence", guard.evidence.get(site, 0.0)
            for name in BOUNDS:
                bound = guard.bounds.get(name, {}).get(site)
                if bound is not None or name in NEUTRAL:
                    yield site, name, bound


def _require_same(
    files: RunFiles, table: ResultsTable, round: int, site: str, quantity: str, expected: float | None
) -> None:
    recorded = table.round_values.get((round, site, quantity))
    first, second = (NEUTRAL.get(quantity, math.nan) if value is None else value for value in (recorded, expected))
    first = float(f"{first:.{PLACES}f}") if quantity in ROUNDED else first
    are_missing = math.isnan(first) and math.isnan(second)
    if not (first == second or are_missing or math.isclose(first, second, rel_tol=1e-12)):
        place = {"site": site, "round": round, "quantity": quantity}
        files.contradict("result", table.path, **place, found=recorded, expected=expected)


def _compare_enrolled(files: RunFiles, table: ResultsTable) -> None:
    enrolled: dict[str, EnrolmentRecord] = {}
    for record in files.records:
        enrolled |= record.guard.enrolled
        for site in record.participants:
            images = enrolled[site].slices.get("training") if site in enrolled else None
            used = table.round_values.get((record.round, site, "num_samples"), math.nan)
            if images is not None and not may_train_on(used, images):
                _require_same(files, table, record.round, site, "num_samples", images)
    for (round, split, site), overlaps in sorted(table.overlaps.items()):
        if all(overlap.score is not None for overlap in overlaps):  # a script enrols only what it trains on
            continue
        cases, count = enrolled[site].cases if site in enrolled else {}, len({overlap.case for overlap in overlaps})
        if split in ("validation", "testing") and round <= len(files.records) and count != cases.get(split, count):
            place = {"site": site, "round": round, "split": split}
            files.contradict("enrolled cases", table.path, **place, found=count, expected=cases[split])


def _compare_row_digests(files: RunFiles, path: Path) -> None:
    digests = {record.round: hashlib.sha256() for record in files.records}
    try:
        with path.open(newline="") as file:
            for row in csv.DictReader(file) if digests else ():
                if row["split"] in ROUND_SPLITS and int(row["round"]) in digests:
                    digests[int(row["round"])].update(row_bytes(row))
    except (ValueError, TypeError, csv.Error) as error:
        raise Contradiction("unreadable results", path, found=error, expected=EXPECTED) from error
    for round, digest in digests.items():
        if digest.hexdigest() != files.records[round].rows:
            files.contradict("rows", path, round=round)


def require_no_added_rows(files: RunFiles, table: ResultsTable) -> None:
    """Require that a run that is over has no rows of another round, site, split or quantity than such a run writes.

    The rows of its rounds are compared with their records; everything else was measured at its end. What the ledger
    rejected may be of others than sites, who have no rows.
    """
    rounds = len(files.records)
    known_sites = {*files.sites, *(site for record in files.records for site in record.participants)}
    cells = table.rows[["round", "split", "site", "coalition", "quantity"]].drop_duplicates()
    best = min(cells["round"][cells["split"] == BEST], default=-1)
    for round, split, site, coalition, quantity in cells.itertuples(index=False):
        place = {"site": site, "round": round, "quantity": quantity, "cell": split and f", {split}"}
        if site not in known_sites:
            files.contradict("unknown site", table.path, **place)
            continue
        if 0 <= round < rounds and split in ROUND_SPLITS:
            continue
        written = {"validation": rounds, BEST: best if best < rounds else -1}.get(split, rounds - 1)
        if round != written or round < 0 or coalition or quantity not in FINAL_QUANTITIES.get(split, ()):
            files.contradict("unknown row", table.path, **place, expected=rounds)


def require_same_run(files: RunFiles, path: Path, rows: pd.DataFrame) -> None:
    """Require that the ``rows`` of the file at ``path`` are of the method, seed and fold that run.json has."""
    file = files.run / "run.json"
    info = read_run(files.run) if file.exists() else {}
    for name in RUN:
        values, planned = sorted(set(map(str, rows[name]))), "" if info.get(name) is None else str(info[name])
        if name in info and values not in ([], [planned]):
            found = {"found": values[0] or "none", "expected": planned or "none"}
            files.contradict("other run", path, quantity=name, **found, run=file)


def compare_matrix(files: RunFiles, table: ResultsTable) -> None:
    """Require that the cross-site matrix of a run that is over has the Dice that results.csv gives."""
    path = files.run / CROSS_SITE
    if not path.exists():
        return
    matrix = read_json(path)
    if not _is_matrix(matrix):
        raise Contradiction("no matrix", path)
    tested = {site: overlaps for (_, split, site), overlaps in table.overlaps.items() if split == "testing"}
    if missing := sorted(set(matrix) ^ set(tested)):
        raise Contradiction("matrix sites", path, site=missing[0], table=table.path)
    cross_site = _cross_site_dice(table) if any(len(row) > 1 for row in matrix.values()) else {}
    for site, row in matrix.items():
        for model, cell in row.items():
            dice = mean_dice(tested[site]) if len(row) == 1 else cross_site.get((site, model), math.nan)
            first, second = (math.nan if value is None else value for value in (cell["dice"], dice))
            if not (math.isclose(first, second, rel_tol=1e-9) or (math.isnan(first) and math.isnan(second))):
                found = {"found": cell["dice"], "expected": dice}
                files.contradict("matrix", path, site=site, model=model, **found, table=table.path)


def _is_matrix(matrix: Any) -> bool:
    return isinstance(matrix, Mapping) and all(
        isinstance(row, Mapping)
        and len(row)
        and all(
            isinstance(cell, Mapping) and "dice" in cell and isinstance(cell["dice"], float | int | None)
            for cell in row.values()
        )
        for row in matrix.values()
    )


def _cross_site_dice(table: ResultsTable) -> dict[tuple[str, str], float]:
    """Return mean Dice by tester and by model: over cases of the mean over labels; NaN if there is none."""
    rows = table.rows[(table.rows["split"] == UNION) & (table.rows["quantity"] == "dice")]
    rows = rows.assign(tester=rows["case"].str.rpartition("/")[0])
    by_case = rows.groupby(["tester", "site", "case"])["value"].mean()
    means = by_case.groupby(level=["tester", "site"]).mean().reset_index()
    return {(str(tester), str(model)): float(dice) for tester, model, dice in means.itertuples(index=False)}


def compare_with_log(files: RunFiles, table: ResultsTable, log: SiteLog) -> tuple[int, list[Finding]]:
    """Compare a site's measurements and images in results.csv with what its log says that it answered.

    Returns:
        How many measurements agree; and those on which the log, or results.csv, is silent.
    """
    path, overlaps, compared, questions = table.path, table.overlaps, 0, list[Finding]()
    rounds = files.records[-1].of if files.records else 0
    answered: dict[tuple[int, str], set[str]] = {}
    for entry in log.entries:  # results.csv has of a round the model that it began with, at the end what is tested
        is_shown = entry.work == TRAIN or (entry.work == EVALUATE and entry.round >= rounds)
        if is_shown and entry.overlaps is not None:
            answered.setdefault((entry.round, entry.split or "validation"), set()).update(entry.overlaps)
    took_part = [record.round for record in files.records if log.site in record.participants]
    cells = {(round, "validation"): (round, "validation") for round in took_part}
    needed = set(cells)
    _compare_reported(files, table, log, took_part)
    cells[rounds, "validation"], cells[rounds - 1, "testing"] = (rounds, "validation"), (rounds, "testing")
    for round, split, _ in overlaps:  # of the best round's model, and of those that a site chose among
        if split.startswith(FINAL_SPLITS):
            cells[round, split] = rounds, split.partition("_")[0]
    shown: dict[tuple[int, str], set[str]] = {}
    for (round, split, site), measured in overlaps.items():
        if site == log.site and (round, split) in cells:
            shown.setdefault(cells[round, split], set()).add(overlaps_digest(measured))
    for (round, split), task in cells.items():
        counts, answers = overlaps.get((round, split, log.site)), answered.get(task)
        place: dict[str, Any] = {"site": log.site, "round": round, "split": split}
        if answers is None:
            questions += [make_finding("measurements unsupported", **place)] if counts else []
        elif counts is None:
            if (round, split) in needed:
                files.contradict("measurements lacking", path, log, **place)
            elif not answers <= shown.get(task, set()):  # it may have refused only this model
                questions.append(make_finding("measurements discarded", **place))
        else:
            models = _received_models(files.records, rounds, round, split, log.site)
            if overlaps_digest(counts) not in (_matching_answers(models, log, task, files.sites) or answers):
                files.contradict("measurements", path, log, **place)
                continue
            compared += 1
    return compared, questions


def _received_models(records: Sequence[RoundRecord], rounds: int, round: int, split: str, site: str) -> set[str]:
    """Return the digests of the models that a site received and whose measurements are in results.csv at a run's end.

    These are the final models of all sites, or the one that all have; of the best round those that it began with, or
    the site's own.
    """
    if not records or len(records) < rounds:
        return set()
    digests: list[str | None] = []
    if (round, split) in ((rounds, "validation"), (rounds - 1, "testing")):
        digests = [records[-1].model, records[-1].ended.get(site)]
    elif split == BEST and 0 <= round < rounds:
        digests = [records[round].began.get(site), records[round - 1].model if round else None]
    return {digest for digest in digests if digest}


def _matching_answers(models: Collection[str], log: SiteLog, task: tuple[int, str], sites: Sequence[str]) -> set[str]:
    """Return what a site answered of its own, or the only, one of these models; nothing if its log does not show that.

    The models are in the order of the sites. A site that selects its final model answers about three.
    """
    answers = [
        entry.overlaps
        for entry in log.entries
        if entry.work == EVALUATE and (entry.round, entry.split) == task
        if entry.received in models and entry.overlaps is not None
    ]
    if single := [digests for digests in answers if len(digests) == 1]:
        return {digests[0] for digests in single}
    if log.site not in sites or any(len(digests) != len(sites) for digests in answers):
        return set()
    return {digests[sites.index(log.site)] for digests in answers}


def compare_values(files: RunFiles) -> None:
    """Require that values.csv has of each site with a log what the site answered of models in that round.

    An answer that counted has to be there, or among the ratings of the ledger.
    """
    path = files.run / OBSERVED
    values = digest_values(_read_values(files, path)) if path.exists() else {}
    answers: dict[tuple[str, int], list[LogEntry]] = {}
    for log in files.logs:
        for _, entry in log.lines(EVALUATE):
            answers.setdefault((log.site, entry.round), []).append(entry)
    logs, shown = {log.site: log for log in files.logs}, dict[tuple[str, int], list[Sequence[str]]]()
    for (site, round, observer), of_models in values.items():
        shown.setdefault((site, round), []).append(digests := [*of_models.values()])
        if site in logs and digests not in [entry.scores for entry in answers.get((site, round), ())]:
            found = f"of {len(digests)} models"
            files.contradict("values", path, logs[site], round=round, quantity=observer, found=found)
    for record, site in product(files.records, logs):
        rated = [of_sites[site].dice for of_sites in record.inputs.ratings.values() if site in of_sites]
        for entry in answers.get((site, record.round), ()):
            counted = texts_digest(entry.overlaps or ()) in record.evaluated.get(site, ())
            used = entry.rating is None or entry.rating.dice in rated or not any(entry.rating.cases)
            if counted and not used and entry.scores not in shown.get((site, record.round), ()):
                files.contradict("values left out", path, logs[site], round=record.round, quantity="models")


def _read_values(files: RunFiles, path: Path) -> pd.DataFrame:
    """Return the rows of values.csv, of which each is there once, of this run, and of a kind that a round writes."""
    rows, rounds = read_rows(path), len(files.records)
    require_each_once(rows, KEY, path)
    require_same_run(files, path, rows)
    is_known = rows["quantity"].isin(["dice", "seconds"]) & rows["round"].between(0, rounds - 1)
    for round, site, quantity in rows.loc[~is_known, ["round", "site", "quantity"]].itertuples(index=False):
        place = {"site": site, "round": round, "quantity": quantity, "cell": ""}
        files.contradict("unknown row", path, **place, expected=rounds)
    return rows


def digest_values(rows: pd.DataFrame) -> dict[tuple[str, int, str], dict[str, str]]:
    """Return by site, round and observer the `scores_digest` of each coalition's model in values.csv, in order."""
    scores: dict[tuple[str, int, str], dict[str, list[Score]]] = {}
    rows = rows[rows["quantity"] == "dice"]
    columns = ("site", "round", "split", "coalition", "case", "label", "patient", "value")
    for *of_answer, coalition, case, label, patient, value in zip(
        *(rows[name].tolist() for name in columns), strict=True
    ):
        site, round, observer = of_answer
        scores.setdefault((site, round, observer), {}).setdefault(coalition, []).append((case, label, patient, value))
    return {key: {text: scores_digest(one) for text, one in models.items()} for key, models in scores.items()}


def _compare_reported(files: RunFiles, table: ResultsTable, log: SiteLog, took_part: Collection[int]) -> None:
    """Report numbers of training images and of spent ε that are not what the site's log has."""
    sent: dict[tuple[str, int], set[float]] = {}
    for _, entry in log.lines(TRAIN):
        if entry.images is not None:
            sent.setdefault(("num_samples", entry.round), set()).add(entry.images)
        if entry.privacy is not None:
            sent.setdefault(("epsilon", entry.round), set()).add(entry.privacy.epsilon)
    rows = table.rows[table.rows["quantity"].isin(["num_samples", "epsilon"]) & (table.rows["site"] == log.site)]
    for quantity, round, value in zip(rows["quantity"], rows["round"], rows["value"], strict=True):
        logged = sent.get((quantity, round), {value}) if round in took_part else {value}
        tolerance = EPSILON_TOLERANCE if quantity == "epsilon" else 0.0
        if not any(math.isclose(value, known, rel_tol=0.0, abs_tol=tolerance) for known in logged):
            place = {"round": round, "quantity": quantity, "found": value, "expected": min(logged)}
            files.contradict("reported number", table.path, log, **place)
