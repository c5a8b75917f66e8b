"""Tables of the models beside the final ones: those of the best round, and those that sites take home."""

import pandas as pd

from evaluation.display.table import Table
from evaluation.results.dice import Dice
from evaluation.results.views import Results

BEST = "testing_best"
HOME = {"Given [%]": "testing_given", "Alone [%]": "testing_alone", "Takes home [%]": "testing_finished"}
OF_VALIDATION = {
    "Given, validation [%]": "validation_given",
    "Alone, validation [%]": "validation_alone",
    "Takes home, validation [%]": "validation_finished",
}


def other_models(results: Results) -> list[Table]:
    """Those that the results can fill: ``best_round`` and ``taken_home``."""
    tables = [_best_round(results), _taken_home(results)]
    return [table for table in tables if table is not None]


def _best_round(results: Results) -> Table | None:
    """A row per run; where the last round was the best, it is both."""
    best = _by_site(results, BEST)
    if best.empty:
        return None
    last = results.dice.sites["dice"]
    rows = results.rows[(results.rows["split"] == BEST) & (results.rows["quantity"] == "dice")]
    chosen = rows.groupby(["method", "seed"], observed=True)["round"].first()
    final, of_best = (dice.groupby(level=["method", "seed"], observed=True).mean() for dice in (last, best))
    frame = pd.DataFrame(
        {
            "Last round, test [%]": 100 * final,
            "Best round, test [%]": 100 * of_best.reindex(final.index),
            "Round": chosen.reindex(final.index),
        }
    )
    frame["Best round, test [%]"] = frame["Best round, test [%]"].fillna(frame["Last round, test [%]"])
    frame = frame.reset_index().rename(columns={"method": "Method", "seed": "Seed"}).astype({"Method": str})
    caption = (
        "The models of the round that validation patients liked best, beside the last; mean over sites. Everything "
        "else here is of the last round: on few validation patients the best round is partly chance"
    )
    return Table("best_round", caption, frame, decimals=1)


def _taken_home(results: Results) -> Table | None:
    """A row per method and site, mean over seeds."""
    columns = {name: _by_site(results, split) for name, split in {**HOME, **OF_VALIDATION}.items()}
    if columns["Takes home [%]"].empty:
        return None
    frame = (100 * pd.DataFrame(columns)).groupby(level=["method", "site"], observed=True).mean()
    frame = frame.reset_index().rename(columns={"method": "Method", "site": "Site"}).astype({"Method": str})
    caption = (
        "What each hospital takes home (finish=own): the model it was given, what it trains alone by the same recipe, "
        "and the best for its own validation patients of these and of the first fine-tuned there"
    )
    return Table("taken_home", caption, frame, decimals=1)


def _by_site(results: Results, split: str) -> "pd.Series[float]":
    """``(method, seed, site)``, the mean over cases of the mean over labels."""
    dice = Dice(results.rows, split)
    return pd.Series(dtype=float) if dice.rows.empty else dice.sites["dice"]
