"""results.csv against what the ledger, and the sites' own logs, say of the same rounds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from fedmerit.errors import BadInput
from fedmerit.federation.site_log import digest_of_counts
from fedmerit.records.results import read_results
from fedmerit.training.overlaps import COUNTS, Overlap, mean_dice
from fedmerit.verification.site_chains import Log, Record
from fedmerit.wire.messages import EVALUATE, TRAIN

TABLES: Mapping[str, str] = {"weight": "weights", "contribution": "contributions"}  # by quantity, its part of a record
Cell = tuple[int, str, str]  # round, split, site


def compare_tables(run: Path, records: Sequence[Record]) -> None:
    """`BadInput` where weights, contributions or validation Dice in results.csv are not those of the ledger.

    Dice is counted anew from the voxels.
    """
    results, path = read_results(run), run / "results.csv"
    whole = results[(results["split"] == "") & (results["coalition"] == "")]
    values = {
        (int(round), str(site), str(quantity)): float(value)
        for round, site, quantity, value in zip(
            whole["round"], whole["site"], whole["quantity"], whole["value"], strict=True
        )
    }
    overlaps = overlaps_of(results, path)
    for record in records:
        round = record["round"]
        for quantity, part in TABLES.items():
            for site, said in record.get(part, {}).items():
                _require_same(values.get((round, site, quantity)), said, path, round, site, quantity)
        for site, dice in record.get("validation_dice", {}).items():
            found = mean_dice(overlaps.get((round, "validation", site), ()))
            _require_same(found, dice, path, round, site, "mean validation dice")
    extra = {(round, site) for round, site, name in values if name == "weight" and values[round, site, name]} - {
        (record["round"], site) for record in records for site in record["weights"]
    }
    if further := [cell for cell in extra if cell[0] != len(records)]:  # a round that a crash cut short may stand there
        round, site = min(further)
        raise BadInput(f"{path}: has a weight of {site} in round {round}, which the ledger has not")


def _require_same(found: float | None, said: float | None, path: Path, round: int, site: str, quantity: str) -> None:
    one, other = (math.nan if value is None else value for value in (found, said))
    if not (one == other or (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-12)):
        raise BadInput(f"{path}: {quantity} of {site} in round {round} is {found}, the ledger has {said}")


def overlaps_of(results: pd.DataFrame, path: Path) -> dict[Cell, list[Overlap]]:
    """The voxel counts in a table of results; `BadInput` where Dice beside them is another than theirs."""
    counts = results[results["quantity"].isin(["dice", *COUNTS])]
    cases: dict[tuple[int, str, str, str, str], dict[str, float]] = {}
    columns = ("round", "split", "site", "case", "label", "quantity", "value")
    for *cell, quantity, value in zip(*(counts[name] for name in columns), strict=True):
        cases.setdefault(tuple(cell), {})[quantity] = value
    found: dict[Cell, list[Overlap]] = {}
    for (round, split, site, case, label), values in cases.items():
        if not set(COUNTS) <= set(values):
            continue  # such as those on the union of all test images
        if not all(value >= 0 and float(value).is_integer() for value in map(values.__getitem__, COUNTS)):
            told = ", ".join(f"{name} {values[name]:g}" for name in COUNTS)
            raise BadInput(
                f"{path}: {site} in round {round}, {split} case {case}, {label}: {told}; expected whole numbers"
            )
        true_positives, false_positives, false_negatives = (int(values[name]) for name in COUNTS)
        overlap = Overlap(case, label, true_positives, false_positives, false_negatives)
        dice, said = overlap.dice, values.get("dice", math.nan)
        if not (math.isnan(said) if dice is None else math.isclose(dice, said, rel_tol=1e-12)):
            raise BadInput(
                f"{path}: dice of {site} in round {round}, {split} case {case}, {label}, is {said}; "
                f"its voxels give {dice}"
            )
        found.setdefault((int(round), str(split), str(site)), []).append(overlap)
    return found


def compare_answers(run: Path, rounds: int, log: Log, taken: Iterable[int]) -> int:
    """How many of a site's own measurements in results.csv are what its log says that it answered.

    Args:
        run: the run folder.
        rounds: of the run.
        log: of the site.
        taken: the rounds whose ledger record has the site.

    Raises:
        BadInput: one is another.
    """
    path, compared = run / "results.csv", 0
    overlaps = overlaps_of(read_results(run), path)
    answered: dict[tuple[int, str], set[str]] = {}
    for entry in log.entries:
        if entry["work"] in (TRAIN, EVALUATE) and "overlaps" in entry:
            split = entry.get("split", "validation")
            answered.setdefault((entry["round"], split), set()).update(entry["overlaps"])
    rows = {(round, "validation"): (round, "validation") for round in taken}
    rows[rounds, "validation"], rows[rounds - 1, "testing"] = (rounds, "validation"), (rounds, "testing")
    for (round, split), asked in rows.items():
        counts = overlaps.get((round, split, log.site))
        if asked not in answered or counts is None:
            continue
        told = digest_of_counts(
            (one.case, one.label, one.true_positives, one.false_positives, one.false_negatives) for one in counts
        )
        if told not in answered[asked]:
            raise BadInput(
                f"{path}: {split} measurements of {log.site} in round {round} are not what it answered, by {log.path}"
            )
        compared += 1
    return compared
