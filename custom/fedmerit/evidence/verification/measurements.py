"""Measurements in results.csv: against the matrix of cross-site tests, and against the answers in a site's log."""

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedmerit.errors import BadInput
from fedmerit.evidence.closing_record import CROSS_SITE
from fedmerit.evidence.verification.record_schema import Record
from fedmerit.evidence.verification.results import BEST, UNION, ResultsTable
from fedmerit.evidence.verification.site_logs import SiteLog
from fedmerit.files import read_json
from fedmerit.schema.messages import EVALUATE, TRAIN
from fedmerit.schema.results import FINAL_CANDIDATES
from fedmerit.schema.scores import mean_dice
from fedmerit.site.site_log import overlaps_digest

CHANGED = "take the file from somebody who got it when the run ended"


def compare_matrix(table: ResultsTable, run: Path) -> None:
    """`BadInput` if the matrix of a run that is over has other Dice than the table of its results, or no Dice."""
    path = run / CROSS_SITE
    if not path.exists():
        return
    matrix = read_json(path)
    if not _is_matrix(matrix):
        raise BadInput(f"{path}: no matrix of Dice by site and model; {CHANGED}")
    tested = {site: overlaps for (_, split, site), overlaps in table.overlaps.items() if split == "testing"}
    if missing := sorted(set(matrix) ^ set(tested)):
        raise BadInput(f"{path}: {missing[0]} is in it, or in the tests of {table.path}, and not in both; {CHANGED}")
    others = _cross_site_dice(table) if any(len(row) > 1 for row in matrix.values()) else {}
    for site, row in matrix.items():
        for model, said in row.items():
            dice = mean_dice(tested[site]) if len(row) == 1 else others.get((site, model), math.nan)
            if not math.isclose(said["dice"], dice, rel_tol=1e-9):
                raise BadInput(
                    f"{path}: Dice of {model} at {site} is {said['dice']}, {table.path} gives {dice}; {CHANGED}"
                )


def _is_matrix(matrix: Any) -> bool:
    return isinstance(matrix, Mapping) and all(
        isinstance(row, Mapping)
        and len(row)
        and all(isinstance(one, Mapping) and isinstance(one.get("dice"), float | int) for one in row.values())
        for row in matrix.values()
    )


def _cross_site_dice(table: ResultsTable) -> dict[tuple[str, str], float]:
    """Mean Dice by whose cases and whose model: over cases of the mean over labels; 0 if there is none."""
    rows = table.rows[(table.rows["split"] == UNION) & (table.rows["quantity"] == "dice")]
    rows = rows.assign(tester=rows["case"].str.rpartition("/")[0])
    of_cases = rows.groupby(["tester", "site", "case"])["value"].mean()
    means = of_cases.groupby(level=["tester", "site"]).mean().fillna(0.0).reset_index()
    return {(str(tester), str(model)): float(dice) for tester, model, dice in means.itertuples(index=False)}


# splits measured once all rounds are over
FINAL_SPLITS = ("testing_", *(f"validation_{name}" for name in FINAL_CANDIDATES))


def compare_answers(
    table: ResultsTable, records: Sequence[Record], rounds: int, log: SiteLog, sites: Sequence[str]
) -> tuple[int, list[str]]:
    """A site's own measurements, and its images, in results.csv are what its log says that it answered.

    Args:
        sites: of the run, in the order of their models.

    Returns:
        How many of them; in sentences, which of them the log, or results.csv, is silent on.

    Raises:
        BadInput: one is another, or is left out.
    """
    path, overlaps, compared, silent = table.path, table.overlaps, 0, []
    answered: dict[tuple[int, str], set[str]] = {}
    for entry in log.entries:  # results.csv has of a round the model that it began with, at the end what is tested
        is_shown = entry["work"] == TRAIN or (entry["work"] == EVALUATE and entry["round"] >= rounds)
        if is_shown and "overlaps" in entry:
            split = entry.get("split", "validation")
            answered.setdefault((entry["round"], split), set()).update(entry["overlaps"])
    taken = [record["round"] for record in records if log.site in record["participants"]]
    rows = {(round, "validation"): (round, "validation") for round in taken}
    _compare_images(path, log, {round for round, _ in rows}, table.rows)
    needed = set(rows)
    rows[rounds, "validation"], rows[rounds - 1, "testing"] = (rounds, "validation"), (rounds, "testing")
    for round, split, _ in overlaps:  # of the best round's model, and of those that a site chose among
        if split.startswith(FINAL_SPLITS):
            rows[round, split] = rounds, split.partition("_")[0]
    shown: dict[tuple[int, str], set[str]] = {}
    for (round, split, site), counted in overlaps.items():
        if site == log.site and (round, split) in rows:
            shown.setdefault(rows[round, split], set()).add(overlaps_digest(counted))
    for (round, split), asked in rows.items():
        counts, said = overlaps.get((round, split, log.site)), answered.get(asked)
        what = f"{split} measurements of {log.site} in round {round}"
        if said is None:
            silent += [f"that {what} are its own: its log has none"] if counts else []
        elif counts is None:
            if (round, split) in needed:
                raise BadInput(f"{path}: lacks {what}; {log.path} has what it answered")
            if not said <= shown.get(asked, set()):  # it may have refused only this model
                silent.append(f"why {what} are not in results.csv: by its log it answered")
        else:
            models = _received_models(records, rounds, round, split, log.site)
            if overlaps_digest(counts) not in (_matching_answers(models, log, asked, sites) or said):
                raise BadInput(f"{path}: {what} are not what it answered, by {log.path}")
            compared += 1
    return compared, silent


def _received_models(records: Sequence[Record], rounds: int, round: int, split: str, site: str) -> set[str]:
    """What a site received, by the ledger's digests, of which results.csv has measurements at a run's end.

    The final models of all, or the one that all have; of the best round those that it began with, or the site's own.
    """
    if not records or len(records) < rounds:
        return set()
    found: list[str | None] = []
    if (round, split) in ((rounds, "validation"), (rounds - 1, "testing")):
        found = [records[-1].get("model"), records[-1].get("ended", {}).get(site)]
    elif split == BEST and 0 <= round < rounds:
        found = [records[round]["began"].get(site), records[round - 1].get("model") if round else None]
    return {digest for digest in found if digest is not None}


def _matching_answers(models: Collection[str], log: SiteLog, asked: tuple[int, str], sites: Sequence[str]) -> set[str]:
    """What a site answered of its own, or the only, one of these models; nothing if its log does not show that.

    Their order is that of the sites. A site that selects its final model answers about three.
    """
    answers = [
        entry["overlaps"]
        for entry in log.entries
        if entry["work"] == EVALUATE and (entry["round"], entry.get("split")) == asked
        if entry.get("received") in models and "overlaps" in entry
    ]
    if single := [digests for digests in answers if len(digests) == 1]:
        return {digests[0] for digests in single}
    if log.site not in sites or any(len(digests) != len(sites) for digests in answers):
        return set()
    return {digests[sites.index(log.site)] for digests in answers}


def _compare_images(path: Path, log: SiteLog, taken: Collection[int], results: pd.DataFrame) -> None:
    """How many images it trained on, by which it may be weighed."""
    sent: dict[int, set[int]] = {}
    for entry in log.entries:
        if entry["work"] == TRAIN and "images" in entry:
            sent.setdefault(entry["round"], set()).add(entry["images"])
    rows = results[(results["quantity"] == "num_samples") & (results["site"] == log.site)]
    for round, value in zip(rows["round"], rows["value"], strict=True):
        said = sent.get(round, {value}) if round in taken else {value}
        if value not in said:
            raise BadInput(
                f"{path}: num_samples of {log.site} in round {round} is {value:g}, {log.path} has {min(said)}"
            )
