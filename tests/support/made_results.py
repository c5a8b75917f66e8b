"""Results made for the tests row by row, where a run folder would hold more than they ask for."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fedmerit.schema.results import COLUMNS, Row
from fedmerit_evaluation.results.runs import Run
from fedmerit_evaluation.results.views import Results

SITES = ("Alder", "Birch", "Cedar")
LAST = 5  # the round that is tested


def made_row(
    method: str, seed: int, number: int, site: str, quantity: str, value: float | None, split: str = "", case: str = ""
) -> Row:
    """One row of results; a row of a split is of the label ``prostate``."""
    return Row("x", method, seed, number, site, quantity, value, split, case, "prostate" if split else "")


def made_results(rows: Sequence[Row], methods: Sequence[str]) -> Results:
    """Rows as results, whose methods come in this order."""
    table = pd.DataFrame([vars(row) for row in rows], columns=COLUMNS).astype({"value": float})
    return Results(table.assign(method=pd.Categorical(table["method"], methods)))


def made_dice(
    dice: Mapping[str, Sequence[float]],
    *,
    cases: int = 6,
    seeds: int = 3,
    noise: float = 0.02,
    sites: Sequence[str] = SITES,
    rounds: Sequence[Row] = (),
) -> Results:
    """Test Dice by method, one level per site, with noise that all methods of a case share; and rows of rounds."""
    random = np.random.default_rng(0)
    shared = random.normal(0, noise, (seeds, len(sites), cases))
    rows = [
        made_row(method, seed, LAST, site, "dice", level + shared[seed, place, case], "testing", f"{case:03d}")
        for method, levels in dice.items()
        for seed in range(seeds)
        for place, (site, level) in enumerate(zip(sites, levels, strict=True))
        for case in range(cases)
    ]
    return made_results([*rows, *rounds], list(dice))


def made_rounds(
    quantity: str, values: Mapping[str, Sequence[Sequence[float]]], sites: Sequence[str] = SITES
) -> list[Row]:
    """Rows of one quantity in round 0: by method, of every site a number per seed."""
    return [
        made_row(method, seed, 0, site, quantity, value)
        for method, of_sites in values.items()
        for site, of_seeds in zip(sites, of_sites, strict=True)
        for seed, value in enumerate(of_seeds)
    ]


def made_runs(results: Results, folder: Path) -> list[Run]:
    """The runs that these results would be of, labelled as their methods; nothing lies in ``folder``."""
    rows = results.rows
    return [
        Run(
            folder / f"{method}-{seed}",
            {"method": str(method), "seed": seed, "sites": results.sites, "rounds": LAST + 1, "parameters": {}},
            Results(own),
            str(method),
        )
        for (method, seed), own in rows.groupby(["method", "seed"], observed=True)
    ]
