"""The results of runs as one value: what tables, figures and reports show of them is computed once."""

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from evaluation.results.dice import OWN, RUN, SURFACES, UNION, VALIDATION, Dice, UnionDice
from evaluation.results.recorded import Rounds


@dataclass(frozen=True, eq=False)
class Results:
    """Rows of the long results table (`fedmerit.records.results.COLUMNS`), never changed, and views of them.

    Column ``method`` holds the label of what is shown. Views of several runs are indexed by ``(method, seed)``, one run
    each; methods follow the column's categories where it has any, else the alphabet.
    """

    rows: pd.DataFrame

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
        """What was recorded round by round."""
        return Rounds(self.rows)

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
    def on_union(self) -> "Results":
        """The same results, with the test cases of all sites in the place of each site's own."""
        rest = self.rows[~self.rows["split"].isin([OWN, UNION])]
        return Results(pd.concat([rest, self.rows[self.rows["split"] == UNION].assign(split=OWN)], ignore_index=True))

    @cached_property
    def with_validation(self) -> "Results":
        """The same results, with each site's validation cases beside its test cases, both of the model it ends with.

        Twice the cases where there are few. A model that was chosen by its validation Dice looks better on them.
        """
        tested = self.rows[self.rows["split"] == OWN]
        rounds = tested.groupby(RUN, observed=True)["round"].max().rename("tested")
        validated = self.rows[self.rows["split"] == VALIDATION].join(rounds, on=RUN)
        final = validated[validated["round"] > validated["tested"]]  # of the model that is tested
        beside = final.assign(split=OWN, round=final["tested"], case=VALIDATION + "/" + final["case"].astype(str))
        rest = self.rows[self.rows["split"] != VALIDATION]
        return Results(pd.concat([rest, beside[rest.columns]], ignore_index=True))

    @cached_property
    def of_coalitions(self) -> "Results":
        """The rows that name a coalition, which stands in the place of a method."""
        trained = self.rows[self.rows["coalition"] != ""]
        return Results(trained.assign(method=trained["coalition"]))

    @cached_property
    def of_folders(self) -> "Results":
        """The same results, with the names of run folders in the place of methods."""
        return Results(self.rows.assign(method=self.rows["run"]))

    @cached_property
    def dice_and_contribution(self) -> pd.DataFrame:
        """The table at the end of a run: one row per method and site, mean over seeds.

        Columns ``method, site, num_samples, dice, weight, mean_contribution, share``: test Dice as a fraction, the
        weight of the last round, the contribution as mean over rounds, and its share of all sites'. After Dice stand
        those of `SURFACES` that were recorded. NaN where a run has no such number.
        """
        tested = ["dice", *(name for name in SURFACES if name in self.dice.sites)]
        wanted = ["num_samples", *tested, "weight", "mean_contribution", "share"]
        table = self.rounds.contributions.join(self.dice.sites[tested], how="outer").reindex(columns=wanted)
        return table.groupby(level=["method", "site"]).mean().reset_index().astype({"method": str})
