"""Tables and figures of one hospital: its own numbers, and of the others only what reveals no single site's.

Of fewer than `MANY_OTHERS` others that is one median, rounded to `ROUND_TO`, and the third of all sites in which the
site's own number ranks; of fewer than `MIN_OTHERS` others nothing.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pandas as pd

from fedmerit_evaluation.figures import curves, dots_and_bars
from fedmerit_evaluation.figures.pages import Drawing
from fedmerit_evaluation.figures.tables import MISSING, Table
from fedmerit_evaluation.report import alt_texts, flagged_sites, shared_parts
from fedmerit_evaluation.report.contributions import Agreement, contribution_shares, image_shares
from fedmerit_evaluation.report.hospitals import sample_size
from fedmerit_evaluation.results.runs import Run
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.inference import MIN_SEEDS, ONE_SEED
from fedmerit_evaluation.statistics.intervals import ESTIMATE, select_sites

MIN_OTHERS = 3  # sites; a median of fewer reveals single numbers
MANY_OTHERS = 8  # from here on quartiles are shown beside the median
ROUND_TO = 0.05  # numbers of others from 0 to 1 are rounded to this: 5 points of Dice, 5 percent
SHARES = ("weight", "contribution", "reputation")  # with one other site, the rest is that site's


@dataclass(frozen=True)
class OwnSite:
    """One site among the others of some runs."""

    name: str
    runs: Sequence[Run]
    results: Results  # of all sites, without shares of training images

    @property
    def others(self) -> int:
        """How many other sites there are."""
        return len(self.runs[0].sites) - 1

    def of(self, statistic: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """A statistic of Dice, fractions, by method: `ESTIMATE` of the site, and all sites' means."""
        table = select_sites(self.results.dice.intervals, statistic)
        mine = table[table.index.get_level_values("of") == self.name].droplevel("of").dropna(subset="mean")
        order = dict.fromkeys(run.label for run in self.runs)
        mine = mine.reindex([method for method in order if method in mine.index])
        return mine[ESTIMATE], pd.DataFrame(table["mean"].unstack("of")).reindex(mine.index)


def rounded_others(table: pd.DataFrame, own: str) -> pd.DataFrame:
    """Rows x ``median``, and the quartiles of `MANY_OTHERS` or more, of the others' numbers from 0 to 1, rounded.

    Without rows in which fewer than `MIN_OTHERS` are known.

    Args:
        table: rows x all sites.
        own: the site whose others these are.
    """
    others = table.drop(columns=own, errors="ignore")
    known = others.notna().sum(axis=1)
    shown = {"median": (0.5, MIN_OTHERS), "lower quartile": (0.25, MANY_OTHERS), "upper quartile": (0.75, MANY_OTHERS)}
    columns = {}
    for name, (share, fewest) in shown.items():
        numbers = pd.Series(others.astype(float).quantile(share, axis=1))
        columns[name] = (ROUND_TO * (numbers / ROUND_TO).round()).where(known >= fewest)
    return pd.DataFrame(columns, index=table.index).dropna(axis=0, how="all").dropna(axis=1, how="all")


def rank_bands(table: pd.DataFrame, own: str, *, lowest_first: bool = False) -> pd.Series:
    """By row, the third of all sites in which the own number ranks: ``upper third``; a dash with too few others.

    Args:
        table: rows x all sites.
        own: the site.
        lowest_first: whether a lower number ranks higher.
    """
    ranks = table.rank(axis=1, ascending=lowest_first, method="average")
    count = table.notna().sum(axis=1)
    place = (ranks[own] - 0.5) / count
    words = np.select([place < 1 / 3, place < 2 / 3], ["upper third", "middle third"], "lower third")
    bands = pd.Series(words, index=table.index, dtype=object)
    return bands.where((count > MIN_OTHERS) & place.notna(), MISSING)


def redact_other_sites(results: Results, others: int) -> tuple[Results, list[str]]:
    """The results without what reveals other sites' numbers, and why each is left out.

    Weights and contributions that are shares of training images, together with a site's own number of images, reveal
    those of the others (`image_shares` finds them). With one other site, the rest of a whole is that site's.

    Args:
        results: of all sites.
        others: how many other sites there are.
    """
    reasons = []
    keys = ["method", "seed", "round"] if results.folds is None else ["method", "round"]  # shares are by fold
    found = dict[str, list[tuple[object, ...]]]()
    for quantity in shared_parts.ROUNDS:
        same = image_shares(results, quantity)
        found[quantity] = list(
            same[same].reset_index().astype({"method": str})[keys].itertuples(index=False, name=None)
        )
    if any(found.values()):
        reasons.append("shares of training images would reveal the numbers of images of other sites")
    if others == 1:
        reasons.append("with two sites, the rest of the whole is the other site's")
    if not reasons:
        return results, reasons

    def kept(rows: pd.DataFrame) -> pd.DataFrame:
        rounds = pd.MultiIndex.from_frame(rows[keys].astype({"method": str}))
        dropped = rows["quantity"].isin(SHARES if others == 1 else [])
        for quantity, of in found.items():
            dropped |= rounds.isin(of) & (rows["quantity"] == quantity)
        return rows[~(dropped & (rows["split"] == ""))]

    return Results(kept(results.rows), None if results.folds is None else kept(results.folds)), reasons


CONTRIBUTION_COLUMNS = {"mean_weight": "Weight, mean [%]", "mean_reputation": "Reputation, mean [own unit]"}
SHARE = "Share of contribution [%]"


def own_tables(own: OwnSite, agreed: Sequence[Agreement]) -> Iterator[Table]:
    """Every table that the results can fill, its numbers rounded as they are shown."""
    tables = (_dice(own), _received_models(own), _cases(own), _contributions(own), _values(own, agreed), _guard(own))
    return (_rounded(table) for table in chain(*tables))


def _dice(own: OwnSite) -> Iterator[Table]:
    (dice, all_dice), (gain, all_gains) = own.of("dice"), own.of("gain")
    insufficient_data = sample_size(own.results).insufficient_data
    if not dice.empty:
        shown = {"Test Dice [%]": Beside(dice, all_dice, 100.0, rounded=True)}
        yield _against("own-dice", own, shown, "Test Dice [%], in brackets the 95 % CI", insufficient_data)
    if surfaces := _surfaces(own):
        caption = "Surface distances of prediction and reference"
        yield _against("own-surfaces", own, surfaces, caption, insufficient_data)
    if not gain.empty:
        shown = {"Gain [points]": Beside(gain, all_gains, 100.0)}
        caption = "Gain in test Dice over local training [points], in brackets the 95 % CI"
        yield _against("own-gains", own, shown, caption, insufficient_data)


def _received_models(own: OwnSite) -> Iterator[Table]:
    rows = own.results.rows
    for table in shared_parts.received_models(rows[rows["site"] == own.name], own.name):
        yield replace(table, name=f"own-{table.name.replace('_', '-')}", frame=table.frame.drop(columns="Site"))


def _cases(own: OwnSite) -> Iterator[Table]:
    cases = own.results.dice.sites
    if not cases.empty:
        mine = shared_parts.averaged(cases[cases.index.get_level_values("site") == own.name]).droplevel("site")
        frame = pd.DataFrame({"Method": mine.index.astype(str), "Test cases": mine["cases"].to_numpy(),
                              "Lowest case [%]": 100 * mine["lowest"].to_numpy(),
                              "Both empty": mine["both_empty"].to_numpy()})  # fmt: skip
        yield Table("own-cases", f"Test cases of {own.name}", frame)


def _contributions(own: OwnSite) -> Iterator[Table]:
    if columns := _contribution_columns(own):
        few = len({run.seed for run in own.runs}) < MIN_SEEDS
        over = own.results.repeats
        caption = f"Weights and share of contribution, mean over rounds and {over}; in brackets the 95 % CI over {over}"
        yield _against("own-contributions", own, columns, caption, ONE_SEED if few else "")


def _values(own: OwnSite, agreed: Sequence[Agreement]) -> Iterator[Table]:
    if agreed:
        shown = {
            f"Value, {one.reference} [points]": _beside(one.values.mean().to_frame("").T, own.name) for one in agreed
        }
        caption = "Value of the site: points of mean Dice, mean over seeds"
        caption += "".join(f"; {one.sampled}" for one in agreed if one.sampled)
        few = min(len(one.values) for one in agreed) < MIN_SEEDS
        yield _against("own-values", own, shown, caption, ONE_SEED if few else "")


def _guard(own: OwnSite) -> Iterator[Table]:
    """Flags and bounds of the site, without what reveals the others' numbers."""
    flags = flagged_sites.list_flags(own.runs)
    flags = flags[flags["Site"] == own.name]
    if not flags.empty:
        sites = own.runs[0].sites
        flags = flags.assign(Reason=[_unnamed(str(reason), sites, own.name) for reason in flags["Reason"]])
        yield Table("own-flags", f"Rounds in which {own.name} was flagged or expelled, or its reply rejected", flags)
    bounds = flagged_sites.bounds_table(own.runs)
    if not bounds.frame.empty and (rows := bounds.frame[bounds.frame["Site"] == own.name]).size:
        # the amount reveals the median of the others
        kept = rows.drop(columns="Least [%]").reset_index(drop=True)
        caption = f"What the guard clipped or capped of {own.name}{flagged_sites.explain_bounds(kept['What'])}"
        yield Table("own-bounds", caption, kept)


@dataclass(frozen=True)
class Beside:
    """A quantity of the site and of all sites, in one unit."""

    mine: pd.DataFrame  # methods x mean, low, high
    everyone: pd.DataFrame  # methods x sites
    unit: float = 1.0  # of what is shown
    rounded: bool = False  # whether it is between 0 and 1, so the others' rounded median may be shown
    lowest_first: bool = False


def _against(name: str, own: OwnSite, columns: dict[str, Beside], caption: str, insufficient_data: str) -> Table:
    """A row per quantity and method: the site's own, the third it ranks in, the rounded median of the others."""
    mine = pd.concat({what: one.unit * one.mine for what, one in columns.items()})
    names = {"Method": [str(index[1]) for index in mine.index]}
    if len(columns) > 1:
        names = {"Quantity": [str(index[0]) for index in mine.index], **names}
    if not any(names["Method"]):
        names = {"Value": [str(index[0]) for index in mine.index]}
    bands = pd.concat(
        {what: rank_bands(one.everyone, own.name, lowest_first=one.lowest_first) for what, one in columns.items()}
    )
    others = pd.concat(
        {
            what: one.unit * rounded_others(one.everyone, own.name).reindex(one.everyone.index)
            for what, one in columns.items()
            if one.rounded
        }
        or {"": pd.DataFrame()}
    )
    shown: dict[str, pd.DataFrame | pd.Series] = {own.name: mine}
    if bands.str.endswith("third").any():
        words = (
            bands.where(~bands.str.endswith("third"), insufficient_data.partition(" (")[0])
            if insufficient_data
            else bands
        )
        shown["Rank among all sites"] = words
    if others.notna().any(axis=None):
        shown |= {f"Others, {column}": others[column].reindex(mine.index) for column in others}
        caption += "; of the others only the median, rounded to 5"
    return Table(name, caption, **shared_parts.with_intervals(shown, names), decimals=1)


def _rounded(table: Table) -> Table:
    """The same numbers in the files as on the page."""
    parts = {name: part.round(1) for name in ("frame", "low", "high") if (part := getattr(table, name)) is not None}
    return replace(table, **parts)


def _unnamed(text: str, sites: Sequence[str], own: str) -> str:
    """A text without the names of other sites, if they are whole words and no part of a longer name."""
    names = "|".join(re.escape(site) for site in sorted(sites, key=len, reverse=True))
    return re.sub(rf"(?<!\w)(?:{names})(?!\w)", lambda found: own if found[0] == own else "another site", text)


def _surfaces(own: OwnSite) -> dict[str, Beside]:
    found = {}
    for heading, column in shared_parts.surface_columns(own.results.dice.sites).items():
        table = _method_by_site(column)
        if own.name in table and table[own.name].notna().any():
            found[heading] = _beside(table, own.name, lowest_first=heading.startswith("HD95"))
    return found


def _beside(table: pd.DataFrame, name: str, *, unit: float = 1.0, lowest_first: bool = False) -> Beside:
    mine = pd.DataFrame({"mean": table[name], "low": math.nan, "high": math.nan}).dropna(subset="mean")
    return Beside(mine, table.reindex(mine.index), unit, lowest_first=lowest_first)


def _method_by_site(column: pd.Series) -> pd.DataFrame:
    """``(method, seed, site)`` as methods x sites, mean over seeds."""
    table = column.unstack("site").groupby(level="method", observed=True).mean().dropna(how="all")
    return table.set_axis(table.index.astype(str), axis=0)


def _contribution_columns(own: OwnSite) -> dict[str, Beside]:
    """Weights and reputations, means over rounds and seeds, and shares of contribution."""
    table_of_all = own.results.rounds.contributions
    found: dict[str, Beside] = {}
    for column, heading in CONTRIBUTION_COLUMNS.items():
        table = _method_by_site(table_of_all[column]) if column in table_of_all else pd.DataFrame()
        if own.name in table:
            found[heading] = _beside(table, own.name, unit=100.0 if "[%]" in heading else 1.0)
    shares = {method: sites for method, sites in contribution_shares(own.results).items() if own.name in sites}
    if shares:
        mine = pd.DataFrame({method: vars(sites[own.name]) for method, sites in shares.items()}).T
        everyone = pd.DataFrame(
            {method: {site: one.mean for site, one in sites.items()} for method, sites in shares.items()}
        )
        found[SHARE] = Beside(mine, everyone.T, 100.0, rounded=True)
    return found


def own_figures(own: OwnSite) -> Iterator[tuple[str, Drawing]]:
    """Figures by name."""
    dice, everyone = own.of("dice")
    if not dice.empty:
        rows = own.results.dice.cases.xs(own.name, level="site")
        cases = {method: rows[rows.index.get_level_values("method") == method] for method in dice.index}
        others = rounded_others(everyone, own.name)
        medians = others["median"] if "median" in others else pd.Series(dtype=float)
        beside = "; and the median of the others" if len(medians) else ""
        text = f"Test Dice of {own.name} per method, each dot one of its cases{beside}."
        drawn = dots_and_bars.own_dice(dice["mean"], cases, medians, own.name)
        yield "own-dice", Drawing(text, drawn, alt_texts.describe_own_figure(own.name, dice["mean"]))
    validation = own.results.rounds.validation
    if own.name in validation:
        text = "Validation Dice over the rounds, of the model received, mean over seeds."
        yield "own-validation", _over_rounds(own, validation, "Validation Dice [%]", text)
    for quantity in shared_parts.shared_quantities(own.results):
        table = own.results.rounds.of(quantity)
        if own.name in table and table[own.name].notna().any() and quantity == "weight":
            text = "Aggregation weight over the rounds, mean over seeds."
            yield f"own-{shared_parts.ROUNDS[quantity][0]}", _over_rounds(own, table, "Weight [%]", text)


def _over_rounds(own: OwnSite, table: pd.DataFrame, title: str, text: str) -> Drawing:
    means = (100 * table[own.name]).round(1).groupby(level=["method", "round"], observed=True).mean()
    mine = pd.DataFrame(means.unstack("method")).dropna(axis=1, how="all").round(1)
    mine.columns = mine.columns.astype(str)
    return Drawing(text, curves.own_over_rounds(mine, own.name, title), alt_texts.describe_lines(mine, title))
