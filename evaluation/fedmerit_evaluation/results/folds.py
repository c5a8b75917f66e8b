"""Runs of several folds as one run of each method and seed, in which every patient is tested once."""

import pandas as pd

RECORDED = ["round", "site", "coalition", "split", "label", "quantity"]  # what a row without a case is of


def has_folds(rows: pd.DataFrame) -> bool:
    """Whether rows of results are of several folds."""
    return bool(rows["fold"].nunique() > 1)


def pool_folds(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with cases named by their fold, ``2:003``, and means over folds of what is recorded by site and round.

    Unchanged if they are not of several folds.
    """
    if not has_folds(rows):
        return rows
    tested = rows[rows["case"] != ""]
    places = [case.rpartition("/") for case in tested["case"]]
    named = tested.assign(
        case=[f"{at}{bar}{fold}:{case}" for (at, bar, case), fold in zip(places, tested["fold"], strict=True)]
    )
    return pd.concat([named, _means(rows, "seed").assign(fold="")], ignore_index=True)[list(rows)]


def folds_as_seeds(rows: pd.DataFrame) -> pd.DataFrame:
    """What is recorded by site and round, mean over seeds, with the fold as the seed: what CIs over folds are of."""
    return _means(rows, "fold").assign(seed=lambda table: table["fold"].astype(int))[list(rows)]


def _means(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """Of rows without a case the mean by method and ``by``."""
    of = rows[rows["case"] == ""].groupby(["method", by, *RECORDED], observed=True, sort=False)["value"].mean()
    return of.reset_index().assign(run="", case="", patient="", **({"fold": ""} if by == "seed" else {"seed": 0}))
