"""The report for one hospital: itself by name, the others as quantiles without names, images or numbers of images."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from evaluation import figures, tables
from evaluation.formats import Table, write_tables
from evaluation.pages import pictures, write_page
from evaluation.report import caveats, marks
from evaluation.report.agreement import Agreement, agreements
from evaluation.report.intervals import contribution_intervals, dice_intervals, of_sites
from evaluation.report.report import ROUNDS, common_folder, overlay_picture, settings_of, shared_quantities
from evaluation.report.report_tables import averaged, with_intervals
from evaluation.report.summary import Fact
from evaluation.report.words import between, percent, points
from evaluation.runs import Run, open_runs, together
from fedmerit.errors import BadInput

FEWEST_OTHERS = 3  # sites; quantiles of fewer would be single sites' numbers
QUANTILES = {"min": 0.0, "lower quartile": 0.25, "median": 0.5, "upper quartile": 0.75, "max": 1.0}
SAME = 1e-6  # shares that differ by less, relative to the largest, are the same
KEPT = (
    "method", "parameters", "seed", "task", "labels", "rounds", "training", "image_size", "fedmerit_version",
    "packages", "started",
)  # fmt: skip
MERIT = {
    "mean_weight": "Weight, mean",
    "mean_contribution": "Contribution, mean",
    "mean_reputation": "Reputation, mean",
}


@dataclass(frozen=True)
class _Own:
    """One site among the others of some runs."""

    name: str
    runs: Sequence[Run]
    results: pd.DataFrame  # of all sites, without shares of training images
    intervals: pd.DataFrame  # of Dice, as `evaluation.report.intervals`
    said: pd.DataFrame  # of contributions, likewise

    def of(self, figure: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """A figure of Dice, fractions, by method: ``mean, low, high`` of the site, and the others' quantiles."""
        table = of_sites(self.intervals, figure)
        mine = table[table.index.get_level_values("of") == self.name].droplevel("of").dropna(subset="mean")
        mine = mine.reindex(
            [method for method in dict.fromkeys(run.label for run in self.runs) if method in mine.index]
        )
        others = table[table.index.get_level_values("of") != self.name]["mean"]
        return mine[["mean", "low", "high"]], quantiles(pd.DataFrame(others.unstack("of")))


def write_site_report(
    runs: Sequence[Path],
    name: str,
    out: Path | None = None,
    *,
    sites: Path | None = None,
    images: bool = True,
    truth: Path | None = None,
) -> Path:
    """Write one site's own report, with ``<its name>-files/tables`` and ``figures`` beside it.

    Neither the page nor a file beside it holds another site's name, number of images or image. What is said of the
    others are quantiles (min, quartiles, max) of `FEWEST_OTHERS` or more of them.

    Args:
        runs: run folders, on the same task and sites.
        name: of the site.
        out: where to; default ``for-NAME/report.html`` in the run's folder, or in the runs' common parent.
        sites: the prepared site folder of the site, in a folder of such; default that of the first run, where it is.
        images: whether to show the site's test images. Such a report must not leave the hospital.
        truth: a folder of trained coalitions of the same sites (`fedmerit loo`, `fedmerit shapley`).

    Returns:
        The path of the HTML file.

    Raises:
        BadInput: no such site, a run is unusable, the runs do not belong together, or the ground truth is not of them.
    """
    opened = _relabelled(open_runs(runs))
    if name not in opened[0].sites:
        raise BadInput(f"--site {name}: no site of {opened[0].path}; its sites are {', '.join(opened[0].sites)}")
    results, left_out = without_image_shares(together(opened))
    own = _Own(name, opened, results, dice_intervals(results), contribution_intervals(results))
    agreed = agreements(opened, together(opened), truth)[0] if truth is not None else []
    default = common_folder(opened) / re.sub(r"[^\w.-]", "_", f"for-{name}") / "report.html"
    out = default if out is None else Path(out)
    files = out.parent / f"{out.stem}-files"
    for stale in files.glob("*/own-*"):
        stale.unlink()
    shown = {table.name: table for table in _tables(own, agreed)}
    write_tables(shown.values(), files / "tables")
    overlay, overlay_note = overlay_picture(
        opened[:1], sites, files / "figures" / "own-overlays.png", images=images, only=name
    )
    settings, differing = settings_of(opened, [_settings(run) for run in opened])
    others = len(opened[0].sites) - 1
    write_page(
        out,
        "site.html.j2",
        site=name,
        others=others,
        fewest=FEWEST_OTHERS,
        left_out=left_out,
        runs=opened,
        facts=list(_facts(own)),
        sentences=list(_sentences(own)),
        notes=caveats.of_runs(opened, together(opened), sites_named=False),
        caveats=[*caveats.of_cases(results, name), *_few_points(others)],
        tables=shown,
        pictures=pictures(dict(_drawn(own)), files / "figures"),
        overlay=overlay,
        overlay_note=overlay_note,
        settings=settings,
        differing=Table("own-runs", "What differs between the methods' runs", differing),
    )
    return out


def quantiles(others: pd.DataFrame) -> pd.DataFrame:
    """Rows x `QUANTILES` of the others' numbers; without rows in which fewer than `FEWEST_OTHERS` are known.

    Args:
        others: rows x other sites.
    """
    known = others[others.notna().sum(axis=1) >= FEWEST_OTHERS]
    if known.empty:
        return pd.DataFrame(math.nan, known.index, list(QUANTILES))
    return pd.DataFrame({name: known.quantile(share, axis=1) for name, share in QUANTILES.items()}, index=known.index)


def without_image_shares(results: pd.DataFrame) -> tuple[pd.DataFrame, bool]:
    """The results without weights and contributions that are shares of training images, and whether there were any.

    Beside a site's own number of images they would tell the others'. They are known by their proportions: all that are
    above 0 in a round are the same multiple of the sites' images.
    """
    images = tables.per_round(results, "num_samples")
    dropped = pd.Series(False, results.index)
    rounds = pd.MultiIndex.from_frame(results[["method", "seed", "round"]].astype({"method": str}))
    for quantity in ROUNDS:
        table = tables.per_round(results, quantity)
        ratio = table.where(table > 0) / images.reindex(table.index)
        same = ratio.max(axis=1) - ratio.min(axis=1) <= SAME * ratio.max(axis=1)
        found = [(str(method), seed, number) for method, seed, number in same.index[same]]
        dropped |= rounds.isin(found) & (results["quantity"] == quantity) & (results["split"] == "")
    return results[~dropped], bool(dropped.any())


def _relabelled(runs: Sequence[Run]) -> list[Run]:
    """Runs told apart by their folder's name get a number instead: a folder may be named after a site."""
    return [
        replace(run, label=run.label.replace(f" [{run.path.name}]", f" [{number}]"))
        for number, run in enumerate(runs, start=1)
    ]


def _settings(run: Run) -> dict[str, Any]:
    """Of run.json, what names no site and no folder."""
    kept = {name: run.info[name] for name in KEPT if name in run.info}
    return kept | {"network": run.info.get("plan", {}).get("network", {})}


def _facts(own: _Own) -> Iterator[Fact]:
    dice, others = own.of("dice")
    if dice.empty:
        return
    best = str(dice["mean"].idxmax())
    several = len(dice) > 1
    yield Fact("Highest test Dice" if several else "Test Dice", percent(dice["mean"].max()), best)
    if best in others.index:
        yield Fact("Median of the others", percent(float(others["median"][best])), f"same method, {best}")
    gain, _ = own.of("gain")
    if not gain.empty:
        top = str(gain["mean"].idxmax())
        name = "Highest gain over training alone" if len(gain) > 1 else "Gain over training alone"
        yield Fact(name, points(gain["mean"].max()), f"points of Dice, {top}")


def _sentences(own: _Own) -> Iterator[tuple[str, str]]:
    """What there is to say of each method, as (method, text)."""
    (dice, others), (gain, _) = own.of("dice"), own.of("gain")
    for method, row in ((str(name), row) for name, row in dice.iterrows()):
        text = f"{own.name}'s test Dice is {percent(row['mean'])}"
        if pd.notna(row["low"]):
            text += f" (95 % interval {percent(row['low'])} to {percent(row['high'])})"
        if method in others.index:
            middle = float(others["median"][method])
            place = "above" if row["mean"] > middle else "below" if row["mean"] < middle else "at"
            text += f", {place} the others' median of {percent(middle)}"
        if method in gain.index:
            change = gain.T[method]
            text += f"; taking part changes it by {points(change['mean'])} points against training alone"
            if pd.notna(change["low"]):
                held = change["low"] <= 0 <= change["high"]
                text += f" ({between(change['low'], change['high'])}" + (", which may be chance)" if held else ")")
        yield method, f"{text}."


def _few_points(others: int) -> Iterator[str]:
    if others == FEWEST_OTHERS:
        yield f"Of {others} others, min, median and max are the very numbers of single sites, though not named."


def _tables(own: _Own, agreed: Sequence[Agreement]) -> Iterator[Table]:
    dice, gain = own.of("dice"), own.of("gain")
    if not dice[0].empty:
        yield _against("own-dice", own, {"Test Dice [%]": dice}, 100.0, "Test Dice [%], with its 95 % interval", 1)
    if not gain[0].empty:
        caption = "Gain in test Dice over training alone [points], with its 95 % interval"
        yield _against("own-gains", own, {"Gain [points]": gain}, 100.0, caption, 1)
    cases = tables.site_dice(own.results)
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


def _against(name: str, own: _Own, columns: dict[str, Against], unit: float, caption: str, decimals: int) -> Table:
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


def _merit(own: _Own) -> dict[str, Against]:
    """Weights, contributions and reputations, means over rounds and seeds."""
    merit = tables.contributions(own.results)
    found: dict[str, Against] = {}
    for column, heading in MERIT.items():
        if column not in merit:
            continue
        table = merit[column].unstack("site").groupby(level="method", observed=True).mean().dropna(how="all")
        table.index = table.index.astype(str)
        if own.name not in table:
            continue
        mine = pd.DataFrame({"mean": table[own.name]}).dropna().assign(low=float("nan"), high=float("nan"))
        if column == "mean_contribution":
            ends = of_sites(own.said, "contribution")
            ends = ends[ends.index.get_level_values("of") == own.name].droplevel("of")
            ends = ends[(ends["seeds"] > 1) & (ends["high"] > ends["low"])]
            mine = mine.assign(low=ends["low"].reindex(mine.index), high=ends["high"].reindex(mine.index))
        found[heading] = (mine, quantiles(table.drop(columns=own.name)))
    return found


def _valued(values: pd.DataFrame, name: str) -> Against:
    means = values.mean().to_frame("").T
    mine = pd.DataFrame({"mean": means[name], "low": float("nan"), "high": float("nan")})
    return mine, quantiles(means.drop(columns=name))


def _drawn(own: _Own) -> Iterator[tuple[str, tuple[str, Figure]]]:
    """Figures by name, with captions."""
    told = "; grey: the other sites, from lowest to highest, their quartiles and median"
    dice, others = own.of("dice")
    if not dice.empty:
        rows = tables.case_dice(own.results).mean(axis=1).xs(own.name, level="site")
        cases = {method: rows[rows.index.get_level_values("method") == method] for method in dice.index}
        text = f"Test Dice of {own.name} per method, each dot one of its cases{'; beside it the others' * len(others)}."
        yield "own-dice", (text, figures.own_dice(dice["mean"], cases, others, own.name))
    validation = tables.validation(own.results)
    if own.name in validation:
        text = "Validation Dice over the rounds, of the model received, mean over seeds"
        yield "own-validation", _over_rounds(own, 100 * validation, "Validation Dice [%]", text, told)
    for quantity in shared_quantities(own.results):
        table = tables.per_round(own.results, quantity)
        if own.name in table and table[own.name].notna().any():
            text = f"{quantity.title()} over the rounds, mean over seeds"
            yield f"own-{ROUNDS[quantity][0]}", _over_rounds(own, table, quantity.title(), text, told)


def _over_rounds(own: _Own, table: pd.DataFrame, title: str, text: str, told: str) -> tuple[str, Figure]:
    means = table.groupby(level=["method", "round"], observed=True).mean()
    mine = pd.DataFrame(means[own.name].unstack("method")).dropna(axis=1, how="all")
    mine.columns = mine.columns.astype(str)
    bands = quantiles(means.drop(columns=own.name))
    others = {str(method): band.droplevel("method").reindex(mine.index) for method, band in bands.groupby("method")}
    return f"{text}{told * bool(others)}.", figures.own_over_rounds(mine, others, own.name, title)
