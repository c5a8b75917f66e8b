"""What runs recorded in their rounds: views of the long results table that are computed once."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, wraps

import pandas as pd

from evaluation.results import intervals
from evaluation.results.dice import RUN, SITE

View = Callable[["Rounds", str], pd.DataFrame]


def _once_each(view: View) -> View:
    """A view that takes a name, computed once for each."""

    @wraps(view)
    def kept(self: "Rounds", name: str) -> pd.DataFrame:
        key = (view.__name__, name)
        if key not in self._kept:
            self._kept[key] = view(self, name)
        return self._kept[key]

    return kept


@dataclass(frozen=True, eq=False)
class Rounds:
    """What was recorded round by round."""

    results: pd.DataFrame
    _kept: dict[tuple[str, str], pd.DataFrame] = field(default_factory=dict, init=False, repr=False)

    @_once_each
    def of(self, quantity: str) -> pd.DataFrame:
        """One quantity: ``(method, seed, round)`` x sites; NaN where a site was absent."""
        return self._rows(quantity).pivot(index=[*RUN, "round"], columns="site", values="value")

    @_once_each
    def pairs(self, quantity: str) -> pd.DataFrame:
        """What sites hold of each other, mean over seeds: ``(method, round, holder)`` x sites; NaN on the diagonal."""
        keys = ["method", "round", "coalition", "site"]
        held = self._rows(quantity).groupby(keys, observed=True)["value"].mean()
        return held.unstack("site").rename_axis(index={"coalition": "holder"})

    @_once_each
    def dice(self, split: str) -> pd.DataFrame:
        """Dice, mean over cases and labels alike: ``(method, seed, round)`` x sites.

        Args:
            split: ``validation``, of the model received; ``validation_trained``, of what the site made of it.
        """
        return self._dice_rows(split).groupby([*RUN, "round", "site"])["value"].mean().unstack("site")

    @cached_property
    def validation(self) -> pd.DataFrame:
        """Validation Dice of the model each site received, mean over cases of the mean over labels, as `of`.

        Without the final models: their masks are made in another way, and do not go on with these.
        """
        cases = self._dice_rows("validation").groupby([*RUN, "round", "site", "case"])["value"].mean()
        rounds = cases.groupby(level=[*RUN, "round", "site"]).mean().unstack("site")
        trained = self.of("num_samples").reset_index("round")["round"].groupby(level=RUN).max()
        table = rounds.reset_index("round")
        last = trained.reindex(table.index).fillna(math.inf)
        return table[table["round"] <= last].set_index("round", append=True)

    @cached_property
    def contributions(self) -> pd.DataFrame:
        """What each site brought and was given: ``(method, seed, site)`` x the quantities that the method records.

        ``num_samples``; ``weight``, ``contribution``, ``reputation`` of the last round, and ``mean_...`` over rounds;
        ``share`` of the sum of mean contributions, 0 to 1 where none is negative, of runs in which they differ and sum
        to more than 0; ``flagged``, ``rejected``: in how many rounds, where any site was.
        """
        columns: dict[str, pd.Series] = {}
        for quantity in ("num_samples", "weight", "contribution", "reputation", "flagged", "rejected"):
            rounds = self.of(quantity)
            runs = rounds.groupby(level=RUN)
            if quantity in ("flagged", "rejected"):
                columns[quantity] = _stacked(runs.sum())
                continue
            last = rounds[rounds.index.get_level_values("round") == _last_round(rounds)].droplevel("round")
            columns[quantity] = _stacked(last)
            if quantity != "num_samples":
                columns[f"mean_{quantity}"] = _stacked(runs.mean())
        columns["share"] = _shares(columns["mean_contribution"])
        table = pd.DataFrame(columns).rename_axis(SITE).dropna(axis=1, how="all")
        counts = {name: table[name].fillna(0).astype(int) for name in ("flagged", "rejected") if name in table}
        return table.assign(**counts).drop(columns=[name for name, rounds in counts.items() if not rounds.any()])

    @cached_property
    def ranks(self) -> pd.DataFrame:
        """How stable the order of contributions is: ``(method, site)`` x ``best, worst`` rank over seeds, 1 highest.

        Of methods with several seeds and differing contributions; ranks are of their mean over rounds.
        """
        table = self.of("contribution").groupby(level=RUN).mean()
        table = table[table.max(axis=1) > table.min(axis=1)]
        several = table.groupby(level="method").transform("size") > 1
        ranks = table[several].rank(axis=1, ascending=False, method="min").groupby(level="method")
        both = {"best": _stacked(ranks.min()), "worst": _stacked(ranks.max())}
        return pd.DataFrame(both).rename_axis(["method", "site"])

    @cached_property
    def intervals(self) -> pd.DataFrame:
        """`evaluation.results.intervals.of_contributions`, of their means over rounds."""
        if "mean_contribution" not in self.contributions:
            return intervals.NONE
        return intervals.of_contributions(pd.Series(self.contributions["mean_contribution"]).dropna())

    @cached_property
    def share_intervals(self) -> pd.DataFrame:
        """Likewise of their shares, of methods that have them in every seed: ``(method, of)`` x numbers."""
        if "share" not in self.contributions:
            return intervals.of_sites(intervals.NONE, "contribution")
        shares = self.contributions["share"].groupby(level="method", observed=True)
        known = shares.filter(lambda of_method: bool(of_method.notna().any()))
        missing = known.isna().groupby(level=["method", "seed"], observed=True).transform("all")
        telling = ~missing.groupby(level="method", observed=True).transform("any")
        told = known[telling].dropna()
        bounds = min(0.0, told.min()), max(1.0, told.max())  # beyond 0 to 1 only where contributions of both signs are
        return intervals.of_sites(intervals.of_contributions(told, bounds), "contribution")

    @cached_property
    def costs(self) -> pd.DataFrame:
        """Mean cost of a round: ``(method, seed, site)`` x ``seconds, bytes_sent, bytes_received``, where recorded."""
        names = ("seconds", "bytes_sent", "bytes_received")
        table = pd.DataFrame({name: _stacked(self.of(name).groupby(level=RUN).mean()) for name in names})
        return table.rename_axis(SITE).dropna(axis=1, how="all")

    def _rows(self, quantity: str) -> pd.DataFrame:
        return self.results[(self.results["split"] == "") & (self.results["quantity"] == quantity)]

    def _dice_rows(self, split: str) -> pd.DataFrame:
        return self.results[(self.results["split"] == split) & (self.results["quantity"] == "dice")]


def _shares(values: pd.Series) -> pd.Series:
    """Of each run's sum, where that and the differences mean something."""
    runs = values.groupby(level=RUN, observed=True)
    total = runs.transform("sum")
    return pd.Series((values / total).where((total > 0) & (runs.transform("max") > runs.transform("min"))))


def _stacked(table: pd.DataFrame) -> pd.Series:
    """Columns as the last level of the index."""
    return pd.Series(table.stack())


def _last_round(rounds: pd.DataFrame) -> pd.Series:
    number = rounds.index.get_level_values("round").to_series(index=rounds.index)
    return number.groupby(level=RUN).transform("max")
