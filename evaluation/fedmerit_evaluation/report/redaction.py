"""The model of a report for one hospital: its own numbers, and of the others only what reveals no single one's.

Of fewer than `MANY_OTHERS` others that is one median, rounded to `ROUND_TO`, and the third of all hospitals in which
the hospital's own number ranks; of fewer than `MIN_OTHERS` others nothing.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pandas as pd

from fedmerit_evaluation.figures.tables import HEADINGS, MISSING
from fedmerit_evaluation.report.assembly import image_shares
from fedmerit_evaluation.report.flags import Flags
from fedmerit_evaluation.report.limits import Limit
from fedmerit_evaluation.report.model import QUANTITIES, ReportModel
from fedmerit_evaluation.results.views import SURFACES, Results
from fedmerit_evaluation.statistics.family import Question
from fedmerit_evaluation.statistics.inference import MIN_SEEDS, ONE_SEED
from fedmerit_evaluation.statistics.intervals import select_sites

MIN_OTHERS = 3  # hospitals; a median of fewer reveals single numbers
MANY_OTHERS = 8  # from here on quartiles are shown beside the median
ROUND_TO = 0.05  # numbers of others from 0 to 1 are rounded to this: 5 points of Dice, 5 percent
SETTINGS = (
    "method", "parameters", "seed", "task", "labels", "rounds", "training", "image_size", "fedmerit_version", "commit",
    "packages", "started", "network",
)  # fmt: skip
SAFE_COLUMNS = ("mean_weight", "mean_reputation", "share")  # of contributions: none in the method's own unit
OWN_QUESTIONS = (Question.GAIN, Question.SHARE)  # about one hospital
Rows = TypeVar("Rows", pd.DataFrame, pd.Series)
NAMELESS = ("preparation",)  # codes of limits that name no hospital and tell no number of one


def hide_image_shares(results: Results, others: int) -> tuple[Results, list[str]]:
    """Return the results without the weights and contributions that reveal others' numbers of images, and why.

    Those that are shares of training images, together with a hospital's own number of images, reveal those of the
    others. With one other hospital, the rest of every whole is the other's.

    Returns:
        The results and the codes of the reasons: ``images``, ``two_sites``.
    """
    keys = ["method", "seed", "round"] if results.folds is None else ["method", "round"]  # shares are by fold
    hidden = dict[str, list[tuple[object, ...]]]()
    for quantity in QUANTITIES:
        same = image_shares(results, quantity)
        rounds = same[same].reset_index().astype({"method": str})[keys]
        hidden[quantity] = list(rounds.itertuples(index=False, name=None))
    reasons = ["images"] * any(hidden.values()) + ["two_sites"] * (others == 1)
    if not reasons:
        return results, reasons

    def keep(rows: pd.DataFrame) -> pd.DataFrame:
        rounds = pd.MultiIndex.from_frame(rows[keys].astype({"method": str}))
        dropped = rows["quantity"].isin(QUANTITIES if others == 1 else [])
        for quantity, in_rounds in hidden.items():
            dropped |= rounds.isin(in_rounds) & (rows["quantity"] == quantity)
        return rows[~(dropped & (rows["split"] == ""))]

    return Results(keep(results.rows), None if results.folds is None else keep(results.folds)), reasons


def _hide_in_reasons(rows: pd.DataFrame, model: ReportModel, site: str) -> pd.DataFrame:
    """Return findings without the names of other hospitals in their reasons."""
    if "Reason" not in rows:
        return rows
    return rows.assign(Reason=[_hide_names(str(reason), model.study.sites, site) for reason in rows["Reason"]])


def redact(model: ReportModel, site: str, left_out: Sequence[str] = ()) -> ReportModel:
    """Return the model for one hospital: what is not named here stays empty.

    Args:
        model: the model of all hospitals, of results without what `hide_image_shares` leaves out.
        site: the hospital.
        left_out: the codes of what was left out.
    """
    statistic, of = (model.intervals.index.get_level_values(name) for name in ("statistic", "of"))
    own = statistic.isin(["dice", "gain"]) & (of == site)
    contributions = _rows_of(model.contributions, site)
    weights = model.rounds.get("weight", pd.DataFrame())
    table, bounds = (frame[frame["Site"] == site] for frame in (model.flags.table, model.flags.bounds))
    bounds = bounds.drop(columns="Least [%]")  # it tells the others' median
    return ReportModel(
        site=site,
        study=replace(model.study, sites=()),
        number_of_sites=model.number_of_sites,
        trainings=model.trainings,
        hospitals=tuple(one for one in model.hospitals if one.name == site),
        primary=model.primary,
        is_ambiguous=model.is_ambiguous,
        counts_images=model.counts_images,
        unmet=model.unmet,
        sample=model.sample,
        settings=tuple(
            (label, {name: values[name] for name in SETTINGS if name in values}) for label, values in model.settings
        ),
        intervals=_in_order(model.intervals[own], model.methods),
        tested=_rows_of(model.tested, site),
        cases=_rows_of(model.cases, site),
        labels=_rows_of(model.labels, site),
        surface_changes=_rows_of(model.surface_changes, site),
        final_models=_rows_of(model.final_models, site),
        contributions=contributions[[name for name in SAFE_COLUMNS if name in contributions]],
        costs=_rows_of(model.costs, site),
        curves=model.curves[[site]] if site in model.curves else pd.DataFrame(),
        rounds={"weight": weights[[site]]} if site in weights else {},
        same_quantities={"weight": []} if site in weights else {},
        flags=Flags(
            _hide_in_reasons(table, model, site),
            bounds,
            attacked=(),
            verdicts=model.flags.verdicts and [one for one in model.flags.verdicts if one.site == site],
            failures=_hide_in_reasons(_rows_of_site(model.flags.failures, site), model, site),
            repeated_steps=_rows_of_site(model.flags.repeated_steps, site),
            spent_privacy=_rows_of_site(model.flags.spent_privacy, site),
        ),
        notes=[replace(limit, counts={}) for limit in model.notes],
        limits=list(_own_limits(model.limits, site)),
        verdicts=[one for one in model.verdicts if one.subject == site and one.question in OWN_QUESTIONS],
        failure=model.failure,
        failures=_rows_of(model.failures, site),
        others=pd.DataFrame(_others(model, site)),
        left_out=left_out,
    )


def _rows_of_site(table: pd.DataFrame, site: str) -> pd.DataFrame:
    """Return the rows of a table with a column Site, if it has any, that are of the site."""
    return table[table["Site"] == site] if "Site" in table else table


def rounded_others(table: pd.DataFrame, site: str) -> pd.DataFrame:
    """Return the median of the others' numbers from 0 to 1, rounded; with `MANY_OTHERS` or more also the quartiles.

    Rows of the table (rows x all hospitals) in which fewer than `MIN_OTHERS` are known are left out.
    """
    others = table.drop(columns=site, errors="ignore")
    known = others.notna().sum(axis=1)
    shown = {"median": (0.5, MIN_OTHERS), "lower quartile": (0.25, MANY_OTHERS), "upper quartile": (0.75, MANY_OTHERS)}
    columns = {}
    for name, (share, fewest) in shown.items():
        numbers = pd.Series(others.astype(float).quantile(share, axis=1))
        columns[name] = (ROUND_TO * (numbers / ROUND_TO).round()).where(known >= fewest)
    return pd.DataFrame(columns, index=table.index).dropna(axis=0, how="all").dropna(axis=1, how="all")


def rank_thirds(table: pd.DataFrame, site: str, *, lowest_first: bool = False) -> "pd.Series[str]":
    """Return, by row, the third of all hospitals in which the own number ranks; a dash with too few others.

    The table is rows x all hospitals; ``lowest_first``: a lower number ranks higher.
    """
    ranks = table.rank(axis=1, ascending=lowest_first, method="average")
    count = table.notna().sum(axis=1)
    place = (ranks[site] - 0.5) / count
    words = np.select([place < 1 / 3, place < 2 / 3], ["upper third", "middle third"], "lower third")
    return pd.Series(words, index=table.index, dtype=object).where((count > MIN_OTHERS) & place.notna(), MISSING)


def _others(model: ReportModel, site: str) -> Iterator[dict[str, object]]:
    """Yield a row per quantity and method: the third that the hospital ranks in, and the others' rounded numbers."""
    insufficient_data = model.sample.insufficient_data
    dice, gain = (select_sites(model.intervals, name)["mean"].unstack("of") for name in ("dice", "gain"))
    yield from _beside(HEADINGS["dice"], dice, site, model.methods, insufficient_data, is_rounded=True)
    for name in (name for name in SURFACES if name in model.tested):
        table = model.tested[name].unstack("site")
        yield from _beside(
            HEADINGS[name], table, site, model.methods, insufficient_data, lowest_first=name.startswith("hd95")
        )
    yield from _beside("Gain [points]", gain, site, model.methods, insufficient_data)
    one_seed = ONE_SEED if len(model.study.seeds) < MIN_SEEDS else ""
    for name in (name for name in SAFE_COLUMNS if name in model.contributions):
        table = model.contributions[name].unstack("site")
        yield from _beside(HEADINGS[name], table, site, model.methods, one_seed, is_rounded=name == "share")
    for one in model.agreements:
        table = one.values.mean().to_frame("").T
        reason = ONE_SEED if len(one.values) < MIN_SEEDS else ""
        yield from _beside(f"Value, {one.reference} [points]", table, site, model.methods, reason)


def _beside(
    quantity: str,
    table: pd.DataFrame,
    site: str,
    methods: Sequence[str],
    insufficient_data: str,
    *,
    is_rounded: bool = False,
    lowest_first: bool = False,
) -> Iterator[dict[str, object]]:
    """Yield a row per method with the own number, its third, and the others' median if it is between 0 and 1."""
    if site not in table:
        return
    table = _in_order(table[table[site].notna()], methods)
    thirds = rank_thirds(table, site, lowest_first=lowest_first)
    medians = rounded_others(table, site) if is_rounded else pd.DataFrame(index=table.index[:0])
    for method, own, third in zip(map(str, table.index), table[site], thirds, strict=True):
        beside = dict(zip(map(str, medians), medians.loc[method], strict=True)) if method in medians.index else {}
        if third != MISSING or beside:
            rank = insufficient_data.partition(" (")[0] if insufficient_data and third != MISSING else third
            yield {"quantity": quantity, "method": method, "own": float(own), "third": rank, **beside}


def _rows_of(table: Rows, site: str) -> Rows:
    """Return the rows of one hospital."""
    return table[table.index.get_level_values("site") == site] if "site" in table.index.names else table.iloc[:0]


def _in_order(table: pd.DataFrame, methods: Sequence[str]) -> pd.DataFrame:
    """Return the rows in the order of the runs: that by mean Dice would tell which method is best over all sites."""
    if "method" not in table.index.names:
        return table
    rank = {method: place for place, method in enumerate(methods)}
    places = [rank.get(str(method), len(rank)) for method in table.index.get_level_values("method")]
    return table.iloc[sorted(range(len(places)), key=places.__getitem__)]


def _own_limits(limits: Sequence[Limit], site: str) -> Iterator[Limit]:
    """Yield the limits that are about the hospital, with only its own number."""
    for limit in limits:
        if site in limit.counts:
            yield replace(limit, counts={site: limit.counts[site]})
        elif limit.code in NAMELESS:
            yield limit


def _hide_names(text: str, sites: Sequence[str], site: str) -> str:
    """Return a text without the names of other hospitals, if they are whole words and no part of a longer name."""
    names = "|".join(re.escape(name) for name in sorted(sites, key=len, reverse=True))
    return re.sub(rf"(?<!\w)(?:{names})(?!\w)", lambda match: site if match[0] == site else "another site", text)
