"""results.csv against the ledger's records of the same rounds, and rows in it that no such run writes."""

import csv
import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from fedmerit.errors import BadInput
from fedmerit.records.results import (
    EXPECTED,
    FINAL_CANDIDATES,
    ROUND_SPLITS,
    read_results,
    require_each_once,
    row_bytes,
)
from fedmerit.records.run_info import read_run
from fedmerit.site.enrolment import may_train_on
from fedmerit.trainers.monai_trainer.overlaps import COUNTS, Overlap, mean_dice
from fedmerit.verification.record_schema import Record

TABLES: Mapping[str, str] = {
    "weight": "weights",
    "contribution": "contributions",
    "reputation": "reputations",
    "quota": "quotas",
}  # by quantity, its part of a record
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
    path, results, overlaps = table.path, table.rows, table.overlaps
    whole = results[(results["split"] == "") & (results["coalition"] == "")]
    values = {
        (int(round), str(site), str(quantity)): float(value)
        for round, site, quantity, value in zip(
            whole["round"], whole["site"], whole["quantity"], whole["value"], strict=True
        )
    }
    for record in records:
        round = record["round"]
        for quantity, part in TABLES.items():
            for site, said in record.get(part, {}).items():
                _require_same(values.get((round, site, quantity)), said, path, round, site, quantity)
        for site, dice in record.get("validation_dice", {}).items():
            found = mean_dice(overlaps.get((round, "validation", site), ()))
            _require_same(found, dice, path, round, site, "mean validation dice")
        for site, images in record.get("inputs", {}).get("counts", {}).items():
            _require_same(values.get((round, site, "num_samples")), images, path, round, site, "num_samples")
        _compare_participants(values, record, path)
        if "verdicts" in record.get("guard", {}):
            _compare_guard(values, record, path)
    _compare_repeated(values, records, path)
    _compare_enrolled(values, overlaps, records, path)
    for name, part in (*TABLES.items(), ("mean validation dice", "validation_dice")):
        _require_no_extra(values, overlaps, records, path, name, part)
    _compare_rows(path, records)


def _require_no_extra(
    values: Values,
    overlaps: Mapping[Cell, Sequence[Overlap]],
    records: Sequence[Record],
    path: Path,
    name: str,
    part: str,
) -> None:
    """`BadInput` if the table has a ``part`` of records of a site that they have not."""
    if part == "validation_dice":
        found = {(round, site) for round, split, site in overlaps if split == "validation"}
        found = {cell for cell in found if cell[0] < len(records)}  # then comes that of the final models
    else:
        found = {(round, site) for (round, site, one), value in values.items() if one == name and value}
    known = {(record["round"], site) for record in records for site in record.get(part, {})}
    extra = found - known if any(part in record for record in records) else ()
    if further := [cell for cell in extra if cell[0] != len(records)]:  # the last may be a round that a crash cut short
        round, site = min(further)
        raise BadInput(f"{path}: has a {name} of {site} in round {round}, which the ledger has not")


def _compare_participants(values: Values, record: Record, path: Path) -> None:
    """Who took part, who was left out, and who was flagged."""
    round, sites = record["round"], {site for _, site, _ in values}
    for site in sites:
        took_part, left_out = site in record.get("participants", ()), site in record.get("rejected", {})
        if took_part or left_out:
            said = None if took_part else 1.0
            _require_same(values.get((round, site, "rejected")), said, path, round, site, "rejected")
        flagged = values.get((round, site, "flagged"))
        if took_part and bool(flagged) != (site in record.get("flagged", ())):
            said = float(site in record.get("flagged", ()))
            raise BadInput(f"{path}: flagged of {site} in round {round} is {flagged}, the ledger has {said}")


def _compare_guard(values: Values, record: Record, path: Path) -> None:
    """What the guard saw against sites, and what it bounded."""
    round, guard = record["round"], record["guard"]
    for site in record["participants"]:
        said = float(site in guard["verdicts"])
        _require_same(values.get((round, site, "verdict")), said, path, round, site, "verdict")
        evidence = values.get((round, site, "evidence"))
        shown = None if evidence is None else _rounded(evidence)
        _require_same(shown, guard.get("evidence", {}).get(site, 0.0), path, round, site, "evidence")
        for name in ("clipped", "statistics_bound", "reward_group_share", "counted_images"):
            bound, found = guard.get("bounds", {}).get(name, {}).get(site), values.get((round, site, name))
            if bound is not None:
                rounded = None if found is None else _rounded(found)
                _require_same(rounded, bound, path, round, site, name)
            elif name != "counted_images" and found is not None and found < 1:
                raise BadInput(f"{path}: {name} of {site} in round {round} is {found}, the ledger has no such bound")


def _rounded(value: float) -> float:
    return round(value, PLACES)


def _compare_repeated(values: Values, records: Sequence[Record], path: Path) -> None:
    """Whose update had come before, as the updates in the ledger show."""
    before: set[str] = set()
    for record in records:
        round, updates = record["round"], record.get("updates", {})
        times = Counter(updates.values())
        for site in record.get("participants", ()):
            sent = updates.get(site)
            said = float(sent in before or times[sent] > 1)
            _require_same(values.get((round, site, "repeated")), said, path, round, site, "repeated")
        before.update(updates.values())


def _compare_enrolled(
    values: Values, overlaps: Mapping[Cell, Sequence[Overlap]], records: Sequence[Record], path: Path
) -> None:
    """How many images and cases sites have, if they committed to that."""
    enrolled: dict[str, Record] = {}
    for record in records:
        round = record["round"]
        enrolled |= record.get("guard", {}).get("enrolled", {})
        for site in record.get("participants", ()):
            images = enrolled.get(site, {}).get("slices", {}).get("training")
            if images is not None and not may_train_on(values.get((round, site, "num_samples"), math.nan), images):
                _require_same(values.get((round, site, "num_samples")), images, path, round, site, "num_samples")
    for (round, split, site), counted in sorted(overlaps.items()):
        if all(one.score is not None for one in counted):  # a script's, which enrols only what it trains on
            continue
        cases, found = enrolled.get(site, {}).get("cases", {}), len({one.case for one in counted})
        if split in ("validation", "testing") and round <= len(records) and found != cases.get(split, found):
            raise BadInput(
                f"{path}: has {found} {split} cases of {site} in round {round}; it enrolled {cases[split]}, as the "
                "ledger has it"
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


def _require_same(found: float | None, said: float | None, path: Path, round: int, site: str, quantity: str) -> None:
    one, other = (math.nan if value is None else value for value in (found, said))
    if not (one == other or (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-12)):
        raise BadInput(f"{path}: {quantity} of {site} in round {round} is {found}, the ledger has {said}")


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
        table: of the run.
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
