"""Who made it better, and by how much: a row per hospital of what it has alone, has together, and gives."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.report import flagged_sites
from fedmerit_evaluation.report.contributions import (
    Agreement,
    contribution_shares,
    count_share_seeds,
    methods_by_image_count,
)
from fedmerit_evaluation.report.phrases import resampling_units
from fedmerit_evaluation.report.shared_parts import averaged, surface_columns, with_intervals
from fedmerit_evaluation.report.statements import describe_gain, describe_share
from fedmerit_evaluation.results.dice import POOLED, STANDALONE
from fedmerit_evaluation.results.run_folders import Run, combine_results, has_same_training
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.inference import Comparison, Estimate, SampleSize, verdict
from fedmerit_evaluation.statistics.intervals import select_sites

NOT_COLLABORATIVE = (STANDALONE, POOLED)  # methods that are no federation


@dataclass(frozen=True)
class Hospital:
    """What one hospital has and gives. Dice, gain and share are fractions; a mean of NaN: not known."""

    name: str
    alone: float  # test Dice
    together: Estimate  # test Dice
    surfaces: Mapping[str, float]  # HD95 and NSD together, in the units of their headings
    gain: Estimate
    share: Estimate  # of what all contributed, by the method's own estimate
    share_seeds: int  # that it rests on
    values: Mapping[str, float]  # by ground truth
    flagged: str  # by whom, of guarded runs by the guard alone; nothing where by nobody
    accused: bool  # look at it first: flagged; of guarded runs, by a verdict that stands
    grounds: SampleSize
    sites: int  # that take part
    alone_differs: bool = False  # there are runs of training alone, of which none is compared with

    @property
    def verdict(self) -> Comparison:
        """What collaboration did to it."""
        return verdict(self.gain, self.grounds)

    @property
    def words(self) -> str:
        """The verdict in words."""
        tested, alone = (not math.isnan(dice) for dice in (self.together.mean, self.alone))
        gain = describe_gain(self.gain, self.grounds, tested=tested, alone=alone, differing=self.alone_differs)
        share = describe_share(self.share, 1 / self.sites, self.share_seeds)
        return " ".join(filter(None, ("Flagged: look at it first." if self.accused else "", gain, share)))


def choose_method(runs: Sequence[Run], results: Results) -> str | None:
    """The method whose hospitals are judged: the first that estimates contributions, else the first that federates.

    Shares of training images are no estimate. None: no run trains together.
    """
    labels = {run.label: str(run.info["method"]) for run in runs}
    federated = [label for label in labels if labels[label] not in NOT_COLLABORATIVE]
    counted = methods_by_image_count(results)
    estimating = [label for label in federated if label not in counted and label in contribution_shares(results)]
    return next(iter([*estimating, *federated]), None)


def align_local_only(runs: Sequence[Run]) -> list[Run]:
    """The runs, of which those that hospitals are compared with bear the plain label of training alone.

    Where runs of several settings train alone, those are it that train as the method that is judged; none is where not
    one does, or more than one.
    """
    honest = [run for run in runs if not run.attacks] or list(runs)
    alone = {run.label: run for run in honest if run.info["method"] == STANDALONE and not run.attacks}
    if not alone or STANDALONE in alone:
        return list(runs)
    method = choose_method(honest, combine_results(honest))
    judged = [run for run in honest if run.label == method][:1]
    alike = [
        label for label, run in alone.items() if len(alone) == 1 or any(has_same_training(run, one) for one in judged)
    ]
    return [replace(run, label=STANDALONE) if alike == [run.label] else run for run in runs]


def has_ambiguous_baseline(runs: Sequence[Run]) -> bool:
    """Whether runs of training alone are among those of `align_local_only`, and hospitals are compared with none."""
    labels = {run.label for run in runs if run.info["method"] == STANDALONE and not run.attacks}
    return bool(labels) and STANDALONE not in labels


def list_hospitals(
    runs: Sequence[Run], results: Results, method: str, agreed: Sequence[Agreement], suspicions: pd.DataFrame
) -> list[Hospital]:
    """A row per hospital, by name.

    Args:
        runs: honest ones.
        results: of them.
        method: as `judged_method` says.
        agreed: ground truths, where there are any.
        suspicions: as `marks.suspected`; of guarded runs the guard's verdicts stand in their place.
    """
    dice, sites = results.dice, runs[0].sites
    alone = pd.Series(dtype=float)
    if not dice.rows.empty and STANDALONE in dice.by_site.index.get_level_values("method"):
        alone = pd.Series(pd.DataFrame(dice.by_site.loc[STANDALONE]).mean())
    differs = has_ambiguous_baseline(runs)
    dice_together, gain = (_of_method(select_sites(dice.intervals, name), method) for name in ("dice", "gain"))
    surfaces = _surfaces(results, method)
    shares = contribution_shares(results).get(method, {})
    of_method = [run for run in runs if run.label == method]
    server = flagged_sites.list_flags(of_method)
    server = server[~server["What"].isin(list(flagged_sites.VERDICT_EFFECTS.values()))]
    guarded = [run for run in of_method if flagged_sites.is_guarded(run)]
    said, standing = flagged_sites.describe_by_site(guarded), flagged_sites.sites_with_standing_verdict(guarded)
    if not guarded and not suspicions.empty:
        own = suspicions[suspicions["Method"].astype(str) == method]
        said = {str(site): [f"suspected: {', '.join(rows['Detector'])}"] for site, rows in own.groupby("Site")}
    return [
        Hospital(
            name=site,
            alone=float(alone.get(site, math.nan)),
            together=dice_together.get(site, Estimate(math.nan)),
            surfaces=surfaces.get(site, {}),
            gain=gain.get(site, Estimate(math.nan)),
            share=shares.get(site, Estimate(math.nan)),
            share_seeds=count_share_seeds(results).get(method, 0),
            values={one.truth: float(one.values[site].mean()) / 100 for one in agreed},
            flagged="; ".join([*_found(site, server), *said.get(site, [])]),
            accused=bool(_found(site, server)) or site in (standing if guarded else said),
            grounds=sample_size(results, site, [method, STANDALONE]),
            sites=len(sites),
            alone_differs=differs,
        )
        for site in sites
    ]


def sample_size(results: Results, site: str | None = None, methods: Collection[str] | None = None) -> SampleSize:
    """What a comparison rests on: the fewest test cases in any seed, and the seeds in which all was tested, alike.

    A seed in which a site has no Dice of a method, or methods were tested on different cases, does not count.

    Args:
        results: of all runs.
        site: whose Dice is compared; None: that of all sites.
        methods: that are compared, as far as they were tested; None: all.
    """
    if results.dice.rows.empty:
        return SampleSize(0, 0)
    cases = results.dice.sites["cases"].unstack("site")
    cases = cases.where(results.dice.by_site.reindex(columns=cases.columns).notna())
    cases = cases if methods is None else cases[cases.index.get_level_values("method").isin(list(methods))]
    cases = cases.reindex(columns=[site] if site is not None else cases.columns).dropna(axis=1, how="all")
    if cases.empty:
        return SampleSize(0, 0)
    tested = cases.notna().all(axis=1)
    seeds = [set(row.index[row].get_level_values("seed")) for _, row in tested.groupby(level="method", observed=True)]
    return SampleSize(
        int(cases.min().min()), len(set.intersection(*seeds) - results.dice.mismatched_seeds(site, methods))
    )


def hospital_table(rows: Sequence[Hospital], method: str, seeds: int) -> Table:
    """The first thing that a report shows; of how many ``seeds`` of the method."""
    surfaces = dict.fromkeys(name for row in rows for name in row.surfaces)
    columns: dict[str, pd.DataFrame | pd.Series] = {
        "Alone, Dice [%]": 100 * pd.Series([row.alone for row in rows]),
        "Together, Dice [%]": 100 * _frame([row.together for row in rows]),
        **{f"Together, {name}": pd.Series([row.surfaces.get(name, math.nan) for row in rows]) for name in surfaces},
        "Gain [points]": 100 * _frame([row.gain for row in rows]),
        "Share of contribution [%]": 100 * _frame([row.share for row in rows]),
        **{
            f"Value, {truth} [points]": 100 * pd.Series([row.values[truth] for row in rows])
            for truth in (rows[0].values if rows else ())
        },
        "Flagged": pd.Series([row.flagged or "no" for row in rows]),
        "Verdict": pd.Series([row.words for row in rows]),
    }
    caption = (
        f"Each hospital alone and together by {method}, with 95 % intervals in brackets: of Dice over test "
        f"{resampling_units(seeds)}{', of shares over seeds' * (seeds > 1)}"
    )
    return Table("hospitals", caption, **with_intervals(columns, {"Hospital": [row.name for row in rows]}))


def _frame(numbers: Sequence[Estimate]) -> pd.DataFrame:
    return pd.DataFrame([(one.mean, one.low, one.high) for one in numbers], columns=["mean", "low", "high"])


def _surfaces(results: Results, method: str) -> dict[str, dict[str, float]]:
    """By site, HD95 and NSD of a method by their headings, means over seeds."""
    if results.dice.rows.empty:
        return {}
    sites = averaged(results.dice.sites)
    own = sites[sites.index.get_level_values("method") == method].droplevel("method")
    table = pd.DataFrame(surface_columns(own)).dropna(axis=1, how="all").T
    return {str(site): {str(name): float(value) for name, value in column.items()} for site, column in table.items()}


def _of_method(table: pd.DataFrame, method: str) -> dict[str, Estimate]:
    rows = table[table.index.get_level_values("method") == method].droplevel("method")
    return {str(site): Estimate(row["mean"], row["low"], row["high"]) for site, row in rows.iterrows()}


def _found(site: str, server: pd.DataFrame) -> list[str]:
    """What the server found of a site beside verdicts."""
    own = server[server["Site"] == site]
    return [f"{what}, rounds {rounds}" for what, rounds in own[["What", "Rounds"]].itertuples(index=False)]
