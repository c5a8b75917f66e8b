"""results.csv against the ledger's records of the same rounds, and rows in it that no such run writes."""

import csv
import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from fedmerit.errors import BadInput
from fedmerit.evidence.verification.record_schema import Record
from fedmerit.schema.results import EXPECTED, FINAL_CANDIDATES, ROUND_SPLITS, read_results, require_each_once, row_bytes
from fedmerit.schema.run_info import read_run
from fedmerit.schema.scores import COUNTS, Overlap, mean_dice
from fedmerit.site.enrolment import may_train_on

TABLES: Mapping[str, str] = {
    "weight": "weights",
    "contribution": "contributions",
    "reputation": "reputations",
    "quota": "quotas",
    "mean validation dice": "validation_dice",
}  # by quantity, its part of a record
BOUNDS = ("clipped", "statistics_bound", "reward_group_share", "counted_images")
NEUTRAL = {"flagged": 0.0, "mean validation dice": 0.0, **dict.fromkeys(BOUNDS[:3], 1.0)}  # as good as no row
ROUNDED = ("evidence", *BOUNDS)
PLACES = 6  # after the point, of what a record has of bounds
BEST = "testing_best"  # that of the best round's models
UNION = "union"  # the split whose rows have only scores: the sites that tested the models counted the voxels
RUN = ("method", "seed", "fold")  # columns in which all rows of a run agree
WHERE = ["round", "split", "site", "coalition", "case", "label", "quantity"]
Cell = tuple[int, str, str]  # round, split, site
Values = Mapping[tuple[int, str, str], float]  # by round, site and quantity: those of whole rounds


@dataclass(frozen=True)
class ResultsTable:
    """results.csv of a run."""

    path: Path
    rows: pd.DataFrame
    overlaps: Mapping[Cell, Sequence[Overlap]]


def read_tables(run: Path) -> ResultsTable:
    """results.csv; `BadInput` if it holds anything twice, of two runs, or Dice that is not of its voxels."""
    results, path = read_results(run), run / "results.csv"
    for name in RUN:
        if len(said := sorted(set(results[name]))) > 1:
            raise BadInput(f"{path}: holds rows of {name} {said[0]} and {said[1]}, expected those of one run")
    require_each_once(results, WHERE, path)
    return ResultsTable(path, results, read_overlaps(results, path))


def compare_tables(table: ResultsTable, records: Sequence[Record]) -> None:
    """What results.csv says of rounds is what the ledger has.

    Weights, contributions, who was left out or flagged, whose update came before, what the guard saw and bounded, what
    sites enrolled; validation Dice, computed again from the voxels; and all rows of a round, by the ledger's digest.

    Raises:
        BadInput: the table has something else; the message names round, site, and what the ledger has.
    """
    values = _values_of_rounds(table, len(records))
    sites, sent = sorted({site for _, site, _ in values}), set[str]()
    for record in records:
        for site, quantity, said in _recorded(record, sites, sent):
            _require_same(values, table.path, record["round"], site, quantity, said)
        sent.update(record.get("updates", {}).values())
    _compare_enrolled(values, table, records)
    for quantity, part in TABLES.items():
        found = {(round, site) for (round, site, one), value in values.items() if one == quantity and value}
        extra = found - {(record["round"], site) for record in records for site in record.get(part, {})}
        if further := [cell for cell in extra if cell[0] != len(records)]:  # that round is unfinished, or of the end
            round, site = min(further)
            raise BadInput(f"{table.path}: has a {quantity} of {site} in round {round}, which the ledger has not")
    _compare_rows(table.path, records)


def _values_of_rounds(table: ResultsTable, rounds: int) -> dict[tuple[int, str, str], float]:
    """By round, site and quantity, what is of whole rounds; without what is empty, and Dice after these ``rounds``."""
    rows = table.rows[(table.rows["split"] == "") & (table.rows["coalition"] == "")].dropna(subset="value")
    columns = (rows[name] for name in ("round", "site", "quantity", "value"))
    values = {(round, site, quantity): float(value) for round, site, quantity, value in zip(*columns, strict=True)}
    for (round, split, site), counted in table.overlaps.items():
        if split == "validation" and round < rounds:
            values[round, site, "mean validation dice"] = mean_dice(counted)
    return values


def _recorded(record: Record, sites: Sequence[str], before: set[str]) -> Iterator[tuple[str, str, float | None]]:
    """Sites, quantities, and what a record says of them; ``before`` are the updates of rounds before it."""
    updates, took_part = record.get("updates", {}), record.get("participants", ())
    for quantity, part in TABLES.items():
        yield from ((site, quantity, said) for site, said in record.get(part, {}).items())
    for site, images in record.get("inputs", {}).get("counts", {}).items():
        yield site, "num_samples", images
    for site in sites:
        if site in took_part or site in record.get("rejected", {}):
            yield site, "rejected", None if site in took_part else 1.0
    times = Counter(updates.values())
    for site in took_part:
        yield site, "flagged", float(site in record.get("flagged", ()))
        yield site, "repeated", float(updates.get(site) in before or times[updates.get(site)] > 1)
    guard = record.get("guard", {})
    for site in took_part if "verdicts" in guard else ():
        yield site, "verdict", float(site in guard["verdicts"])
        yield site, "evidence", guard.get("evidence", {}).get(site, 0.0)
        for name in BOUNDS:
            bound = guard.get("bounds", {}).get(name, {}).get(site)
            if bound is not None or name in NEUTRAL:
                yield site, name, bound


def _require_same(values: Values, path: Path, round: int, site: str, quantity: str, said: float | None) -> None:
    found = values.get((round, site, quantity))
    one, other = (NEUTRAL.get(quantity, math.nan) if value is None else value for value in (found, said))
    one = float(f"{one:.{PLACES}f}") if quantity in ROUNDED else one
    if not (one == other or (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-12)):
        raise BadInput(f"{path}: {quantity} of {site} in round {round} is {found}, the ledger has {said}")


def _compare_enrolled(values: Values, table: ResultsTable, records: Sequence[Record]) -> None:
    """How many images and cases sites have, if they committed to that."""
    enrolled: dict[str, Record] = {}
    for record in records:
        round = record["round"]
        enrolled |= record.get("guard", {}).get("enrolled", {})
        for site in record.get("participants", ()):
            images = enrolled.get(site, {}).get("slices", {}).get("training")
            if images is not None and not may_train_on(values.get((round, site, "num_samples"), math.nan), images):
                _require_same(values, table.path, round, site, "num_samples", images)
    for (round, split, site), counted in sorted(table.overlaps.items()):
        if all(one.score is not None for one in counted):  # a script's, which enrols only what it trains on
            continue
        cases, found = enrolled.get(site, {}).get("cases", {}), len({one.case for one in counted})
        if split in ("validation", "testing") and round <= len(records) and found != cases.get(split, found):
            raise BadInput(
                f"{table.path}: has {found} {split} cases of {site} in round {round}; it enrolled {cases[split]}, as "
                "the ledger has it"
            )


def _compare_rows(path: Path, records: Sequence[Record]) -> None:
    """All rows of each round of which the ledger has a digest."""
    rows = {record["round"]: hashlib.sha256() for record in records if "rows" in record}
    try:
        with path.open(newline="") as file:
            for row in csv.DictReader(file) if rows else ():
                if row["split"] in ROUND_SPLITS and int(row["round"]) in rows:
                    rows[int(row["round"])].update(row_bytes(row))
    except (ValueError, TypeError, csv.Error) as error:
        raise BadInput(f"{path}: not readable as results ({error}); {EXPECTED}") from error
    for round, digest in rows.items():
        if digest.hexdigest() != records[round]["rows"]:
            raise BadInput(
                f"{path}: rows of round {round} are not those that the ledger has a digest of; some were changed, put "
                "in or taken out: take the file from somebody who got it when the run ended"
            )


def read_overlaps(results: pd.DataFrame, path: Path) -> dict[Cell, list[Overlap]]:
    """The voxel counts in a table of results; `BadInput` if Dice beside them is another than theirs."""
    counts = results[results["quantity"].isin(["dice", *COUNTS])]
    cases: dict[tuple[int, str, str, str, str, str], dict[str, float]] = {}
    columns = ("round", "split", "site", "patient", "case", "label", "quantity", "value")
    for *cell, quantity, value in zip(*(counts[name] for name in columns), strict=True):
        cases.setdefault(tuple(cell), {})[quantity] = value
    found: dict[Cell, list[Overlap]] = {}
    for (round, split, site, patient, case, label), values in cases.items():
        if split == UNION:
            continue
        if set(values) == {"dice"}:  # a script's score, of which no voxels are known
            found.setdefault((int(round), str(split), str(site)), []).append(
                Overlap.of_score(case, label, values["dice"])
            )
            continue
        if lacking := [name for name in ("dice", *COUNTS) if name not in values]:
            raise BadInput(
                f"{path}: {site} in round {round}, {split} case {case}, {label}: lacks {', '.join(lacking)}; "
                "expected dice and the voxels that it is of"
            )
        if not all(value >= 0 and float(value).is_integer() for value in map(values.__getitem__, COUNTS)):
            text = ", ".join(f"{name} {values[name]:g}" for name in COUNTS)
            raise BadInput(
                f"{path}: {site} in round {round}, {split} case {case}, {label}: {text}; expected whole numbers"
            )
        true_positives, false_positives, false_negatives = (int(values[name]) for name in COUNTS)
        overlap = Overlap(case, label, true_positives, false_positives, false_negatives, patient=patient)
        dice, said = overlap.dice, values.get("dice", math.nan)
        if not (math.isnan(said) if dice is None else math.isclose(dice, said, rel_tol=1e-12)):
            raise BadInput(
                f"{path}: dice of {site} in round {round}, {split} case {case}, {label}, is {said}; "
                f"its voxels give {dice}"
            )
        found.setdefault((int(round), str(split), str(site)), []).append(overlap)
    return found


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
ADDED = "it was put in: take the file from somebody who got it when the run ended"


def require_no_added_rows(table: ResultsTable, records: Sequence[Record], sites: Sequence[str]) -> None:
    """`BadInput` if a run of these rounds, which is over, has rows of another round, site, split or quantity.

    What its rounds hold is compared with their records; all else was measured at its end.

    Args:
        records: of its ledger; under what was rejected they may name others than sites, who have no rows.
        sites: of the run, beside those that took part.
    """
    rounds = len(records)
    known = {*sites, *(site for record in records for site in record["participants"])}
    cells = table.rows[["round", "split", "site", "coalition", "quantity"]].drop_duplicates()
    best = min(cells["round"][cells["split"] == BEST], default=-1)
    for round, split, site, coalition, quantity in cells.itertuples(index=False):
        what = f"{table.path}: has {quantity} of {site} in round {round}{split and f', {split}'}"
        if site not in known:
            raise BadInput(f"{what}; the run has no such site: {ADDED}")
        if 0 <= round < rounds and split in ROUND_SPLITS:
            continue
        written = {"validation": rounds, BEST: best if best < rounds else -1}.get(split, rounds - 1)
        if round != written or round < 0 or coalition or quantity not in FINAL_QUANTITIES.get(split, ()):
            raise BadInput(f"{what}, which no run of {rounds} rounds writes; {ADDED}")


def require_same_run(table: ResultsTable, run: Path) -> None:
    """`BadInput` if all rows are of another method, seed or fold than run.json has."""
    info = read_run(run) if (run / "run.json").exists() else {}
    for name in RUN:
        said, begun = sorted(set(map(str, table.rows[name]))), "" if info.get(name) is None else str(info[name])
        if name in info and said not in ([], [begun]):
            raise BadInput(f"{table.path}: is of {name} {said[0] or 'none'}, {run / 'run.json'} of {begun or 'none'}")
