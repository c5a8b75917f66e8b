"""What to know of a truth beside the values themselves: how good it is, other utilities, who gains by whose data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from evaluation.display.table import Table
from evaluation.results.ranks import Ranking, ranking
from evaluation.results.views import Results
from evaluation.truth.power import reliability_table
from evaluation.truth.reliability import POINTS, UTILITIES, Resampled, Values, by_weights, resample
from evaluation.truth.semivalues import (
    NOBODY,
    Coalition,
    FloatArray,
    coalition_of,
    leave_one_out_weights,
    shapley_weights,
)
from fedmerit.errors import BadInput

TRUTHS: Mapping[str, Values] = {
    "Shapley": by_weights(shapley_weights),
    "leave-one-out": by_weights(leave_one_out_weights),
}


@dataclass(frozen=True)
class Truths:
    """What the truths say that a folder of trained coalitions has whole; each is resampled once.

    Raises:
        BadInput: at the first question, where none of the truths is complete; the message says what each lacks.
    """

    results: Results
    values: Mapping[str, Values] = field(default_factory=lambda: TRUTHS)  # by name

    @cached_property
    def resampled(self) -> dict[str, Resampled]:
        """Those that are complete, by name."""
        return _complete(self.results, self.values)

    @cached_property
    def rankings(self) -> dict[str, Ranking]:
        """Their values [points], intervals and ranks."""
        return {name: ranking(one.sites, one.values).times(POINTS) for name, one in self.resampled.items()}

    def tables(self) -> list[Table]:
        """Reliability and ranks of each, Shapley values by other utilities, who gains by whom."""
        ranks = (_ranks(name, one) for name, one in self.rankings.items())
        first = next(iter(self.resampled))
        tables = [reliability_table(self.resampled), *ranks, _by_utility(self.results, first, self.values[first])]
        if first == "Shapley":
            tables.append(_who_gains(self.results, self.values[first]))
        return tables


def _complete(results: Results, values: Mapping[str, Values]) -> dict[str, Resampled]:
    found, lacking = dict[str, Resampled](), list[str]()
    for name, of in values.items():
        try:
            found[name] = resample(results, of)
        except BadInput as error:  # beside another, a truth that nobody asked for
            lacking.append(f"{name}: {error}")
    if not found:
        raise BadInput("; ".join(lacking))
    return found


def _ranks(name: str, one: Ranking) -> Table:
    scaled = one.table.assign(share=POINTS * one.table["share"])
    frame = scaled[["value", "share", "ranks", "as good as"]].reset_index()
    heads = {"site": "Site", "value": "Value [points]", "share": "Share [%]", "ranks": "Rank",
             "as good as": "Not told apart from"}  # fmt: skip
    empty = pd.DataFrame(np.nan, index=frame.index, columns=list(heads.values()))
    low, high = (empty.assign(**{"Value [points]": scaled[end].to_numpy()}) for end in ("low", "high"))
    told = "test patients and seeds" if one.seeds > 1 else "test patients, of one seed alone"
    caption = f"{name} values with 95 % intervals over {told}, ranks as intervals"
    return Table(f"{name.lower()}-ranks", caption, frame.rename(columns=heads), low=low, high=high, decimals=2)


def _by_utility(results: Results, name: str, values: Values) -> Table:
    columns = {}
    for utility, how in UTILITIES.items():
        try:
            one = resample(results, values, draws=2, utility=how)
        except BadInput:  # not recorded by earlier versions
            continue
        unit, factor = ("mm or px", 1.0) if how.sign < 0 else ("points", POINTS)
        columns[f"{utility} [{unit}]"] = pd.Series(factor * one.mean, one.sites)
    frame = pd.DataFrame(columns).rename_axis("Site").reset_index()
    caption = f"{name} values by what a model is worth; of a distance, what the site takes off it"
    return Table(f"{name.lower()}-by-utility", caption, frame, decimals=2)


def _who_gains(results: Results, values: Values) -> Table:
    """Shapley values (rows) for the Dice of each tested site (columns), mean over seeds."""
    dice = results.of_coalitions.dice.cases.groupby(level=["seed", "method", "site"]).mean().unstack("site")
    matrices = []
    for _, rows in dice.groupby(level="seed"):
        of_seed = rows.droplevel("seed")
        game: dict[Coalition, FloatArray] = {NOBODY: np.zeros(of_seed.shape[1])}
        game |= {coalition_of(str(text)): line.to_numpy(dtype=np.float64) for text, line in of_seed.iterrows()}
        if len(game) == 2 ** len(results.sites):
            matrices.append(values(game))
    frame = pd.DataFrame(POINTS * np.mean(matrices, axis=0), index=results.sites, columns=list(dice.columns))
    caption = "Who gains by whose data: Shapley values [points] of the row's site for the test Dice of the column's"
    return Table("shapley-by-site", caption, frame.rename_axis("Site").reset_index(), decimals=2)
