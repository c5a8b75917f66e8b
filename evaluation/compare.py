"""The comparison tables of Jiang et al. 2023 (FedCE, Tables 1 and 6): functions of the long results table, no files.

Column ``method`` of that table (`fedmerit.records.results.COLUMNS`) holds the label of what is compared, as
`evaluation.tables` expects it. Dice is a percentage here.
"""

from dataclasses import replace

import pandas as pd

from evaluation.formats import Table
from evaluation.tables import SITE, label_dice, site_dice

PAPER = "Jiang et al. 2023"
OVER_SEEDS = ", mean ± std over seeds"
UNION = "union"  # the split under which a site's final model is tested on the cases of every site


def tables(results: pd.DataFrame, methods: list[str], seeds: list[int]) -> list[Table]:
    """Tables 1 and 6 for each label, and the one on the union of the test splits where it was measured.

    A site's Dice is the mean over the cases of its own test split, of the model that it ends with. What is
    missing is left empty, never counted as zero:

    - A cell is the mean over the seeds whose runs have results, ± (Table 6) their sample standard deviation
      (ddof 1; none for one seed). Where a run is missing, a column ``Seeds`` counts those that there are.
    - The cell of a site that one of these runs has no Dice of is empty.
    - Avg. and Std. are the mean and the sample standard deviation (ddof 1) over sites of the row's means over
      seeds, as in the paper; empty where a site's cell is.

    Args:
        results: rows of all runs, at most one run for each label and seed; none is needed.
        methods: labels of what is compared, one row each, in this order.
        seeds: those asked for.
    """
    tested = results[(results["split"] == "testing") & (results["quantity"] == "dice")]
    if tested.empty:
        return []
    own, union = label_dice(results), union_dice(results)
    several = len(own.columns) > 1
    sites = sorted(results["site"].unique())
    found = []
    for label in own.columns:
        what = f"Dice [%]{f' of the {label}' * several} on each site's test split"
        suffix = f"-{label}" * several
        plain = _table(f"table1{suffix}", f"{what} (as Table 1 of {PAPER})", own[label], sites, methods, seeds)
        caption = f"{what}{OVER_SEEDS} (as Table 6 of {PAPER})"
        found += [replace(plain, spread=None), replace(plain, name=f"table6{suffix}", caption=caption)]
    if not union.empty:
        caption = f"Dice [%] on the union of the test splits, of the model each site ends with{OVER_SEEDS}"
        measured = [method for method in methods if method in union.index.get_level_values("method")]
        found.append(_table(UNION, caption, union, sites, measured, seeds))
    return found


def union_dice(results: pd.DataFrame) -> pd.Series:
    """Dice of each site's final model on the test cases of every site, a fraction: ``(method, seed, site)``.

    Read from the rows of split ``union``, whose ``site`` is the model's and whose ``case`` is
    ``<tested site>/<position>``: the mean over all these cases of the mean over labels. NaN where a site did not
    test the model, since the cases are then not those of the union; empty where there are no such rows.
    """
    rows = results[(results["split"] == UNION) & (results["quantity"] == "dice")]
    if rows.empty:
        return pd.Series(dtype=float)
    testers = rows["case"].str.rpartition("/")[0].groupby([rows[name] for name in SITE]).nunique()
    return site_dice(results, UNION)["dice"].where(testers == results["site"].nunique())


def _table(name: str, caption: str, dice: pd.Series, sites: list[str], methods: list[str], seeds: list[int]) -> Table:
    """Methods x (sites, Avg., Std.) of ``dice`` by (method, seed, site), a fraction, as `tables` describes it."""
    runs = (100 * dice).unstack("site").reindex(columns=sites).groupby(level="method")
    mean, spread = (part.reindex(methods) for part in (runs.mean(skipna=False), runs.std(ddof=1, skipna=False)))
    over_sites = {"Avg.": mean.mean(axis=1, skipna=False), "Std.": mean.std(axis=1, ddof=1, skipna=False)}
    frame = mean.assign(**over_sites)
    texts = {"Method": methods}
    there = runs.size().reindex(methods, fill_value=0)
    if (there < len(seeds)).any():
        texts["Seeds"] = [f"{count} of {len(seeds)}" for count in there]

    def shown(part: pd.DataFrame) -> pd.DataFrame:
        numbers = part.reindex(columns=frame.columns).reset_index(drop=True).rename_axis(columns=None)
        return pd.concat([pd.DataFrame(texts), numbers], axis=1)

    return Table(name, caption, shown(frame), spread=shown(spread), decimals=2)
