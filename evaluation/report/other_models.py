"""Tables of the models beside the final ones: those of the best round, and those that sites take home."""

import pandas as pd

from evaluation.display.table import HEADINGS, Table
from evaluation.report.parts import surface_columns
from evaluation.results.dice import OWN, RUN, Dice
from evaluation.results.views import Results

BEST = "testing_best"
HOME = {"Given": "given", "Alone": "alone", "Takes home": "finished"}  # by the ends of the splits' names
DICE = HEADINGS["dice"]


def other_models(results: Results) -> list[Table]:
    """Those that the results can fill: ``best_round``, ``taken_home`` and ``taken_home_surfaces``."""
    return [*_best_round(results), *taken_home(results)]


def _best_round(results: Results) -> list[Table]:
    """A row per run; where the last round was the best, it is both."""
    best = _by_site(results, BEST)
    if best.empty:
        return []
    rows = results.rows[(results.rows["split"] == BEST) & (results.rows["quantity"] == "dice")]
    chosen = rows.groupby(RUN, observed=True)["round"].first()
    last, best = (table.groupby(level=RUN, observed=True).mean() for table in (_by_site(results, OWN), best))
    both = {"Last round": last, "Best round": best.reindex(last.index).fillna(last)}
    shown = {f"{when}, {name}": table[name] for name in best if name in last for when, table in both.items()}
    frame = pd.DataFrame(shown | {"Round": chosen.reindex(last.index)})
    frame = frame.reset_index().rename(columns={"method": "Method", "seed": "Seed"}).astype({"Method": str})
    caption = (
        "The models of the round that validation patients liked best, beside the last, on test patients; mean over "
        "sites. Everything else here is of the last round: on few validation patients the best round is partly chance"
    )
    return [Table("best_round", caption, frame, decimals=1)]


def taken_home(results: Results, whom: str = "each hospital") -> list[Table]:
    """``taken_home`` and ``taken_home_surfaces``, where there are any: a row per method and site, mean over seeds."""
    tested = {name: _by_site(results, f"testing_{end}") for name, end in HOME.items()}
    if tested["Takes home"].empty:
        return []
    validated = {name: _by_site(results, f"validation_{end}") for name, end in HOME.items()}
    dice = {f"{name}, {DICE}": table[DICE] for name, table in tested.items() if DICE in table}
    dice |= {f"{name}, validation {DICE}": table[DICE] for name, table in validated.items() if DICE in table}
    surfaces = {f"{name}, {other}": tested[name][other] for other in tested["Takes home"] if other != DICE
                for name in tested if other in tested[name]}  # fmt: skip
    caption = (
        f"What {whom} takes home (finish=own): the model it was given, what it trains alone by the same recipe, "
        "and the best for its own validation patients of these and of the first fine-tuned there"
    )
    found = [_of_sites("taken_home", caption, dice)]
    if surfaces:
        caption = f"How far surfaces of prediction and reference lie apart by what {whom} takes home"
        found.append(_of_sites("taken_home_surfaces", caption, surfaces))
    return found


def _of_sites(name: str, caption: str, columns: dict[str, pd.Series]) -> Table:
    frame = pd.DataFrame(columns).groupby(level=["method", "site"], observed=True).mean()
    frame = frame.reset_index().rename(columns={"method": "Method", "site": "Site"}).astype({"Method": str})
    return Table(name, caption, frame, decimals=1)


def _by_site(results: Results, split: str) -> pd.DataFrame:
    """``(method, seed, site)`` x Dice and surfaces by heading: the mean over cases of the mean over labels."""
    dice = Dice(results.rows, split)
    if dice.rows.empty:
        return pd.DataFrame()
    return pd.DataFrame({DICE: 100 * dice.sites["dice"], **surface_columns(dice.sites)})
