"""The comparison tables of Jiang et al. 2023 (FedCE, Tables 1 and 6), and the gains over local training.

Dice is a percentage here.
"""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from fedmerit_evaluation.figures.tables import HEADINGS, HIDDEN_COLUMNS, UNITS, Table
from fedmerit_evaluation.results.dice import POOLED, STANDALONE, UNION
from fedmerit_evaluation.results.views import Results

PAPER = "Jiang et al. 2023"
BOUNDS = {STANDALONE: "lower reference", POOLED: "upper reference"}  # for a federation
OVER_SEEDS = ", mean ± std over seeds"


def tables(results: Results, methods: list[str], seeds: Sequence[int]) -> list[Table]:
    """Tables 1 and 6 for each label, Dice on the union of the test splits, and HD95 and NSD, if measured.

    A site's Dice is the mean over the cases of its own test split, of its final model. Missing
    numbers are left empty, never counted as zero:

    - A cell is the mean over the seeds whose runs have results, ± (Table 6) their sample standard deviation
      (ddof 1; none for one seed). If a run is missing, a column ``Seeds`` counts the others.
    - The cell of a site is empty if one of these runs has no Dice of it.
    - Avg. and Std. are the mean and the sample standard deviation (ddof 1) over sites of the row's means over
      seeds, as in the paper; empty where a site's cell is.

    Args:
        results: of all runs, at most one run for each label and seed; may be empty.
        methods: labels of what is compared, one row each, in this order.
    """
    if results.dice.rows.empty:
        return []
    own, union = results.dice.labels, results.union.complete
    several = len(own.columns) > 1
    sites = [str(site) for site in results.dice.by_site]
    bounds = [f"{method} is the {bound}" for method, bound in BOUNDS.items() if method in methods]
    bounded = "".join(f"; {one}" for one in bounds)
    found = []
    for label in own.columns:
        what = f"Dice [%]{f' of the {label}' * several} on each site's test split"
        suffix = f"-{label}" * several
        plain = _table(
            f"table1{suffix}", f"{what} (as Table 1 of {PAPER}){bounded}", 100 * own[label], sites, methods, seeds
        )
        caption = f"{what}{OVER_SEEDS} (as Table 6 of {PAPER}){bounded}"
        found += [replace(plain, spread=None), replace(plain, name=f"table6{suffix}", caption=caption)]
    found += _gains(results, methods)
    if not union.empty:
        caption = f"Dice [%] on the union of the test splits, of each site's final model{OVER_SEEDS}"
        measured = [method for method in methods if method in union.index.get_level_values("method")]
        found.append(_table(UNION, caption, 100 * union, sites, measured, seeds))
    for quantity, table in results.dice.label_surfaces.items():
        for label in table.columns:
            what = f"{HEADINGS[quantity]}{f' of the {label}' * several} on each site's test split{OVER_SEEDS}"
            what += HIDDEN_COLUMNS.get(quantity, "")
            shown = UNITS.get(quantity, 1.0) * table[label]
            found.append(_table(f"{quantity}{f'-{label}' * several}", what, shown, sites, methods, seeds))
    return found


def gains(results: Results, methods: Sequence[str]) -> pd.DataFrame:
    """Methods x sites: gain in Dice over local training in points, on a site's validation and test cases together.

    Of the site's final model, mean over common seeds. Empty without local training.
    """
    above = 100 * results.with_validation.dice.gains
    return above.reindex([name for name in methods if name in above.index])


def transfer(results: Results) -> pd.Series:
    """Of methods, megabytes that a site sends and receives in a round, mean over sites, rounds and seeds.

    Without pooled training, whose images were moved before. For seconds, which depend on the machine and on concurrent
    runs, see `fedmerit lab bench methods`.
    """
    both = results.rounds.of("bytes_sent") + results.rounds.of("bytes_received")
    return 1e-6 * both.mean(axis=1).groupby(level="method", observed=True).mean().drop(POOLED, errors="ignore")


def _gains(results: Results, methods: Sequence[str]) -> list[Table]:
    above = gains(results, methods)
    if above.empty:
        return []
    over_sites = {"Mean": above.mean(axis=1, skipna=False), "Lowest": above.min(axis=1, skipna=False)}
    beside = pd.DataFrame(over_sites | {"Transfer [MB]": transfer(results).reindex(above.index)})
    frame = pd.concat([above, beside], axis=1).rename_axis("Method").reset_index()
    caption = (
        "Gain in Dice over local training [points] on each site's validation and test cases, of its final model, mean "
        "over seeds; transfer: sent and received by a site in a round"
    )
    return [Table("gains", caption, frame, decimals=2)]


def _table(
    name: str, caption: str, numbers: pd.Series, sites: list[str], methods: list[str], seeds: Sequence[int]
) -> Table:
    """Methods x (sites, Avg., Std.) of ``numbers`` by (method, seed, site), as `tables` describes it."""
    runs = numbers.unstack("site").reindex(columns=sites).groupby(level="method")
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
