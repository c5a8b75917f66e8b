"""Each hospital's benefit and contribution: the two tables that a report shows first, and the method they are of."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from fedmerit_evaluation.figures.tables import DASH, Table
from fedmerit_evaluation.report import contributions, flagged_sites
from fedmerit_evaluation.report.contribution_statements import describe_share
from fedmerit_evaluation.report.contributions import Agreement, contribution_shares, methods_by_image_count
from fedmerit_evaluation.report.shared_parts import averaged, surface_columns, with_intervals
from fedmerit_evaluation.report.statements import describe_gain
from fedmerit_evaluation.results.runs import Run, combine_results, has_same_training
from fedmerit_evaluation.results.views import POOLED, STANDALONE, Results
from fedmerit_evaluation.statistics.inference import Comparison, Estimate, SampleSize, compare_training
from fedmerit_evaluation.statistics.intervals import estimates, select_sites

NOT_FEDERATED = (STANDALONE, POOLED)  # methods


@dataclass(frozen=True)
class Hospital:
    """One hospital in a report. Dice, gain and share are fractions; a mean of NaN: not known."""

    name: str
    local: float  # test Dice of local training
    federated: Estimate  # test Dice
    surfaces: Mapping[str, float]  # HD95 and NSD of federated training, in the units of their headings
    gain: Estimate
    share: Estimate  # of all contributions by the method's estimate, or of images
    share_seeds: int  # that it rests on
    values: Mapping[str, float]  # by ground truth
    flagged: str  # by what; "": by nothing
    needs_review: bool  # flagged by the server, or by a verdict in force
    sample: SampleSize
    sites: int  # that take part
    counts_images: bool = False  # whether the share is that of images, which is no estimate
    is_ambiguous: bool = False  # there are runs of local training, but none to compare with

    @property
    def comparison(self) -> Comparison:
        """Of federated with local training."""
        return compare_training(self.gain, self.sample)

    @property
    def benefit(self) -> str:
        """The comparison in a sentence."""
        tested, has_local = (not math.isnan(dice) for dice in (self.federated.mean, self.local))
        return describe_gain(self.gain, self.sample, tested=tested, has_local=has_local, ambiguous=self.is_ambiguous)

    @property
    def contribution(self) -> str:
        """The share compared with an equal one in a sentence; before it, whether the hospital is flagged."""
        share = "" if self.counts_images else describe_share(self.share, 1 / self.sites, self.share_seeds)
        return " ".join(filter(None, ("Flagged: look at it first." if self.needs_review else "", share))) or DASH


def choose_method(runs: Sequence[Run], results: Results) -> str | None:
    """The method that a report is about: the first that estimates contributions, else the first federated one.

    Shares of training images are no estimate. None: no run is federated.
    """
    labels = {run.label: str(run.info["method"]) for run in runs}
    federated = [label for label in labels if labels[label] not in NOT_FEDERATED]
    counted = methods_by_image_count(results)
    estimating = [label for label in federated if label not in counted and label in contribution_shares(results)]
    return next(iter([*estimating, *federated]), None)


def align_local_only(runs: Sequence[Run]) -> list[Run]:
    """The runs; those of local training that hospitals are compared with get the plain label of local training.

    Of runs of local training with several settings these are the ones with the settings of the report's method; none
    if no run has them, or runs of several labels.
    """
    honest = [run for run in runs if not run.attacks] or list(runs)
    local = {run.label: run for run in honest if run.info["method"] == STANDALONE and not run.attacks}
    if not local or STANDALONE in local:
        return list(runs)
    alike = list(local)
    if len(local) > 1:
        method = choose_method(honest, combine_results(honest))
        chosen = [run for run in honest if run.label == method][:1]
        alike = [label for label, run in local.items() if any(has_same_training(run, one) for one in chosen)]
    return [replace(run, label=STANDALONE) if alike == [run.label] else run for run in runs]


def has_ambiguous_baseline(runs: Sequence[Run]) -> bool:
    """Whether there are runs of local training among those of `align_local_only`, but none to compare with."""
    labels = {run.label for run in runs if run.info["method"] == STANDALONE and not run.attacks}
    return bool(labels) and STANDALONE not in labels


def list_hospitals(runs: Sequence[Run], results: Results, method: str, agreed: Sequence[Agreement]) -> list[Hospital]:
    """The hospitals, by name.

    Args:
        runs: without simulated attacks.
        results: of them.
        method: as of `choose_method`.
        agreed: agreement with each ground truth, if there is any.
    """
    dice, sites = results.dice, runs[0].sites
    local = pd.Series(dtype=float)
    if not dice.rows.empty and STANDALONE in dice.by_site.index.get_level_values("method"):
        local = pd.Series(pd.DataFrame(dice.by_site.loc[STANDALONE]).mean())
    is_ambiguous = has_ambiguous_baseline(runs)
    federated, gain = (_select_method(select_sites(dice.intervals, name), method) for name in ("dice", "gain"))
    surfaces = _surfaces(results, method)
    shares = contribution_shares(results).get(method, {})
    own_runs = [run for run in runs if run.label == method]
    flags = flagged_sites.list_flags(own_runs)
    flags = flags[~flags["What"].isin(list(flagged_sites.VERDICT_EFFECTS.values()))]
    guarded = [run for run in own_runs if flagged_sites.is_guarded(run)]
    found = flagged_sites.describe_by_site(guarded)
    in_force = flagged_sites.sites_with_standing_verdict(guarded)
    return [
        Hospital(
            name=site,
            local=float(local.get(site, math.nan)),
            federated=federated.get(site, Estimate(math.nan)),
            surfaces=surfaces.get(site, {}),
            gain=gain.get(site, Estimate(math.nan)),
            share=shares.get(site, Estimate(math.nan)),
            share_seeds=contributions.count_share_seeds(results).get(method, 0),
            values={one.reference: float(one.values[site].mean()) / 100 for one in agreed},
            flagged="; ".join([*_server_flags(site, flags), *found.get(site, [])]),
            needs_review=bool(_server_flags(site, flags)) or site in in_force,
            sample=sample_size(results, site, [method, STANDALONE]),
            sites=len(sites),
            counts_images=method in methods_by_image_count(results),
            is_ambiguous=is_ambiguous,
        )
        for site in sites
    ]


def sample_size(results: Results, site: str | None = None, methods: Collection[str] | None = None) -> SampleSize:
    """The sample behind a comparison: the fewest test patients of a seed, and the seeds in which all was tested alike.

    A seed in which a site has no Dice of a method, or methods were tested on different cases, does not count.

    Args:
        results: of all runs.
        site: whose Dice is compared; None: that of all sites.
        methods: that are compared, those that were tested; None: all.
    """
    if results.dice.rows.empty:
        return SampleSize(0, 0)
    cases = results.dice.sites["patients"].unstack("site")
    cases = cases.where(results.dice.by_site.reindex(columns=cases.columns).notna())
    cases = cases if methods is None else cases[cases.index.get_level_values("method").isin(list(methods))]
    cases = cases.reindex(columns=[site] if site is not None else cases.columns).dropna(axis=1, how="all")
    if cases.empty:
        return SampleSize(0, 0)
    tested = cases.notna().all(axis=1)
    seeds = [set(row.index[row].get_level_values("seed")) for _, row in tested.groupby(level="method", observed=True)]
    return SampleSize(
        int(cases.min().min()),
        len(set.intersection(*seeds) - results.dice.mismatched_seeds(site, methods)),
        folds=results.dice.clusters.folds,
    )


def benefit_table(rows: Sequence[Hospital], method: str, over: str) -> Table:
    """Dice of local and federated training and the gain, a row per hospital; ``over``: `resampling_units`."""
    surfaces = dict.fromkeys(name for row in rows for name in row.surfaces)
    columns: dict[str, pd.DataFrame | pd.Series] = {
        "Local, Dice [%]": 100 * pd.Series([row.local for row in rows]),
        "Federated, Dice [%]": 100 * _estimates([row.federated for row in rows]),
        **{f"Federated, {name}": pd.Series([row.surfaces.get(name, math.nan) for row in rows]) for name in surfaces},
        "Gain [points]": 100 * _estimates([row.gain for row in rows]),
        "Result": pd.Series([row.benefit for row in rows]),
    }
    caption = (
        f"Benefit: test Dice of each hospital with local training and with federated training by {method}; in brackets "
        f"the 95 % confidence interval (CI) over {over}"
    )
    return Table("benefit", caption, **with_intervals(columns, {"Hospital": [row.name for row in rows]}))


def contribution_table(rows: Sequence[Hospital], method: str, repeats: str) -> Table:
    """The share of the contributions, values by ground truth and flags, a row per hospital."""
    of_images = any(row.counts_images for row in rows)
    heading = "Share of images [%]" if of_images else "Share of contribution [%]"
    columns: dict[str, pd.DataFrame | pd.Series] = {
        heading: 100 * _estimates([row.share for row in rows]),
        **{
            f"Value, {reference} [points]": 100 * pd.Series([row.values[reference] for row in rows])
            for reference in (rows[0].values if rows else ())
        },
        "Flagged": pd.Series([row.flagged or "no" for row in rows]),
        "Result": pd.Series([row.contribution for row in rows]),
    }
    estimate = "number of images: the method makes no estimate" if of_images else f"the estimate of {method}"
    repeated = any(row.share_seeds > 1 for row in rows)
    ends = f"; in brackets the 95 % CI over {repeats}" * (repeated and not of_images)
    caption = f"Contribution: share of each hospital by {estimate}{ends}"
    return Table("contribution", caption, **with_intervals(columns, {"Hospital": [row.name for row in rows]}))


def _estimates(numbers: Sequence[Estimate]) -> pd.DataFrame:
    return pd.DataFrame([(one.mean, one.low, one.high) for one in numbers], columns=["mean", "low", "high"])


def _surfaces(results: Results, method: str) -> dict[str, dict[str, float]]:
    """By site, HD95 and NSD of a method by their headings, means over seeds."""
    if results.dice.rows.empty:
        return {}
    sites = averaged(results.dice.sites)
    own = sites[sites.index.get_level_values("method") == method].droplevel("method")
    table = pd.DataFrame(surface_columns(own)).dropna(axis=1, how="all").T
    return {str(site): {str(name): float(value) for name, value in column.items()} for site, column in table.items()}


def _select_method(table: pd.DataFrame, method: str) -> dict[str, Estimate]:
    return estimates(table[table.index.get_level_values("method") == method].droplevel("method"))


def _server_flags(site: str, flags: pd.DataFrame) -> list[str]:
    """What the server found of a site, apart from verdicts."""
    own = flags[flags["Site"] == site]
    return [f"{what}, rounds {rounds}" for what, rounds in own[["What", "Rounds"]].itertuples(index=False)]
