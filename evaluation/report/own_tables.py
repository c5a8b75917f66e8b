"""Tables and figures of one hospital: its own numbers, beside quantiles of the others where they may be shown."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd
from matplotlib.figure import Figure

from evaluation.display import curves, dots_and_bars
from evaluation.display.table import Table
from evaluation.report import marks
from evaluation.report.agreement import Agreement
from evaluation.report.own_site import QUANTILES, Own, quantiles
from evaluation.report.parts import ROUNDS, averaged, shared_quantities, surface_columns, with_intervals
from evaluation.results.intervals import of_sites

MERIT = {
    "mean_weight": "Weight, mean",
    "mean_contribution": "Contribution, mean",
    "mean_reputation": "Reputation, mean",
}


def own_tables(own: Own, agreed: Sequence[Agreement]) -> Iterator[Table]:
    """Every table that the results can fill."""
    dice, gain = own.of("dice"), own.of("gain")
    if not dice[0].empty:
        yield _against("own-dice", own, {"Test Dice [%]": dice}, 100.0, "Test Dice [%], with its 95 % interval", 1)
    surfaces = _surfaces(own)
    if surfaces:
        yield _against("own-surfaces", own, surfaces, 1.0, "How far surfaces of prediction and reference lie apart", 1)
    if not gain[0].empty:
        caption = "Gain in test Dice over training alone [points], with its 95 % interval"
        yield _against("own-gains", own, {"Gain [points]": gain}, 100.0, caption, 1)
    cases = own.results.dice.sites
    if not cases.empty:
        mine = averaged(cases[cases.index.get_level_values("site") == own.name]).droplevel("site")
        frame = pd.DataFrame({"Method": mine.index.astype(str), "Test cases": mine["cases"].to_numpy(),
                              "Lowest case [%]": 100 * mine["lowest"].to_numpy(),
                              "Both empty": mine["both_empty"].to_numpy()})  # fmt: skip
        yield Table("own-cases", f"Test cases of {own.name}", frame)
    merit = _merit(own)
    if merit:
        caption = "Weights and contributions, means over rounds and seeds, of the contribution with its 95 % interval"
        yield _against("own-contributions", own, merit, 1.0, caption, 3)
    if agreed:
        columns = {f"{one.truth} value [points]": _valued(one.values, own.name) for one in agreed}
        caption = "What the site is worth: points of mean Dice, mean over seeds"
        caption += "".join(f"; {one.sampled}" for one in agreed if one.sampled)
        yield _against("own-values", own, columns, 1.0, caption, 2)
    marked = marks.marked(own.runs)
    marked = marked[marked["Site"] == own.name]
    if not marked.empty:
        yield Table("own-marks", f"Where {own.name} was flagged or expelled, or its reply rejected", marked)
    suspicions = marks.suspected(own.runs)[0]
    if not suspicions.frame.empty and (rows := suspicions.frame[suspicions.frame["Site"] == own.name]).size:
        yield replace(suspicions, name="own-suspicions", frame=rows.reset_index(drop=True))


Against = tuple[pd.DataFrame, pd.DataFrame]  # (rows x mean, low, high of the site; rows x quantiles of the others)


def _against(name: str, own: Own, columns: dict[str, Against], unit: float, caption: str, decimals: int) -> Table:
    """A row per quantity and method: the site's own, then the quantiles of the others where they may be shown."""
    mine = unit * pd.concat({what: pair[0] for what, pair in columns.items()})
    others = unit * pd.concat({what: pair[1] for what, pair in columns.items()}).reindex(mine.index)
    names = {"Method": [str(index[1]) for index in mine.index]}
    if len(columns) > 1:
        names = {"Quantity": [str(index[0]) for index in mine.index], **names}
    if not any(names["Method"]):
        names = {"Value": [str(index[0]) for index in mine.index]}
    shown: dict[str, pd.DataFrame | pd.Series] = {own.name: mine}
    if others.notna().any(axis=None):
        shown |= {f"Others, {quantile}": others[quantile] for quantile in QUANTILES}
        caption += "; beside it the quantiles of the other sites"
    return Table(name, caption, **with_intervals(shown, names), decimals=decimals)


def _surfaces(own: Own) -> dict[str, Against]:
    """HD95 and NSD, means over seeds."""
    found: dict[str, Against] = {}
    for heading, column in surface_columns(own.results.dice.sites).items():
        table = _method_by_site(column)
        if own.name in table and table[own.name].notna().any():
            mine = pd.DataFrame({"mean": table[own.name]}).dropna().assign(low=float("nan"), high=float("nan"))
            found[heading] = (mine, quantiles(table.drop(columns=own.name)))
    return found


def _method_by_site(column: pd.Series) -> pd.DataFrame:
    """``(method, seed, site)`` as methods x sites, mean over seeds."""
    table = column.unstack("site").groupby(level="method", observed=True).mean().dropna(how="all")
    return table.set_axis(table.index.astype(str), axis=0)


def _merit(own: Own) -> dict[str, Against]:
    """Weights, contributions and reputations, means over rounds and seeds."""
    merit = own.results.rounds.contributions
    found: dict[str, Against] = {}
    for column, heading in MERIT.items():
        if column not in merit:
            continue
        table = _method_by_site(merit[column])
        if own.name not in table:
            continue
        mine = pd.DataFrame({"mean": table[own.name]}).dropna().assign(low=float("nan"), high=float("nan"))
        if column == "mean_contribution":
            ends = of_sites(own.results.rounds.intervals, "contribution")
            ends = ends[ends.index.get_level_values("of") == own.name].droplevel("of")
            ends = ends[(ends["seeds"] > 1) & (ends["high"] > ends["low"])]
            mine = mine.assign(low=ends["low"].reindex(mine.index), high=ends["high"].reindex(mine.index))
        found[heading] = (mine, quantiles(table.drop(columns=own.name)))
    return found


def _valued(values: pd.DataFrame, name: str) -> Against:
    means = values.mean().to_frame("").T
    mine = pd.DataFrame({"mean": means[name], "low": float("nan"), "high": float("nan")})
    return mine, quantiles(means.drop(columns=name))


def own_figures(own: Own) -> Iterator[tuple[str, tuple[str, Figure]]]:
    """Figures by name, with captions."""
    told = "; grey: the other sites, from lowest to highest, their quartiles and median"
    dice, others = own.of("dice")
    if not dice.empty:
        rows = own.results.dice.cases.xs(own.name, level="site")
        cases = {method: rows[rows.index.get_level_values("method") == method] for method in dice.index}
        text = f"Test Dice of {own.name} per method, each dot one of its cases{'; beside it the others' * len(others)}."
        yield "own-dice", (text, dots_and_bars.own_dice(dice["mean"], cases, others, own.name))
    validation = own.results.rounds.validation
    if own.name in validation:
        text = "Validation Dice over the rounds, of the model received, mean over seeds"
        yield "own-validation", _over_rounds(own, 100 * validation, "Validation Dice [%]", text, told)
    for quantity in shared_quantities(own.results):
        table = own.results.rounds.of(quantity)
        if own.name in table and table[own.name].notna().any():
            text = f"{quantity.title()} over the rounds, mean over seeds"
            yield f"own-{ROUNDS[quantity][0]}", _over_rounds(own, table, quantity.title(), text, told)


def _over_rounds(own: Own, table: pd.DataFrame, title: str, text: str, told: str) -> tuple[str, Figure]:
    means = table.groupby(level=["method", "round"], observed=True).mean()
    mine = pd.DataFrame(means[own.name].unstack("method")).dropna(axis=1, how="all")
    mine.columns = mine.columns.astype(str)
    bands = quantiles(means.drop(columns=own.name))
    others = {str(method): band.droplevel("method").reindex(mine.index) for method, band in bands.groupby("method")}
    return f"{text}{told * bool(others)}.", curves.own_over_rounds(mine, others, own.name, title)
