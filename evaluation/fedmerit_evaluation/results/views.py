"""Views of the long results table for tables, figures and reports; each is computed once."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps

import numpy as np
import pandas as pd

from fedmerit_evaluation.statistics import intervals
from fedmerit_evaluation.statistics.inference import MIN_FOLDS, MIN_SEEDS
from fedmerit_evaluation.statistics.ranks import Ranking, ranking
from fedmerit_evaluation.statistics.resampling import Clusters

RUN = ["method", "seed"]
SITE = [*RUN, "site"]
STANDALONE = "standalone"  # the method of local training
POOLED = "pooled"  # the method that trains on all sites' images in one place
SURFACES = ("hd95", "nsd", "hd95_px", "nsd_px")  # quantities, where they are recorded
MIN_CASES_TO_RESAMPLE = 3  # test patients of a site in a run, or folds; with fewer there is no CI
OWN, UNION = "testing", "union"  # a site's own test cases; those of every site, for the model it ends with
VALIDATION = "validation"  # a site's own, in every round and after the last
Tested = dict[tuple[str, int], dict[str, frozenset[str]]]  # by run, by site: names of cases


@dataclass(frozen=True, eq=False)
class Dice:
    """Dice of the models after the last round that has any, on the cases of one split."""

    results: pd.DataFrame  # rows of all splits
    split: str = OWN

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Rows of Dice on these cases, of all rounds."""
        return self._rows("dice")

    def _rows(self, quantity: str) -> pd.DataFrame:
        return self.results[(self.results["split"] == self.split) & (self.results["quantity"] == quantity)]

    @cached_property
    def label_cases(self) -> pd.DataFrame:
        """Of every case: ``(method, seed, site, case)`` x labels; NaN: reference and prediction are both empty."""
        return _by_label(self.rows)

    @cached_property
    def surface_cases(self) -> dict[str, pd.DataFrame]:
        """As `label_cases`, for each of the recorded `SURFACES`."""
        recorded = {name: self._rows(name) for name in SURFACES}
        return {name: _by_label(rows) for name, rows in recorded.items() if not rows.empty}

    @cached_property
    def cases(self) -> pd.Series:
        """Of every case, the mean over labels: ``(method, seed, site, case)``."""
        return self.label_cases.mean(axis=1)

    @cached_property
    def labels(self) -> pd.DataFrame:
        """Per site and label, the mean over cases: ``(method, seed, site)`` x labels."""
        return self.label_cases.groupby(level=SITE).mean()

    @cached_property
    def tested(self) -> Tested:
        """The names of the cases of each run, ``(method, seed)``, by site."""
        found: Tested = {}
        for (method, seed), of_run in self.rows.groupby(RUN, observed=True):
            at = {str(site): frozenset(map(str, rows["case"])) for site, rows in of_run.groupby("site")}
            found[str(method), int(str(seed))] = at
        return found

    def mismatched_seeds(self, site: str | None = None, methods: Collection[str] | None = None) -> set[int]:
        """The seeds in which methods were tested on different cases, so that their Dice cannot be compared.

        Args:
            site: at which; None: at all.
            methods: that are compared, those that were tested; None: all.
        """
        first: dict[int, object] = {}
        return {
            seed
            for (method, seed), at in self.tested.items()
            if methods is None or method in methods
            for own in [at if site is None else at.get(site)]
            if first.setdefault(seed, own) != own
        }

    @cached_property
    def unpaired_with_local_only(self) -> set[tuple[str, str]]:
        """``(method, site)`` that share no case with local training in a common seed: no gain is known."""
        return {
            (method, site)
            for (method, seed), at in self.tested.items()
            for site, cases in at.items()
            if self.tested.get((STANDALONE, seed), at).get(site, cases).isdisjoint(cases)
        }

    @cached_property
    def sites(self) -> pd.DataFrame:
        """Per site: ``(method, seed, site)`` x ``dice, lowest, cases, patients, both_empty``, surfaces where recorded.

        ``dice`` is the mean over cases of the mean over labels, ``lowest`` the site's lowest case, ``cases`` and
        ``patients`` their numbers, ``both_empty`` the number of case-and-label pairs left out since reference and
        prediction are empty.
        `SURFACES` are means as ``dice`` is; ``one_empty`` counts the pairs that have no HD95 since only one of the two
        is empty, which NSD counts as 0.
        """
        means = self.cases.groupby(level=SITE)
        empty = self.label_cases.isna().sum(axis=1).groupby(level=SITE).sum()
        surfaces = {name: _per_site(cases.mean(axis=1), "mean") for name, cases in self.surface_cases.items()}
        columns = {"dice": means.mean(), "lowest": means.min(), **surfaces, "cases": means.size()}
        columns |= {
            "patients": name_patients(self.rows).groupby(self._by(SITE), observed=True).nunique(),
            "both_empty": empty,
        }
        return pd.DataFrame(columns | ({"one_empty": self._one_empty()} if surfaces else {}))

    def _by(self, columns: Sequence[str]) -> list[pd.Series]:
        return [self.rows[name] for name in columns]

    @cached_property
    def clusters(self) -> Clusters:
        """The patients of the cases; or their folds, if each method was tested in `MIN_FOLDS` folds or more."""
        keys = list(zip(*self._by(["seed", "site", "case"]), strict=True))
        folds = self.rows["fold"].groupby(self._by(RUN), observed=True).nunique()
        if len(folds) and folds.min() >= MIN_FOLDS:
            return Clusters(dict(zip(keys, self.rows["fold"], strict=True)), self.rows["fold"].nunique())
        return Clusters(dict(zip(keys, name_patients(self.rows), strict=True)))

    def _one_empty(self) -> pd.Series:
        """Pairs of case and label with an NSD and no HD95, per site."""
        counts = [
            (nsd.notna() & self.surface_cases.get(f"hd95{unit}", pd.DataFrame()).reindex_like(nsd).isna()).sum(axis=1)
            for unit in ("", "_px")
            if (nsd := self.surface_cases.get(f"nsd{unit}")) is not None
        ]
        return _per_site(pd.concat(counts), "sum")

    @cached_property
    def label_surfaces(self) -> dict[str, pd.DataFrame]:
        """As `labels`, for each of the recorded `SURFACES`."""
        return {name: cases.groupby(level=SITE).mean() for name, cases in self.surface_cases.items()}

    @cached_property
    def by_site(self) -> pd.DataFrame:
        """Of each run on each site: ``(method, seed)`` x sites; NaN: none."""
        return self.sites["dice"].unstack("site").reindex(columns=sorted(self.results["site"].unique()))

    @cached_property
    def comparison(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Of methods: mean over seeds and sample standard deviation over seeds (NaN for one seed).

        Two tables, methods x (sites, ``mean``, ``std``, ``worst``), columns in two levels: ``site`` and ``sites``.
        """
        over = summarise_sites(self.by_site)
        seeds = pd.concat({"site": self.by_site, "sites": over}, axis=1).groupby(level="method")
        return seeds.mean(), seeds.std(ddof=1)

    @cached_property
    def gains(self) -> pd.DataFrame:
        """Gain: Dice minus that of local training, methods x sites, mean over common seeds.

        Empty without local training; NaN if that was tested on other cases (`unpaired_with_local_only`).
        """
        return self._gains_over_local_only(self.by_site)

    @cached_property
    def surface_changes(self) -> pd.DataFrame:
        """As `gains`, of each of `SURFACES` that was recorded: ``(method, site)`` x quantities.

        Over the pairs of case and label that both have: a prediction that finds nothing has no HD95, and would change
        which cases the means are over.
        """
        if self.gains.empty:
            return pd.DataFrame()
        changes = {name: _paired_changes(cases) for name, cases in self.surface_cases.items()}
        return pd.DataFrame(changes).reindex(self.gains.stack().index)

    @cached_property
    def intervals(self) -> pd.DataFrame:
        """`fedmerit_evaluation.statistics.intervals.of_dice`, of methods by rank of their means over seeds.

        Without CIs of a site with fewer than `MIN_CASES_TO_RESAMPLE` cases in a run, and then also without those over
        all sites.
        """
        order = [] if self.rows.empty else intervals.sort_by_mean(pd.DataFrame(self.comparison[0]["sites"]))
        if not order:
            return intervals.NONE
        table = intervals.dice_intervals(self.cases, order, STANDALONE, self.clusters)
        table = intervals.drop_small_sample_intervals(table, self.small_samples)
        return _without_gains(table, self.unpaired_with_local_only)

    @cached_property
    def small_samples(self) -> list[str]:
        """The sites with fewer than `MIN_CASES_TO_RESAMPLE` patients in some run."""
        patients = self.sites["patients"].groupby(level="site").min()
        return [str(site) for site in patients.index[patients < MIN_CASES_TO_RESAMPLE]]

    def _gains_over_local_only(self, by_site: pd.DataFrame) -> pd.DataFrame:
        """Of runs x sites: methods x sites, their gain over `STANDALONE`, mean over common seeds."""
        if STANDALONE not in by_site.index.get_level_values("method"):
            return by_site.iloc[:0].droplevel("seed")
        others = by_site.drop(index=STANDALONE, level="method")
        above = others.sub(by_site.loc[STANDALONE], level="seed").dropna(how="all").groupby(level="method").mean()
        unlike = [[(method, site) in self.unpaired_with_local_only for site in above] for method in above.index]
        return above.mask(pd.DataFrame(unlike, above.index, above.columns, dtype=bool))


def _without_gains(table: pd.DataFrame, unlike: set[tuple[str, str]]) -> pd.DataFrame:
    """Of `intervals.dice_intervals`, no gain of these ``(method, site)``, nor mean gain of these methods."""
    gone = [
        (statistic == "gain" and (method, of) in unlike)
        or (statistic == "mean_gain" and any(method == one for one, _ in unlike))
        for statistic, method, of in table.index
    ]
    left = table.copy()
    left.loc[gone, ["mean", "std", "low", "high"]] = float("nan")
    left.loc[gone, "seeds"] = 0
    return left


def _paired_changes(cases: pd.DataFrame) -> pd.Series:
    """``(method, site)`` the mean change from local training, by case and label, mean over labels, cases and seeds."""
    local = cases.xs(STANDALONE, level="method") if STANDALONE in cases.index.get_level_values("method") else cases[:0]
    others = cases.drop(index=STANDALONE, level="method", errors="ignore")
    same = local.reindex(others.droplevel("method").index).set_axis(others.index)
    of_sites = (others - same).mean(axis=1).groupby(level=SITE).mean()
    return pd.Series(of_sites.groupby(level=["method", "site"]).mean())


def name_patients(rows: pd.DataFrame) -> pd.Series:
    """Of every row, the patient, or the case if that is not known."""
    return pd.Series(rows["patient"].where(rows["patient"] != "", rows["case"]))


def _by_label(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of one quantity in the last round: ``(method, seed, site, case)`` x labels, as they come."""
    last = rows[rows["round"] == rows.groupby(RUN)["round"].transform("max")]
    table = last.pivot(index=[*SITE, "case"], columns="label", values="value")
    return table[last["label"].unique()].rename_axis(columns=None)


def _per_site(cases: pd.Series, how: str) -> pd.Series:
    return pd.Series(cases.groupby(level=SITE).agg(how))


class UnionDice(Dice):
    """Dice of the model each site ends with, on the cases of all sites: ``<tested site>/<position>``."""

    @cached_property
    def complete(self) -> pd.Series:
        """Per site whose model it is: ``(method, seed, site)``; NaN: a site did not test it.

        The mean over all cases of the mean over labels. Empty without rows.
        """
        if self.rows.empty:
            return pd.Series(dtype=float)
        testers = self.rows["case"].str.rpartition("/")[0].groupby([self.rows[name] for name in SITE]).nunique()
        return self.sites["dice"].where(testers == self.results["site"].nunique())

    @cached_property
    def cross_site(self) -> dict[str, pd.DataFrame]:
        """Of every site's own final model at every site, Dice and the recorded `SURFACES`, by name.

        Each ``(method, seed, site)``, whose model, x where tested. Methods with one model for all are left out: their
        rows would all be the same.
        """
        dice = _by_tester(self.rows)
        differing = dice.groupby(level=RUN, observed=True).transform("nunique").max(axis=1) > 1
        recorded = {"dice": dice, **{name: _by_tester(self._rows(name)) for name in SURFACES}}
        shown = {name: matrix.reindex(dice.index[differing]) for name, matrix in recorded.items() if not matrix.empty}
        return {name: matrix for name, matrix in shown.items() if matrix.notna().any(axis=None)}


def _by_tester(rows: pd.DataFrame) -> pd.DataFrame:
    """Of rows of one quantity of the union: means over a site's cases of means over labels, as ``cross_site``."""
    cases = rows.groupby([*SITE, "case"], observed=True)["value"].mean()
    where = [str(case).rpartition("/")[0] for case in cases.index.get_level_values("case")]
    at = pd.Index(where, name="at", dtype=object)
    table = cases.groupby([cases.index.get_level_values(level) for level in SITE] + [at], observed=True)
    return table.mean().unstack("at")


def summarise_sites(dice: pd.DataFrame) -> pd.DataFrame:
    """``mean``, ``std`` (of a sample, ddof 1) and ``worst`` of each row."""
    known = dice.dropna(how="all")
    return pd.DataFrame({"mean": known.mean(axis=1), "std": known.std(axis=1, ddof=1), "worst": known.min(axis=1)})


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
