"""Test Dice, HD95 and NSD of runs, from the rows of one split: views that are computed once.

Dice and NSD are fractions here.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from fedmerit_evaluation.statistics import intervals
from fedmerit_evaluation.statistics.bootstrap import Clusters
from fedmerit_evaluation.statistics.inference import MIN_FOLDS

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
