"""The tables of a report on all sites, as far as the results fill them."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from fedmerit_evaluation.figures.tables import HEADINGS, MISSING, UNITS, Table, with_headings
from fedmerit_evaluation.report import flagged_sites
from fedmerit_evaluation.report.contributions import methods_by_image_count
from fedmerit_evaluation.report.hospitals import sample_size
from fedmerit_evaluation.report.phrases import join_words, resampling_units
from fedmerit_evaluation.report.shared_parts import averaged, other_models, surface_columns, with_intervals
from fedmerit_evaluation.results.runs import Run
from fedmerit_evaluation.results.views import RUN, SURFACES, Results
from fedmerit_evaluation.statistics.intervals import select_methods, select_sites, sort_by_mean


def report_tables(
    runs: Sequence[Run], results: Results, everyone: Sequence[Run], everything: Results
) -> dict[str, Table]:
    """The tables that the results can fill, by name; contributions, costs and flags are of all runs.

    Args:
        runs: with labels, without those that were attacked.
        results: of them.
        everyone: all runs.
        everything: the results of all runs.
    """
    several_seeds = len({run.seed for run in runs}) > 1
    over_seeds = ", mean over seeds" * several_seeds
    found: list[Table] = []
    if not results.dice.rows.empty:
        found += [_methods(results), _comparison(results, several_seeds), _sites(results, over_seeds)]
        if results.dice.labels.shape[1] > 1:
            found.append(_labels(results, over_seeds))
        for name, matrix in results.union.cross_site.items():
            caption = f"Test {HEADINGS[name]} of each site's own final model (row) at every site (column){over_seeds}"
            frame = with_headings(averaged(matrix) * UNITS.get(name, 1.0))
            found.append(Table("cross_site" if name == "dice" else f"cross_site_{name}", caption, frame, decimals=1))
        if select_sites(results.dice.intervals, "gain")["mean"].notna().any():
            found += [_gains(results), *_surface_changes(results)]
    found += other_models(results)
    if not everything.rounds.contributions.empty:
        found.append(_contributions(everything, several_seeds))
    flags = flagged_sites.list_flags(everyone)
    if not flags.empty:
        found.append(Table("flags", "Flagged or excluded sites, and rejected replies", flags))
    bounds = flagged_sites.bounds_table(everyone)
    if not bounds.frame.empty:
        found.append(bounds)
    costs = everything.rounds.costs
    if not costs.empty:
        found.append(
            Table("costs", f"Time and transfer per site and round{over_seeds}", with_headings(averaged(costs)))
        )
    return {table.name: table for table in found}


def _methods(results: Results) -> Table:
    intervals = results.dice.intervals
    order = sort_by_mean(select_methods(intervals, "mean"))
    columns: dict[str, pd.DataFrame | pd.Series] = {
        "Mean Dice [%]": 100 * select_methods(intervals, "mean").loc[order],
        "Rank": _ranks(results).reindex(order),
        "Worst site [%]": 100 * pd.DataFrame(results.dice.comparison[0]["sites"])["worst"].loc[order],
    }
    gain = select_methods(intervals, "mean_gain")
    if not gain.empty:
        columns["Mean gain over local training [points]"] = 100 * gain.reindex(order)
    sites = results.dice.sites
    runs = sites[[name for name in SURFACES if name in sites]].groupby(level=RUN).mean()
    columns |= surface_columns(runs.groupby(level="method").mean().reindex(order))
    caption = f"Methods by mean test Dice; {_level_note(results)}"
    return Table("methods", caption, **with_intervals(columns, {"Method": order}))


def _level_note(results: Results) -> str:
    over = resampling_units(results.dice.rows["seed"].nunique(), results.dice.clusters.folds)
    return f"in brackets the 95 % confidence interval over {over}"


def _ranks(results: Results) -> pd.DataFrame | pd.Series:
    """Ranks of methods by mean Dice with their CIs; or why there are none."""
    ranks = select_methods(results.dice.intervals, "rank")
    if insufficient_data := sample_size(results).insufficient_data:
        return pd.Series(insufficient_data.partition(" (")[0], ranks.index, dtype=object)
    return ranks.round()


def _comparison(results: Results, several_seeds: bool) -> Table:
    """Methods in rows, sites in columns, as papers print it; the best of each column bold."""
    mean, spread = results.dice.comparison
    lower = mean.columns == ("sites", "std")
    best = mean.eq(mean.max()) & ~lower | mean.eq(mean.min()) & lower
    if len(mean) < 2:
        best &= False

    def flat(table: pd.DataFrame, first: Any) -> pd.DataFrame:
        levels = zip(*(table.columns.get_level_values(level) for level in (0, 1)), strict=True)
        names = [name if level == "site" else name.title() for level, name in levels]
        table = table.set_axis(names, axis=1)
        table.insert(0, "Method", first, allow_duplicates=True)
        return table.reset_index(drop=True)

    over_seeds = ", mean ± standard deviation over seeds" * several_seeds
    return Table(
        "comparison",
        f"Test Dice [%] per site{over_seeds}; mean, standard deviation and worst over sites",
        flat(100 * mean, [str(name) for name in mean.index]),
        spread=flat(100 * spread, math.nan),
        best=flat(best, False),
        decimals=1,
    )


def _sites(results: Results, over_seeds: str) -> Table:
    dice = averaged(results.dice.sites)
    methods, sites = ([str(name) for name in dice.index.get_level_values(level)] for level in ("method", "site"))
    ends = select_sites(results.dice.intervals, "dice").reindex(pd.MultiIndex.from_arrays([methods, sites]))
    columns: dict[str, pd.DataFrame | pd.Series] = {
        "Dice [%]": 100 * ends.assign(mean=dice["dice"].to_numpy()),
        "Lowest case [%]": 100 * dice["lowest"],
        **surface_columns(dice),
        **{HEADINGS[name]: dice[name] for name in ("cases", "both_empty", "one_empty") if name in dice},
    }
    caption = f"Test Dice per site{over_seeds}; {_level_note(results)}"
    return Table("dice", caption, **with_intervals(columns, {"Method": methods, "Site": sites}))


def _labels(results: Results, over_seeds: str) -> Table:
    dice = results.dice
    surfaces = {
        f"{label}, {HEADINGS[name]}": table[label] * UNITS.get(name, 1.0)
        for label in dice.labels
        for name, table in dice.label_surfaces.items()
    }
    frame = with_headings(averaged((100 * dice.labels).assign(**surfaces)))
    return Table("labels", f"Test Dice [%] per label{over_seeds}", frame, decimals=1)


def _gains(results: Results) -> Table:
    """Methods in rows, sites in columns."""
    intervals = results.dice.intervals
    gain = select_sites(intervals, "gain")
    methods = sort_by_mean(select_methods(intervals, "mean_gain"))
    columns: dict[str, pd.DataFrame | pd.Series] = {
        str(site): 100 * rows.droplevel("of").reindex(methods) for site, rows in gain.groupby(level="of")
    }
    overall = 100 * select_methods(intervals, "mean_gain").reindex(methods)
    lowest = 100 * gain["mean"].groupby(level="method").min().reindex(methods)
    caption = f"Gain in test Dice over local training [points]; {_level_note(results)}"
    shown = with_intervals({**columns, "Mean": overall, "Lowest": lowest}, {"Method": methods})
    return Table("gains", caption, decimals=1, **shown)


def _surface_changes(results: Results) -> list[Table]:
    changes = results.dice.surface_changes
    if changes.empty:
        return []
    caption = (
        "Change in HD95 and NSD compared with local training, over the cases that both have, mean over seeds; a lower "
        "HD95 is better"
    )
    frame = pd.DataFrame(surface_columns(changes)).reset_index()
    frame = frame.rename(columns={"method": "Method", "site": "Site"}).astype({"Method": str, "Site": str})
    frame = frame.rename(columns=lambda heading: heading.replace("[%]", "[points]"))
    return [Table("surface_changes", caption, frame, decimals=1)]


def _contributions(results: Results, several_seeds: bool) -> Table:
    rankings = results.rounds.rankings
    frame = averaged(results.rounds.contributions).drop(columns=["contribution", "mean_reputation"], errors="ignore")
    if counted := methods_by_image_count(results):
        end = f"; contribution is the share of images (no estimate) with {join_words(counted)}"
    else:
        end = ""
    frame = frame[frame.drop(columns="num_samples", errors="ignore").notna().any(axis=1)]
    caption = "Contributions and weights of the sites"
    low: pd.DataFrame | None = None
    high: pd.DataFrame | None = None
    if several_seeds:
        caption += ", mean over seeds"
    ends = select_sites(results.rounds.intervals, "contribution")
    if several_seeds and not ends.empty:
        wide = (ends["seeds"] > 1) & (ends["high"] > ends["low"])
        low, high = (
            pd.DataFrame({HEADINGS["mean_contribution"]: ends[name].where(wide).reindex(_text(frame.index)).to_numpy()})
            for name in ("low", "high")
        )
        caption += f"; in brackets the 95 % confidence interval of the contribution over {results.repeats}"
    if rankings:
        caption += "; rank by mean contribution: 95 % confidence intervals, of all hospitals at once"
        ranks = {(method, site): rank for method, one in rankings.items() for site, rank in one.table["ranks"].items()}
        frame["Rank"] = [ranks.get(key, MISSING) for key in _text(frame.index)]
    return Table("contributions", caption + end, with_headings(frame), low=low, high=high)


def _text(index: pd.Index) -> pd.MultiIndex:
    """An index of methods and sites as plain text: that of results holds methods as categories."""
    return pd.MultiIndex.from_tuples([(str(method), str(site)) for method, site in index])
