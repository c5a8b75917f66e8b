"""Views of the long results table for tables, figures and reports: test Dice, and what was recorded round by round.

Each view is computed once. Dice and NSD are fractions here.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from fedmerit.schema.scores import UNION
from fedmerit_evaluation.statistics import intervals
from fedmerit_evaluation.statistics.inference import MIN_FOLDS, MIN_SEEDS
from fedmerit_evaluation.statistics.ranks import Ranking, ranking
from fedmerit_evaluation.statistics.resampling import Clusters

RUN = ["method", "seed"]
SITE = [*RUN, "site"]
STANDALONE = "standalone"  # the method of local training
POOLED = "pooled"  # the method that trains on all sites' images in one place
SURFACES = ("hd95", "nsd", "hd95_px", "nsd_px")  # quantities, where they are recorded
MIN_CASES_TO_RESAMPLE = 3  # test patients of a site in a run, or folds; with fewer there is no confidence interval
OWN = "testing"  # the split of a site's test cases
VALIDATION = "validation"  # a site's validation cases, in every round and after the last
Tested = dict[tuple[str, int], dict[str, frozenset[str]]]  # by run, by site: names of cases


@dataclass(frozen=True, eq=False)
class Dice:
    """The Dice of the models after the last round that has any, on the cases of one split."""

    results: pd.DataFrame  # rows of all splits
    split: str = OWN

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The rows of Dice on these cases, of all rounds."""
        return self._rows("dice")

    def _rows(self, quantity: str) -> pd.DataFrame:
        return self.results[(self.results["split"] == self.split) & (self.results["quantity"] == quantity)]

    @cached_property
    def label_cases(self) -> pd.DataFrame:
        """The Dice of every case: ``(method, seed, site, case)`` x labels; NaN: reference and prediction are empty."""
        return _by_label(self.rows)

    @cached_property
    def surface_cases(self) -> dict[str, pd.DataFrame]:
        """The recorded `SURFACES` of every case, by name, indexed like `label_cases`."""
        recorded = {name: self._rows(name) for name in SURFACES}
        return {name: _by_label(rows) for name, rows in recorded.items() if not rows.empty}

    @cached_property
    def cases(self) -> pd.Series:
        """The Dice of every case, mean over labels: ``(method, seed, site, case)``."""
        return self.label_cases.mean(axis=1)

    def quantity_cases(self, quantity: str) -> pd.Series:
        """Return Dice, or one of `SURFACES`, of every case, mean over labels; empty if it was not recorded."""
        return self.cases if quantity == "dice" else self.surface_cases.get(quantity, pd.DataFrame()).mean(axis=1)

    @cached_property
    def labels(self) -> pd.DataFrame:
        """The Dice per site and label, mean over cases: ``(method, seed, site)`` x labels."""
        return self.label_cases.groupby(level=SITE).mean()

    @cached_property
    def label_surfaces(self) -> dict[str, pd.DataFrame]:
        """The recorded `SURFACES` per site and label, by name, indexed like `labels`."""
        return {name: cases.groupby(level=SITE).mean() for name, cases in self.surface_cases.items()}

    @cached_property
    def tested(self) -> Tested:
        """The names of the cases of each run, ``(method, seed)``, by site."""
        return {
            (str(method), int(str(seed))): {
                str(site): frozenset(map(str, rows["case"])) for site, rows in run.groupby("site")
            }
            for (method, seed), run in self.rows.groupby(RUN, observed=True)
        }

    @cached_property
    def tested_patients(self) -> dict[tuple[str, int], dict[str, int]]:
        """The number of test patients of each run, ``(method, seed)``, by site, of the sites with Dice."""
        runs: dict[tuple[str, int], dict[str, int]] = {}
        for (method, seed, site), dice, patients in self.sites[["dice", "patients"]].itertuples(name=None):
            of_run = runs.setdefault((str(method), int(seed)), {})
            if not math.isnan(dice):
                of_run[str(site)] = int(patients)
        return runs

    def mismatched_seeds(self, site: str | None = None, methods: Collection[str] | None = None) -> set[int]:
        """Return the seeds in which methods were tested on different cases, so that their Dice cannot be compared.

        Args:
            site: at which the cases are compared; None: at all sites.
            methods: that are compared, those of them that were tested; None: all.
        """
        first: dict[int, object] = {}
        return {
            seed
            for (method, seed), sites in self.tested.items()
            if methods is None or method in methods
            for cases in [sites if site is None else sites.get(site)]
            if first.setdefault(seed, cases) != cases
        }

    @cached_property
    def unpaired_with_local_only(self) -> set[tuple[str, str]]:
        """The ``(method, site)`` that share no case with local training in a common seed: no gain is known."""
        return {
            (method, site)
            for (method, seed), sites in self.tested.items()
            for site, cases in sites.items()
            if self.tested.get((STANDALONE, seed), sites).get(site, cases).isdisjoint(cases)
        }

    @cached_property
    def sites(self) -> pd.DataFrame:
        """The table ``(method, seed, site)`` x ``dice, lowest, cases, patients, both_empty``, surfaces where recorded.

        ``dice`` is the mean over cases of the mean over labels, ``lowest`` the site's lowest case, ``cases`` and
        ``patients`` their numbers, ``both_empty`` the number of case-and-label pairs left out since reference and
        prediction are empty. `SURFACES` are means as ``dice`` is; ``one_empty`` counts the pairs that have no HD95
        since only one of the two is empty, which NSD counts as 0.
        """
        cases = self.cases.groupby(level=SITE)
        columns = {"dice": cases.mean(), "lowest": cases.min()}
        columns |= {name: table.mean(axis=1).groupby(level=SITE).mean() for name, table in self.surface_cases.items()}
        columns |= {
            "cases": cases.size(),
            "patients": self.patients,
            "both_empty": self.label_cases.isna().sum(axis=1).groupby(level=SITE).sum(),
        }
        return pd.DataFrame(columns | ({"one_empty": self._one_empty()} if self.surface_cases else {}))

    def _one_empty(self) -> pd.Series:
        """Count the pairs of case and label with an NSD and no HD95, per site."""
        counts = [
            (nsd.notna() & self.surface_cases.get(f"hd95{unit}", pd.DataFrame()).reindex_like(nsd).isna()).sum(axis=1)
            for unit in ("", "_px")
            if (nsd := self.surface_cases.get(f"nsd{unit}")) is not None
        ]
        return pd.Series(pd.concat(counts).groupby(level=SITE).sum())

    def _by(self, columns: Collection[str]) -> list[pd.Series]:
        return [self.rows[name] for name in columns]

    def _clusters(self, names: pd.Series, folds: int = 0) -> Clusters:
        keys = zip(*self._by(["seed", "site", "case"]), strict=True)
        return Clusters(dict(zip(keys, names, strict=True)), folds)

    @cached_property
    def patient_clusters(self) -> Clusters:
        """The patients of the cases."""
        return self._clusters(name_patients(self.rows))

    @cached_property
    def clusters(self) -> Clusters:
        """The patients of the cases; or their folds, if each method was tested in `MIN_FOLDS` folds or more."""
        folds = self.rows["fold"].groupby(self._by(RUN), observed=True).nunique()
        if len(folds) and folds.min() >= MIN_FOLDS:
            return self._clusters(self.rows["fold"], self.rows["fold"].nunique())
        return self.patient_clusters

    @cached_property
    def patients(self) -> "pd.Series[int]":
        """The number of patients: ``(method, seed, site)``."""
        return name_patients(self.rows).groupby(self._by(SITE), observed=True).nunique()

    @cached_property
    def by_patient(self) -> pd.Series:
        """The Dice of every patient, mean over labels, cases and seeds: ``(method, site, patient)``."""
        keys = [*SITE, "case"]
        named = self.rows.assign(patient=name_patients(self.rows)).drop_duplicates(keys).set_index(keys)["patient"]
        names = named.reindex(self.cases.index).to_numpy()
        by_seed = self.cases.groupby([self.cases.index.get_level_values(name) for name in SITE] + [names]).mean()
        by_seed = by_seed.rename_axis([*SITE, "patient"]).dropna()
        return pd.Series(by_seed.groupby(level=["method", "site", "patient"], observed=True).mean())

    def failures(self, below: float, by: Sequence[str] = ("method", "site")) -> pd.DataFrame:
        """Return the patients whose Dice is below a bound: ``(method, site)`` x ``failed, patients, low, high``.

        ``low`` and ``high`` are the ends of the 95 % interval of Clopper and Pearson (1934) of the part that fails.

        Args:
            below: the bound, a fraction.
            by: what they are counted by; without ``site`` over all sites.
        """
        failed = (self.by_patient < below).groupby(level=list(by), observed=True)
        table = pd.DataFrame({"failed": failed.sum().astype(int), "patients": failed.size()})
        counts = zip(table["failed"].tolist(), table["patients"].tolist(), strict=True)
        ends = [binomtest(number, of).proportion_ci(method="exact") for number, of in counts]
        return table.assign(low=[one.low for one in ends], high=[one.high for one in ends])

    @cached_property
    def by_site(self) -> pd.DataFrame:
        """The Dice of each run on each site: ``(method, seed)`` x sites; NaN: none."""
        return self.sites["dice"].unstack("site").reindex(columns=sorted(self.results["site"].unique()))

    @cached_property
    def comparison(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The mean over seeds and the sample standard deviation over seeds (NaN for one seed) of methods.

        Two tables, methods x (sites, ``mean``, ``std``, ``worst``), columns in two levels: ``site`` and ``sites``.
        """
        seeds = pd.concat({"site": self.by_site, "sites": summarise_sites(self.by_site)}, axis=1)
        by_method = seeds.groupby(level="method")
        return by_method.mean(), by_method.std(ddof=1)

    @cached_property
    def gains(self) -> pd.DataFrame:
        """The gain: Dice minus that of local training, methods x sites, mean over common seeds.

        Empty without local training; NaN if that was tested on other cases (`unpaired_with_local_only`).
        """
        if STANDALONE not in self.by_site.index.get_level_values("method"):
            return self.by_site.iloc[:0].droplevel("seed")
        others = self.by_site.drop(index=STANDALONE, level="method")
        above = others.sub(self.by_site.loc[STANDALONE], level="seed").dropna(how="all").groupby(level="method").mean()
        unpaired = [[(method, site) in self.unpaired_with_local_only for site in above] for method in above.index]
        return above.mask(pd.DataFrame(unpaired, above.index, above.columns, dtype=bool))

    @cached_property
    def surface_changes(self) -> pd.DataFrame:
        """The change of each recorded one of `SURFACES` from local training: ``(method, site)`` x quantities.

        Over the pairs of case and label that both have: a prediction that finds nothing has no HD95, and would change
        which cases the means are over.
        """
        if self.gains.empty:
            return pd.DataFrame()
        changes = {name: _paired_changes(cases) for name, cases in self.surface_cases.items()}
        return pd.DataFrame(changes).reindex(self.gains.stack().index)

    @cached_property
    def intervals(self) -> pd.DataFrame:
        """The statistics of `fedmerit_evaluation.statistics.intervals.dice_intervals`, methods by rank of their means.

        There are no intervals for a site with fewer than `MIN_CASES_TO_RESAMPLE` cases in a run, and then none over all
        sites; no gains where local training was tested on other cases.
        """
        order = [] if self.rows.empty else intervals.sort_by_mean(pd.DataFrame(self.comparison[0]["sites"]))
        if not order:
            return intervals.NONE
        table = intervals.dice_intervals(self.cases, order, STANDALONE, self.clusters)
        table = intervals.drop_small_sample_intervals(table, self.small_samples)
        unpaired = {method for method, _ in self.unpaired_with_local_only}
        gone = [
            (statistic == "gain" and (method, of) in self.unpaired_with_local_only)
            or (statistic == "mean_gain" and method in unpaired)
            for statistic, method, of in table.index
        ]
        table.loc[gone, [*intervals.ESTIMATE, "std"]] = np.nan
        table.loc[gone, "seeds"] = 0
        return table

    @cached_property
    def small_samples(self) -> list[str]:
        """The sites with fewer than `MIN_CASES_TO_RESAMPLE` patients in some run."""
        patients = self.patients.groupby(level="site").min()
        return [str(site) for site in patients.index[patients < MIN_CASES_TO_RESAMPLE]]


class UnionDice(Dice):
    """The Dice of the model each site ends with, on the cases of all sites: ``<tested site>/<position>``."""

    @cached_property
    def complete(self) -> pd.Series:
        """The mean over all cases of the mean over labels, per site whose model it is: ``(method, seed, site)``.

        NaN: a site did not test it. Empty without rows.
        """
        if self.rows.empty:
            return pd.Series(dtype=float)
        testers = self.rows["case"].str.rpartition("/")[0].groupby(self._by(SITE)).nunique()
        return self.sites["dice"].where(testers == self.results["site"].nunique())

    @cached_property
    def cross_site(self) -> dict[str, pd.DataFrame]:
        """The Dice and the recorded `SURFACES` of every site's final model at every site, by name.

        Each ``(method, seed, site)``, whose model, x where tested. Methods with one model for all are left out: their
        rows would all be the same.
        """
        dice = _by_tester(self.rows)
        differing = dice.groupby(level=RUN, observed=True).transform("nunique").max(axis=1) > 1
        recorded = {"dice": dice, **{name: _by_tester(self._rows(name)) for name in SURFACES}}
        shown = {name: matrix.reindex(dice.index[differing]) for name, matrix in recorded.items() if not matrix.empty}
        return {name: matrix for name, matrix in shown.items() if matrix.notna().any(axis=None)}


def summarise_sites(dice: pd.DataFrame) -> pd.DataFrame:
    """Return ``mean``, ``std`` (of a sample, ddof 1) and ``worst`` of each row."""
    rows = dice.dropna(how="all")
    return pd.DataFrame({"mean": rows.mean(axis=1), "std": rows.std(axis=1, ddof=1), "worst": rows.min(axis=1)})


def name_patients(rows: pd.DataFrame) -> pd.Series:
    """Return the patient of every row, or the case if the patient was not recorded."""
    return pd.Series(rows["patient"].where(rows["patient"] != "", rows["case"]))


def _by_label(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows of one quantity in the last round: ``(method, seed, site, case)`` x labels, as they come."""
    last = rows[rows["round"] == rows.groupby(RUN)["round"].transform("max")]
    table = last.pivot(index=[*SITE, "case"], columns="label", values="value")
    return table[last["label"].unique()].rename_axis(columns=None)


def _paired_changes(cases: pd.DataFrame) -> pd.Series:
    """Return the mean change from local training by ``(method, site)``, of ``(method, seed, site, case)`` x labels."""
    local = cases.xs(STANDALONE, level="method") if STANDALONE in cases.index.get_level_values("method") else cases[:0]
    others = cases.drop(index=STANDALONE, level="method", errors="ignore")
    paired = local.reindex(others.droplevel("method").index).set_axis(others.index)
    by_site = (others - paired).mean(axis=1).groupby(level=SITE).mean()
    return pd.Series(by_site.groupby(level=["method", "site"]).mean())


def _by_tester(rows: pd.DataFrame) -> pd.DataFrame:
    """Return means over cases and labels by ``(method, seed, site)``, whose model, x where tested."""
    cases = rows.groupby([*SITE, "case"], observed=True)["value"].mean()
    testers = [str(case).rpartition("/")[0] for case in cases.index.get_level_values("case")]
    keys = [cases.index.get_level_values(level) for level in SITE] + [pd.Index(testers, name="at", dtype=object)]
    table = cases.groupby(keys, observed=True)
    return table.mean().unstack("at")


View = Callable[["Rounds", str], pd.DataFrame]


def _compute_once(view: View) -> View:
    """Keep the tables of a view, by its argument."""

    @wraps(view)
    def kept(self: "Rounds", name: str) -> pd.DataFrame:
        key = (view.__name__, name)
        if key not in self._kept:
            self._kept[key] = view(self, name)
        return self._kept[key]

    return kept


@dataclass(frozen=True, eq=False)
class Rounds:
    """The views of what was recorded round by round."""

    results: pd.DataFrame
    folds: pd.DataFrame | None = None  # of runs of several folds: these as seeds, which intervals are over
    number_of_folds: int = 0  # if the seeds of ``results`` are folds
    _kept: dict[tuple[str, str], pd.DataFrame] = field(default_factory=dict, init=False, repr=False)

    def _rows(self, quantity: str, split: str = "") -> pd.DataFrame:
        return self.results[(self.results["split"] == split) & (self.results["quantity"] == quantity)]

    @_compute_once
    def of(self, quantity: str) -> pd.DataFrame:
        """Return one quantity: ``(method, seed, round)`` x sites; NaN: the site was absent."""
        return self._rows(quantity).pivot(index=[*RUN, "round"], columns="site", values="value")

    @_compute_once
    def credited(self, quantity: str) -> pd.DataFrame:
        """Return one quantity in the rounds in which work was shown: ``(method, seed, round)`` x sites.

        0 where a site was absent, or did not work by the guard. NaN in rounds in which no site has the quantity, for
        sites that never have it, and before a site joined or after it left.
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

    @_compute_once
    def pairs(self, quantity: str) -> pd.DataFrame:
        """Return ratings of sites by each other, mean over seeds: ``(method, round, rater)`` x sites."""
        keys = ["method", "round", "coalition", "site"]
        ratings = self._rows(quantity).groupby(keys, observed=True)["value"].mean()
        return ratings.unstack("site").rename_axis(index={"coalition": "rater"})

    @_compute_once
    def dice(self, split: str) -> pd.DataFrame:
        """Return Dice, mean over cases and labels alike: ``(method, seed, round)`` x sites.

        Args:
            split: ``validation``, of the model received; ``validation_trained``, of the model after local training.
        """
        return self._rows("dice", split).groupby([*RUN, "round", "site"])["value"].mean().unstack("site")

    @cached_property
    def validation(self) -> pd.DataFrame:
        """The validation Dice of the model each site received, mean over cases of the mean over labels.

        ``(method, seed, round)`` x sites, without the final models, whose masks are made differently.
        """
        cases = self._rows("dice", VALIDATION).groupby([*RUN, "round", "site", "case"])["value"].mean()
        rounds = cases.groupby(level=[*RUN, "round", "site"]).mean().unstack("site")
        trained = self.of("num_samples").reset_index("round")["round"].groupby(level=RUN).max()
        table = rounds.reset_index("round")
        last = trained.reindex(table.index).fillna(np.inf)
        return table[table["round"] <= last].set_index("round", append=True)

    @cached_property
    def contributions(self) -> pd.DataFrame:
        """The contributions and weights: ``(method, seed, site)`` x the quantities that the method records.

        ``num_samples`` of a site's last round; ``weight``, ``contribution``, ``reputation`` of the run's, and
        ``mean_...`` of `credited`; ``share`` of the sum of mean contributions, 0 to 1 where none is negative, of runs
        in which they differ and sum to more than 0; ``flagged``, ``rejected``: number of rounds, if any site was.
        """
        columns = {"num_samples": _stack(self.of("num_samples").groupby(level=RUN).last())}
        for quantity in ("weight", "contribution", "reputation"):
            rounds = self.of(quantity)
            number = rounds.index.get_level_values("round").to_series(index=rounds.index)
            is_last = number == number.groupby(level=RUN).transform("max")
            columns[quantity] = _stack(rounds[is_last].droplevel("round"))
            columns[f"mean_{quantity}"] = _stack(self.credited(quantity).groupby(level=RUN).mean())
        columns |= {name: _stack(self.of(name).groupby(level=RUN).sum()) for name in ("flagged", "rejected")}
        columns["share"] = _shares(columns["mean_contribution"])
        table = pd.DataFrame(columns).rename_axis(SITE).dropna(axis=1, how="all")
        counts = {name: table[name].fillna(0).astype(int) for name in ("flagged", "rejected") if name in table}
        return table.assign(**counts).drop(columns=[name for name, rounds in counts.items() if not rounds.any()])

    @cached_property
    def rankings(self) -> dict[str, Ranking]:
        """The sites ranked by contribution, mean over rounds, by method, of methods with several seeds or folds.

        Seeds in which all sites have the same contribution do not count.
        """
        if self.folds is not None:
            return self.over_folds.rankings
        table = self.credited("contribution").groupby(level=RUN).mean()
        table = table[table.max(axis=1) > table.min(axis=1)]
        by_method = {str(method): rows.dropna(axis=1, how="all") for method, rows in table.groupby(level="method")}
        return {
            method: ranking([*map(str, rows)], rows.to_numpy(dtype=np.float64)[..., None], folds=self.number_of_folds)
            for method, rows in by_method.items()
            if len(rows) >= (MIN_FOLDS if self.number_of_folds else MIN_SEEDS)
        }

    @cached_property
    def intervals(self) -> pd.DataFrame:
        """The intervals of the contributions' means over rounds, over seeds or folds, by method and site."""
        if self.folds is not None:
            return self.over_folds.intervals
        if "mean_contribution" not in self.contributions:
            return intervals.NONE
        contributions = pd.Series(self.contributions["mean_contribution"]).dropna()
        return intervals.contribution_intervals(contributions, folds=self.number_of_folds)

    @cached_property
    def share_intervals(self) -> pd.DataFrame:
        """The intervals of the shares, of methods that have them in every seed: ``(method, of)`` x numbers."""
        if self.folds is not None:
            return self.over_folds.share_intervals
        if "share" not in self.contributions:
            return intervals.select_sites(intervals.NONE, "contribution")
        runs = self.contributions["share"].groupby(level="method", observed=True)
        known = runs.filter(lambda of_method: bool(of_method.notna().any()))
        missing = known.isna().groupby(level=RUN, observed=True).transform("all")
        complete = ~missing.groupby(level="method", observed=True).transform("any")
        shares = known[complete].dropna()
        bounds = min(0.0, shares.min()), max(1.0, shares.max())  # beyond 0 to 1 with both signs
        table = intervals.contribution_intervals(shares, bounds, self.number_of_folds)
        return intervals.select_sites(table, "contribution")

    @cached_property
    def costs(self) -> pd.DataFrame:
        """The mean cost of a round: ``(method, seed, site)`` x ``seconds, bytes_sent, bytes_received``, if recorded."""
        names = ("seconds", "bytes_sent", "bytes_received")
        table = pd.DataFrame({name: _stack(self.of(name).groupby(level=RUN).mean()) for name in names})
        return table.rename_axis(SITE).dropna(axis=1, how="all")

    @cached_property
    def over_folds(self) -> "Rounds":
        """The views with each fold as a seed; only of runs of several folds."""
        folds = pd.DataFrame(self.folds)
        return Rounds(folds, number_of_folds=folds["seed"].nunique())


def _shares(values: pd.Series) -> pd.Series:
    """Return shares of each run's sum; NaN if that is not above 0, or all are the same."""
    runs = values.groupby(level=RUN, observed=True)
    total = runs.transform("sum")
    return pd.Series((values / total).where((total > 0) & (runs.transform("max") > runs.transform("min"))))


def _stack(table: pd.DataFrame) -> pd.Series:
    """Return the columns as the last level of the index."""
    return pd.Series(table.stack())


@dataclass(frozen=True, eq=False)
class Results:
    """The rows of the long results table (`fedmerit.schema.results.COLUMNS`), never changed, and views of them.

    Column ``method`` holds the label of what is shown. Views of several runs are indexed by ``(method, seed)``, one run
    each; methods follow the column's categories where it has any, else the alphabet.
    """

    rows: pd.DataFrame
    folds: pd.DataFrame | None = None  # of `Rounds`

    @cached_property
    def dice(self) -> Dice:
        """The Dice on each site's test cases."""
        return Dice(self.rows)

    @cached_property
    def union(self) -> UnionDice:
        """The Dice on the test cases of all sites."""
        return UnionDice(self.rows, UNION)

    @cached_property
    def rounds(self) -> Rounds:
        """The views of what was recorded round by round."""
        return Rounds(self.rows, self.folds)

    @property
    def repeats(self) -> str:
        """The repetitions that intervals of quantities by site and round are over: seeds or folds."""
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
        """A copy with the methods in alphabetical order."""
        return Results(self.rows.astype({"method": str}))

    @cached_property
    def coalition_results(self) -> "Results":
        """The rows of coalitions, with the coalition as the method."""
        trained = self.rows[self.rows["coalition"] != ""]
        return Results(trained.assign(method=trained["coalition"]))

    @cached_property
    def read_folders(self) -> "Results":
        """A copy with the names of run folders instead of methods."""
        return Results(self.rows.assign(method=self.rows["run"]))

    @cached_property
    def dice_and_contributions(self) -> pd.DataFrame:
        """The table at the end of a run: one row per method and site, mean over seeds.

        Columns ``method, site, num_samples, dice, weight, mean_contribution, share``: test Dice as a fraction, the
        weight of the last round, the contribution as mean over rounds, and its share of all sites'. After Dice come
        the recorded `SURFACES`. NaN: a run has no such number.
        """
        tested = ["dice", *(name for name in SURFACES if name in self.dice.sites)]
        columns = ["num_samples", *tested, "weight", "mean_contribution", "share"]
        table = self.rounds.contributions.join(self.dice.sites[tested], how="outer").reindex(columns=columns)
        return table.groupby(level=["method", "site"]).mean().reset_index().astype({"method": str})
