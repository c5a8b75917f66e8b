"""Views of the long results table for tables, figures and reports; each is computed once."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, wraps

import numpy as np
import pandas as pd

from fedmerit_evaluation.results.dice import OWN, RUN, SITE, SURFACES, UNION, VALIDATION, Dice, UnionDice
from fedmerit_evaluation.statistics import intervals
from fedmerit_evaluation.statistics.inference import MIN_FOLDS, MIN_SEEDS
from fedmerit_evaluation.statistics.ranks import Ranking, ranking

View = Callable[["Rounds", str], pd.DataFrame]


def _once_each(view: View) -> View:

    @wraps(view)
    def kept(self: "Rounds", name: str) -> pd.DataFrame:
        key = (view.__name__, name)
        if key not in self._kept:
            self._kept[key] = view(self, name)
        return self._kept[key]

    return kept


@dataclass(frozen=True, eq=False)
class Rounds:
    """Views of what was recorded round by round."""

    results: pd.DataFrame
    folds: pd.DataFrame | None = None  # of runs of several folds: these as seeds, which intervals are over
    number_of_folds: int = 0  # if the seeds of ``results`` are folds
    _kept: dict[tuple[str, str], pd.DataFrame] = field(default_factory=dict, init=False, repr=False)

    @_once_each
    def of(self, quantity: str) -> pd.DataFrame:
        """One quantity: ``(method, seed, round)`` x sites; NaN: the site was absent."""
        return self._rows(quantity).pivot(index=[*RUN, "round"], columns="site", values="value")

    @_once_each
    def credited(self, quantity: str) -> pd.DataFrame:
        """As `of`, by the rounds in which work was shown: 0 where a site was absent, or did not work by the guard.

        NaN in rounds in which no site has the quantity, for sites that never have it, and before a site joined or after
        it left.
        """
        table, worked = self.of(quantity), self.of("worked")
        known = table.notna()
        counted = known & ~(worked.reindex(index=table.index, columns=table.columns) == 0)
        has_any = known.groupby(level=RUN).transform("any")
        member = self._member.reindex(index=table.index, columns=table.columns, fill_value=False)
        return table.where(counted, 0.0).where(has_any.mul(known.any(axis=1), axis=0) & member)

    @cached_property
    def _member(self) -> pd.DataFrame:
        """Whether a site belonged to the run, absent or not: ``(method, seed, round)`` x sites."""
        return self.results.groupby([*RUN, "round", "site"], observed=True).size().unstack("site").notna()

    @_once_each
    def pairs(self, quantity: str) -> pd.DataFrame:
        """Ratings of sites by each other, mean over seeds: ``(method, round, rater)`` x sites; NaN on the diagonal."""
        keys = ["method", "round", "coalition", "site"]
        ratings = self._rows(quantity).groupby(keys, observed=True)["value"].mean()
        return ratings.unstack("site").rename_axis(index={"coalition": "rater"})

    @_once_each
    def dice(self, split: str) -> pd.DataFrame:
        """Dice, mean over cases and labels alike: ``(method, seed, round)`` x sites.

        Args:
            split: ``validation``, of the model received; ``validation_trained``, of the model after local training.
        """
        return self._dice_rows(split).groupby([*RUN, "round", "site"])["value"].mean().unstack("site")

    @cached_property
    def validation(self) -> pd.DataFrame:
        """Validation Dice of the model each site received, mean over cases of the mean over labels, as `of`.

        Without the final models, whose masks are made differently.
        """
        cases = self._dice_rows("validation").groupby([*RUN, "round", "site", "case"])["value"].mean()
        rounds = cases.groupby(level=[*RUN, "round", "site"]).mean().unstack("site")
        trained = self.of("num_samples").reset_index("round")["round"].groupby(level=RUN).max()
        table = rounds.reset_index("round")
        last = trained.reindex(table.index).fillna(math.inf)
        return table[table["round"] <= last].set_index("round", append=True)

    @cached_property
    def contributions(self) -> pd.DataFrame:
        """Contributions and weights: ``(method, seed, site)`` x the quantities that the method records.

        ``num_samples`` of a site's last round; ``weight``, ``contribution``, ``reputation`` of the run's, and
        ``mean_...`` of `credited`;
        ``share`` of the sum of mean contributions, 0 to 1 where none is negative, of runs in which they differ and sum
        to more than 0; ``flagged``, ``rejected``: number of rounds, if any site was.
        """
        columns: dict[str, pd.Series] = {}
        columns["num_samples"] = _stacked(self.of("num_samples").groupby(level=RUN).last())
        for quantity in ("weight", "contribution", "reputation", "flagged", "rejected"):
            rounds = self.of(quantity)
            runs = rounds.groupby(level=RUN)
            if quantity in ("flagged", "rejected"):
                columns[quantity] = _stacked(runs.sum())
                continue
            number = rounds.index.get_level_values("round").to_series(index=rounds.index)
            is_last = number == number.groupby(level=RUN).transform("max")
            columns[quantity] = _stacked(rounds[is_last].droplevel("round"))
            columns[f"mean_{quantity}"] = _stacked(self.credited(quantity).groupby(level=RUN).mean())
        columns["share"] = _shares(columns["mean_contribution"])
        table = pd.DataFrame(columns).rename_axis(SITE).dropna(axis=1, how="all")
        counts = {name: table[name].fillna(0).astype(int) for name in ("flagged", "rejected") if name in table}
        return table.assign(**counts).drop(columns=[name for name, rounds in counts.items() if not rounds.any()])

    @cached_property
    def rankings(self) -> dict[str, Ranking]:
        """By method, the sites ranked by contribution, mean over rounds; of methods with several seeds.

        Seeds in which all sites have the same contribution do not count. Of several folds those are taken for seeds.
        """
        if self.folds is not None:
            return self.over_folds.rankings
        table = self.credited("contribution").groupby(level=RUN).mean()
        table = table[table.max(axis=1) > table.min(axis=1)]
        found = {}
        for method, rows in table.groupby(level="method"):
            own = rows.dropna(axis=1, how="all")
            if len(own) >= (MIN_FOLDS if self.number_of_folds else MIN_SEEDS):
                values = own.to_numpy(dtype=np.float64)[..., None]
                found[str(method)] = ranking(list(map(str, own)), values, folds=self.number_of_folds)
        return found

    @cached_property
    def intervals(self) -> pd.DataFrame:
        """`contribution_intervals` of the means over rounds, over seeds or folds."""
        if self.folds is not None:
            return self.over_folds.intervals
        if "mean_contribution" not in self.contributions:
            return intervals.NONE
        known = pd.Series(self.contributions["mean_contribution"]).dropna()
        return intervals.contribution_intervals(known, folds=self.number_of_folds)

    @cached_property
    def share_intervals(self) -> pd.DataFrame:
        """Likewise of their shares, of methods that have them in every seed: ``(method, of)`` x numbers."""
        if self.folds is not None:
            return self.over_folds.share_intervals
        if "share" not in self.contributions:
            return intervals.select_sites(intervals.NONE, "contribution")
        runs = self.contributions["share"].groupby(level="method", observed=True)
        known = runs.filter(lambda of_method: bool(of_method.notna().any()))
        missing = known.isna().groupby(level=["method", "seed"], observed=True).transform("all")
        complete = ~missing.groupby(level="method", observed=True).transform("any")
        shares = known[complete].dropna()
        bounds = min(0.0, shares.min()), max(1.0, shares.max())  # beyond 0 to 1 with both signs
        return intervals.select_sites(
            intervals.contribution_intervals(shares, bounds, self.number_of_folds), "contribution"
        )

    @cached_property
    def costs(self) -> pd.DataFrame:
        """Mean cost of a round: ``(method, seed, site)`` x ``seconds, bytes_sent, bytes_received``, where recorded."""
        names = ("seconds", "bytes_sent", "bytes_received")
        table = pd.DataFrame({name: _stacked(self.of(name).groupby(level=RUN).mean()) for name in names})
        return table.rename_axis(SITE).dropna(axis=1, how="all")

    @cached_property
    def over_folds(self) -> "Rounds":
        """With each fold as a seed; only of runs of several folds."""
        folds = pd.DataFrame(self.folds)
        return Rounds(folds, number_of_folds=folds["seed"].nunique())

    def _rows(self, quantity: str) -> pd.DataFrame:
        return self.results[(self.results["split"] == "") & (self.results["quantity"] == quantity)]

    def _dice_rows(self, split: str) -> pd.DataFrame:
        return self.results[(self.results["split"] == split) & (self.results["quantity"] == "dice")]


def _shares(values: pd.Series) -> pd.Series:
    """Shares of each run's sum; NaN if that is not above 0, or all are the same."""
    runs = values.groupby(level=RUN, observed=True)
    total = runs.transform("sum")
    return pd.Series((values / total).where((total > 0) & (runs.transform("max") > runs.transform("min"))))


def _stacked(table: pd.DataFrame) -> pd.Series:
    """Columns as the last level of the index."""
    return pd.Series(table.stack())


@dataclass(frozen=True, eq=False)
class Results:
    """Rows of the long results table (`fedmerit.schema.results.COLUMNS`), never changed, and views of them.

    Column ``method`` holds the label of what is shown. Views of several runs are indexed by ``(method, seed)``, one run
    each; methods follow the column's categories where it has any, else the alphabet.
    """

    rows: pd.DataFrame
    folds: pd.DataFrame | None = None  # as of `Rounds`

    @cached_property
    def dice(self) -> Dice:
        """Dice on each site's own test cases."""
        return Dice(self.rows)

    @cached_property
    def union(self) -> UnionDice:
        """Dice on the test cases of all sites."""
        return UnionDice(self.rows, UNION)

    @cached_property
    def rounds(self) -> Rounds:
        """Views of what was recorded round by round."""
        return Rounds(self.rows, self.folds)

    @property
    def repeats(self) -> str:
        """What confidence intervals of quantities by site and round are over."""
        return "seeds" if self.folds is None else "folds"

    @cached_property
    def methods(self) -> list[str]:
        """The methods, in the order of the views."""
        return [str(label) for label in self.rows["method"].drop_duplicates().sort_values()]

    @cached_property
    def sites(self) -> list[str]:
        """The sites, by name."""
        return sorted(str(site) for site in self.rows["site"].unique() if site)

    @cached_property
    def plain(self) -> "Results":
        """The same results, methods in alphabetical order."""
        return Results(self.rows.astype({"method": str}))

    @cached_property
    def with_validation(self) -> "Results":
        """The same results, with each site's validation cases added to its test cases, both with its final model.

        A model that was selected by its validation Dice looks better on them. With folds unchanged: every case is
        tested.
        """
        if self.folds is not None:
            return self
        tested = self.rows[self.rows["split"] == OWN]
        rounds = tested.groupby(RUN, observed=True)["round"].max().rename("tested")
        validated = self.rows[self.rows["split"] == VALIDATION].join(rounds, on=RUN)
        final = validated[validated["round"] > validated["tested"]]  # of the model that is tested
        added = final.assign(split=OWN, round=final["tested"], case=VALIDATION + "/" + final["case"].astype(str))
        rest = self.rows[self.rows["split"] != VALIDATION]
        return Results(pd.concat([rest, added[rest.columns]], ignore_index=True))

    @cached_property
    def coalition_results(self) -> "Results":
        """The rows of coalitions, with the coalition as the method."""
        trained = self.rows[self.rows["coalition"] != ""]
        return Results(trained.assign(method=trained["coalition"]))

    @cached_property
    def read_folders(self) -> "Results":
        """The same results, with the names of run folders instead of methods."""
        return Results(self.rows.assign(method=self.rows["run"]))

    @cached_property
    def dice_and_contributions(self) -> pd.DataFrame:
        """The table at the end of a run: one row per method and site, mean over seeds.

        Columns ``method, site, num_samples, dice, weight, mean_contribution, share``: test Dice as a fraction, the
        weight of the last round, the contribution as mean over rounds, and its share of all sites'. After Dice come
        the recorded `SURFACES`. NaN: a run has no such number.
        """
        tested = ["dice", *(name for name in SURFACES if name in self.dice.sites)]
        wanted = ["num_samples", *tested, "weight", "mean_contribution", "share"]
        table = self.rounds.contributions.join(self.dice.sites[tested], how="outer").reindex(columns=wanted)
        return table.groupby(level=["method", "site"]).mean().reset_index().astype({"method": str})
