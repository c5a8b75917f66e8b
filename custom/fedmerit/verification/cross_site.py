"""The matrix of cross-site tests against the tests in results.csv that it is made of."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmerit.errors import BadInput
from fedmerit.federation.recorder import CROSS_SITE
from fedmerit.files import read_json
from fedmerit.training.overlaps import mean_dice
from fedmerit.verification.result_tables import UNION, Table

CHANGED = "take the file from whom it was sent to when the run ended"


def compare_matrix(table: Table, run: Path) -> None:
    """`BadInput` where the matrix of a run that is over has other Dice than the table of its results, or no Dice."""
    path = run / CROSS_SITE
    if not path.exists():
        return
    matrix = read_json(path)
    if not _is_matrix(matrix):
        raise BadInput(f"{path}: no matrix of Dice by site and model; {CHANGED}")
    tested = {site: overlaps for (_, split, site), overlaps in table.overlaps.items() if split == "testing"}
    if missing := sorted(set(matrix) ^ set(tested)):
        raise BadInput(f"{path}: {missing[0]} is in it, or in the tests of {table.path}, and not in both; {CHANGED}")
    others = _on_others(table) if any(len(row) > 1 for row in matrix.values()) else {}
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


def _on_others(table: Table) -> dict[tuple[str, str], float]:
    """Mean Dice by whose cases and whose model: over cases of the mean over labels; 0 where there is none."""
    rows = table.rows[(table.rows["split"] == UNION) & (table.rows["quantity"] == "dice")]
    rows = rows.assign(tester=rows["case"].str.rpartition("/")[0])
    of_cases = rows.groupby(["tester", "site", "case"])["value"].mean()
    means = of_cases.groupby(level=["tester", "site"]).mean().fillna(0.0).reset_index()
    return {(str(tester), str(model)): float(dice) for tester, model, dice in means.itertuples(index=False)}
