"""Tables of results: functions of the long results table (`fedmerit.records.results.COLUMNS`), and nothing else.

Dice is a fraction here; where it is shown (`evaluation.formats`) it is a percentage. Tables of several runs
are indexed by ``(method, seed)``, one run each.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable

from evaluation.formats import Table, headed, rich_table
from evaluation.runs import open_runs, together

RUN = ["method", "seed"]
SITE = [*RUN, "site"]
MOST_COLUMNS = 10_000  # of characters


def case_dice(results: pd.DataFrame, split: str = "testing") -> pd.DataFrame:
    """Dice of every case, from the last round that has any: ``(method, seed, site, case)`` x labels.

    NaN where reference and prediction are both empty.
    """
    rows = results[(results["split"] == split) & (results["quantity"] == "dice")]
    rows = rows[rows["round"] == rows.groupby(RUN)["round"].transform("max")]
    table = rows.pivot(index=[*SITE, "case"], columns="label", values="value")
    return table[rows["label"].unique()].rename_axis(columns=None)


def site_dice(results: pd.DataFrame, split: str = "testing") -> pd.DataFrame:
    """Dice per site: ``(method, seed, site)`` x ``dice, lowest, cases, both_empty``.

    ``dice`` is the mean over cases of the mean over labels, ``lowest`` the site's lowest case, ``cases`` their
    number, ``both_empty`` how many case-and-label pairs were left out since reference and prediction are empty.
    """
    cases = case_dice(results, split)
    means = cases.mean(axis=1).groupby(level=SITE)
    empty = cases.isna().sum(axis=1).groupby(level=SITE).sum()
    return pd.DataFrame({"dice": means.mean(), "lowest": means.min(), "cases": means.size(), "both_empty": empty})


def label_dice(results: pd.DataFrame, split: str = "testing") -> pd.DataFrame:
    """Dice per site and label, the mean over cases: ``(method, seed, site)`` x labels."""
    return case_dice(results, split).groupby(level=SITE).mean()


def by_site(results: pd.DataFrame, split: str = "testing") -> pd.DataFrame:
    """Dice of each run on each site: ``(method, seed)`` x sites; NaN for sites that have none."""
    return site_dice(results, split)["dice"].unstack("site").reindex(columns=sorted(results["site"].unique()))


def cross_site(results: pd.DataFrame) -> pd.DataFrame:
    """Test Dice of every site's own final model at every site: ``(method, seed, site)``, whose model, x where tested.

    Methods with one model for all are left out: their rows would all be `by_site`.
    """
    rows = results[(results["split"] == "union") & (results["quantity"] == "dice")]
    cases = rows.groupby([*SITE, "case"], observed=True)["value"].mean()
    where = [str(case).rpartition("/")[0] for case in cases.index.get_level_values("case")]
    at = pd.Index(where, name="at", dtype=object)
    table = cases.groupby([cases.index.get_level_values(level) for level in SITE] + [at], observed=True)
    matrix = table.mean().unstack("at")
    differing = matrix.groupby(level=RUN, observed=True).transform("nunique").max(axis=1) > 1
    return matrix[differing]


def over_sites(dice: pd.DataFrame) -> pd.DataFrame:
    """``mean``, ``std`` (of a sample, ddof 1), ``worst`` and the names ``worst_site, best_site`` of each row.

    Args:
        dice: runs or methods x sites.
    """
    known = dice.dropna(how="all")
    return pd.DataFrame(
        {
            "mean": known.mean(axis=1),
            "std": known.std(axis=1, ddof=1),
            "worst": known.min(axis=1),
            "best": known.max(axis=1),
            "worst_site": known.idxmin(axis=1),
            "best_site": known.idxmax(axis=1),
        }
    )


def comparison(results: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Test Dice of methods: mean over seeds and sample standard deviation over seeds (NaN for one seed).

    Returns:
        Two tables, methods x (sites, ``mean``, ``std``, ``worst``), columns in two levels: ``site`` and ``sites``.
    """
    dice = by_site(results)
    table = pd.concat({"site": dice, "sites": over_sites(dice)[["mean", "std", "worst"]]}, axis=1)
    seeds = table.groupby(level="method")
    return seeds.mean(), seeds.std(ddof=1)


def per_round(results: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """One quantity of the rounds: ``(method, seed, round)`` x sites; NaN where a site was absent."""
    rows = results[(results["split"] == "") & (results["quantity"] == quantity)]
    return rows.pivot(index=[*RUN, "round"], columns="site", values="value")


def pairs(results: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """What sites hold of each other, mean over seeds: ``(method, round, holder)`` x sites; NaN on the diagonal."""
    rows = results[(results["split"] == "") & (results["quantity"] == quantity)]
    held = rows.groupby(["method", "round", "coalition", "site"], observed=True)["value"].mean()
    return held.unstack("site").rename_axis(index={"coalition": "holder"})


def validation(results: pd.DataFrame) -> pd.DataFrame:
    """Validation Dice of the model each site received: ``(method, seed, round)`` x sites."""
    rows = results[(results["split"] == "validation") & (results["quantity"] == "dice")]
    cases = rows.groupby([*RUN, "round", "site", "case"])["value"].mean()
    return cases.groupby(level=[*RUN, "round", "site"]).mean().unstack("site")


def contributions(results: pd.DataFrame) -> pd.DataFrame:
    """What each site brought and was given: ``(method, seed, site)`` x the quantities that the method records.

    ``num_samples``; ``weight``, ``contribution``, ``reputation`` of the last round, and ``mean_...`` over rounds;
    ``flagged``, ``rejected``: in how many rounds, where any site was.
    """
    columns: dict[str, pd.Series] = {}
    for quantity in ("num_samples", "weight", "contribution", "reputation", "flagged", "rejected"):
        rounds = per_round(results, quantity)
        runs = rounds.groupby(level=RUN)
        if quantity in ("flagged", "rejected"):
            columns[quantity] = _stacked(runs.sum())
            continue
        last = rounds[rounds.index.get_level_values("round") == _last_round(rounds)].droplevel("round")
        columns[quantity] = _stacked(last)
        if quantity != "num_samples":
            columns[f"mean_{quantity}"] = _stacked(runs.mean())
    table = pd.DataFrame(columns).rename_axis(SITE).dropna(axis=1, how="all")
    counts = {name: table[name].fillna(0).astype(int) for name in ("flagged", "rejected") if name in table}
    return table.assign(**counts).drop(columns=[name for name, rounds in counts.items() if not rounds.any()])


def _stacked(table: pd.DataFrame) -> pd.Series:
    """Columns as the last level of the index."""
    return pd.Series(table.stack())


def _last_round(rounds: pd.DataFrame) -> pd.Series:
    number = rounds.index.get_level_values("round").to_series(index=rounds.index)
    return number.groupby(level=RUN).transform("max")


def costs(results: pd.DataFrame) -> pd.DataFrame:
    """Mean cost of a round: ``(method, seed, site)`` x ``seconds, bytes_sent, bytes_received``, where recorded."""
    names = ("seconds", "bytes_sent", "bytes_received")
    table = pd.DataFrame({name: _stacked(per_round(results, name).groupby(level=RUN).mean()) for name in names})
    return table.rename_axis(SITE).dropna(axis=1, how="all")


def gains(results: pd.DataFrame, alone: str = "standalone") -> pd.DataFrame:
    """What collaboration gave: test Dice minus that of training alone, methods x sites, mean over common seeds.

    Empty where no run of the method ``alone`` is among the results.
    """
    dice = by_site(results)
    if alone not in dice.index.get_level_values("method"):
        return dice.iloc[:0].droplevel("seed")
    others = dice.drop(index=alone, level="method")
    return others.sub(dice.loc[alone], level="seed").dropna(how="all").groupby(level="method").mean()


def contribution_ranks(results: pd.DataFrame) -> pd.DataFrame:
    """How stable the order of contributions is: ``(method, site)`` x ``best, worst`` rank over seeds, 1 highest.

    Of methods with several seeds and differing contributions; ranks are of their mean over rounds.
    """
    table = per_round(results, "contribution").groupby(level=RUN).mean()
    table = table[table.max(axis=1) > table.min(axis=1)]
    several = table.groupby(level="method").transform("size") > 1
    ranks = table[several].rank(axis=1, ascending=False, method="min").groupby(level="method")
    return pd.DataFrame({"best": _stacked(ranks.min()), "worst": _stacked(ranks.max())}).rename_axis(["method", "site"])


def dice_and_contribution(runs: Sequence[Path]) -> pd.DataFrame:
    """The table at the end of a run: one row per method and site, mean over seeds.

    Returns:
        Columns ``method, site, num_samples, dice, weight, mean_contribution``: test Dice as a fraction, the weight
        of the last round, the contribution as mean over rounds. NaN where a run has no such number.

    Raises:
        BadInput: a run folder is unusable, or the runs do not belong together.
    """
    results = together(open_runs(runs))
    wanted = ["num_samples", "dice", "weight", "mean_contribution"]
    table = contributions(results).join(site_dice(results)["dice"], how="outer").reindex(columns=wanted)
    return table.groupby(level=["method", "site"]).mean().reset_index().astype({"method": str})


def print_table(table: pd.DataFrame | Table, console: Console) -> None:
    """Print a table of this module, Dice as percentages, on a rich console; no word and no number is cut.

    On a terminal that is too narrow, headings break between words; beyond that, and in files, lines are as long as the
    table takes.
    """
    shown = table if isinstance(table, Table) else Table("table", "", headed(table))
    drawn = rich_table(shown)
    if console.is_terminal and _columns(drawn, console) > console.width:
        drawn = rich_table(shown, narrow=True)
    Console(file=console.file, width=max(console.width, _columns(drawn, console))).print(drawn)


def _columns(drawn: RichTable, console: Console) -> int:
    """Characters that a table takes in a line, where nothing limits it."""
    return Measurement.get(console, console.options.update(max_width=MOST_COLUMNS), drawn).maximum
