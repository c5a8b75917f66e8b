"""Tables of the values of sites, from the results of trained coalitions; and of their reliability.

The utility of a coalition is the test Dice of its model, mean over all sites, also over those that took no part. Values
are in points of Dice (1/100), signed: negative if a site does harm. Tables that go with a ground truth: reliability,
ranks with confidence intervals, other utilities, and which site gains by which site's data.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from fedmerit.contract import semivalues
from fedmerit.contract.semivalues import EMPTY_COALITION, Coalition, FloatArray, Game, SampledValues, Weights
from fedmerit.errors import BadInput
from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.ground_truth import reliability
from fedmerit_evaluation.ground_truth.ground_truths import coalition_utilities
from fedmerit_evaluation.ground_truth.reliability import (
    POINTS,
    Resampled,
    Values,
    reliability_table,
    resample,
    semivalue_function,
)
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.ranks import Ranking

PAPER = "Jiang et al. 2023"
SHARE = "share of the sum over sites (none if that is not above 0)"
ALL_SITES = "(nobody left out)"
DROP, IMAGES = "Drop [points]", "Training images"


def leave_one_out_tables(results: Results) -> list[Table]:
    """Return Tables 4 and 5 of the FedCE paper, and the loss at each site without each other.

    Args:
        results: of `fedmerit_evaluation.ground_truth.coalitions.collect_results`; the grand coalition and each without
            one site.

    Raises:
        BadInput: no seed has all of these coalitions.
    """
    utilities, labels = _whole(coalition_utilities(results), semivalues.leave_one_out_weights, results)
    of_labels = coalition_utilities(results, per_label=True)
    sites = semivalues.list_sites(next(iter(utilities.values())))
    grand = frozenset(sites)
    absent = [grand - {site} for site in sites]
    frames = []
    for seed, game in utilities.items():
        frame = pd.DataFrame(index=[*sites, ALL_SITES])
        for place, label in enumerate(labels):
            of = f", {label}" * (len(labels) > 1)
            dice = 100 * np.array([of_labels[seed][one][place] for one in (*absent, grand)])
            frame[f"Dice without it{of} [%]"] = dice
            frame[f"Drop{of} [points]"] = pd.Series(dice[-1] - dice[:-1], sites)
        frame[DROP] = pd.Series(100 * semivalues.leave_one_out(game), sites)
        frame[IMAGES] = _images(results, seed)
        frames.append(frame)
    caption = (
        f"Leave-one-out (as Tables 4 and 5 of {PAPER}): drop of Dice, mean over all sites, without one site; "
        f"performance contribution is its {SHARE}"
    )
    shares = {"Performance contribution [%]": DROP, "Sample contribution [%]": IMAGES}
    return [_table("leave-one-out", caption, frames, "Site", shares), _loss_table(results, list(utilities), sites)]


def shapley_tables(results: Results) -> list[Table]:
    """Return Shapley, Banzhaf and leave-one-out values in one table, and the utilities.

    Args:
        results: of `fedmerit_evaluation.ground_truth.coalitions.collect_results`; all coalitions.

    Raises:
        BadInput: no seed has all coalitions.
    """
    utilities, _ = _whole(coalition_utilities(results), semivalues.shapley_weights, results)
    frames = []
    for seed, game in utilities.items():
        values = {
            "Shapley": semivalues.shapley(game),
            "Banzhaf": semivalues.banzhaf(game),
            "Leave-one-out": semivalues.leave_one_out(game),
        }
        columns = {f"{name} [points]": 100 * value for name, value in values.items()}
        frames.append(
            pd.DataFrame(columns, index=semivalues.list_sites(game)).assign(**{IMAGES: _images(results, seed)})
        )
    caption = (
        f"Values of test Dice, mean over all sites, from {len(next(iter(utilities.values()))) - 1} coalitions; the "
        f"utility of the empty coalition is 0; a share is a value's {SHARE}"
    )
    shares = {f"{name} share [%]": f"{name} [points]" for name in values}
    shares["Sample contribution [%]"] = IMAGES
    return [_table("shapley", caption, frames, "Site", shares), _coalitions(utilities)]


def sampled_tables(sites: Sequence[str], estimates: Mapping[int, SampledValues]) -> list[Table]:
    """Return Shapley values from sampled permutations, by seed, with their standard errors."""
    frames = [
        pd.DataFrame(
            {"Shapley [points]": 100 * estimate.values, "Standard error [points]": 100 * estimate.standard_errors},
            index=sorted(sites),
        )
        for estimate in estimates.values()
    ]
    counts = ", ".join(str(estimate.permutations) for estimate in estimates.values())
    caption = f"Shapley values of test Dice, mean over all sites, from {counts} sampled permutations"
    return [_table("shapley", caption, frames, "Site", {"Shapley share [%]": "Shapley [points]"})]


def _whole(utilities: Mapping[int, Game], weights: Weights, results: Results) -> tuple[dict[int, Game], list[str]]:
    """Return the seeds with every coalition that the values need, and the labels."""
    sites = results.sites
    whole = {seed: game for seed, game in utilities.items() if not semivalues.missing_coalitions(game, sites, weights)}
    if not whole:
        lacking = {seed: semivalues.missing_coalitions(game, sites, weights) for seed, game in utilities.items()}
        names = "; ".join(
            f"seed {seed}: {semivalues.format_coalitions(coalitions)}" for seed, coalitions in lacking.items()
        )
        if any(one in utilities[seed] for seed, coalitions in lacking.items() for one in coalitions):
            names += "; trained ones have a site without Dice: its predictions and references are empty"
        raise BadInput(
            f"no seed has all coalitions ({names or 'none is trained'}); the same command trains the missing ones"
        )
    labels = results.rows.loc[results.rows["quantity"] == "dice", "label"]
    return whole, list(dict.fromkeys(labels))


def _images(results: Results, seed: int) -> "pd.Series[float]":
    rows = results.rows[(results.rows["quantity"] == "num_samples") & (results.rows["seed"] == seed)]
    return rows.groupby("site")["value"].max()


def _loss_table(results: Results, seeds: Sequence[int], sites: list[str]) -> Table:
    """Return the drop of Dice by left-out site (rows) and tested site (columns)."""
    dice = results.coalition_results.dice.cases.groupby(level=["seed", "method", "site"]).mean()
    frames = []
    for seed in seeds:
        grand = dice.loc[seed, semivalues.format_spec(sites)]
        rows = {site: grand - dice.loc[seed, semivalues.format_spec(set(sites) - {site})] for site in sites}
        frames.append(100 * pd.DataFrame(rows).T.reindex(index=sites, columns=sites))
    caption = "Drop of test Dice [points] of the site in the column, without the site in the row"
    return _table("leave-one-out-by-site", caption, frames, "Without")


def _coalitions(utilities: Mapping[int, Game]) -> Table:
    first = next(iter(utilities.values()))
    ordered = sorted((one for one in first if one), key=lambda one: (-len(one), semivalues.format_spec(one)))
    names = [semivalues.format_spec(one) for one in ordered]
    frames = [
        pd.DataFrame({"Dice [%]": [100 * float(np.asarray(game[one])) for one in ordered]}, index=names)
        for game in utilities.values()
    ]
    return _table("coalitions", "Test Dice of each coalition's model, mean over all sites", frames, "Coalition")


def _table(
    name: str, caption: str, frames: Sequence[pd.DataFrame], first: str, shares: Mapping[str, str] | None = None
) -> Table:
    """Return the mean of the seeds' frames, ± their sample standard deviation; ``shares`` are of a column's means."""
    stacked = pd.concat(dict(enumerate(frames)))
    seeds = stacked.groupby(level=1, sort=False)
    mean, spread = seeds.mean(), seeds.std(ddof=1)
    for share, column in (shares or {}).items():
        known = mean[column].dropna()
        mean[share] = pd.Series(100 * semivalues.normalise(known), known.index)
        spread[share] = math.nan
    spread = spread.mask(spread == 0)  # such as of numbers of images
    if len(frames) > 1:
        caption += f"; mean ± std over {len(frames)} seeds"

    def with_headings(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.rename_axis(first).reset_index()

    return Table(name, caption, with_headings(mean), spread=with_headings(spread), decimals=2)


REFERENCES: Mapping[str, Values] = {
    "Shapley": semivalue_function(semivalues.shapley_weights),
    "leave-one-out": semivalue_function(semivalues.leave_one_out_weights),
}


@dataclass(frozen=True)
class ValueTables:
    """The ground truths that a folder of trained coalitions has completely; each is resampled once.

    Raises:
        BadInput: on first use, if no ground truth is complete; the message says what each lacks.
    """

    results: Results
    values: Mapping[str, Values] = field(default_factory=lambda: REFERENCES)  # by name

    @cached_property
    def resampled(self) -> dict[str, Resampled]:
        """The complete values, by name."""
        return _complete(self.results, self.values)

    @cached_property
    def rankings(self) -> dict[str, Ranking]:
        """The values [points], 95 % intervals and ranks, by name."""
        return {name: one.ranking.times(POINTS) for name, one in self.resampled.items()}

    def tables(self) -> list[Table]:
        """Return reliability and ranks of each, values by other utilities, Shapley values by site."""
        ranks = (_ranks(name, one) for name, one in self.rankings.items())
        first = next(iter(self.resampled))
        tables = [reliability_table(self.resampled), *ranks, _utility_table(self.results, first, self.values[first])]
        if first == "Shapley":
            tables.append(_benefit_table(self.results, self.values[first]))
        return tables


def _complete(results: Results, values: Mapping[str, Values]) -> dict[str, Resampled]:
    found, lacking = dict[str, Resampled](), list[str]()
    for name, of in values.items():
        try:
            found[name] = resample(results, of)
        except BadInput as error:  # not asked for, if another is complete
            lacking.append(f"{name}: {error}")
    if not found:
        raise BadInput("; ".join(lacking))
    return found


def ranking_table(name: str, caption: str, one: Ranking, heading: str = "Value [points]", decimals: int = 2) -> Table:
    """Return a row per site, the highest value first: interval, share, rank, and which sites do not differ."""
    heads = {"site": "Site", "value": heading, "share": "Share [%]", "ranks": "Rank",
             "tied": "Not significantly different from"}  # fmt: skip
    table = one.table.assign(share=100 * one.table["share"]).reset_index()
    low, high = (table[[end]].astype(float).rename(columns={end: heading}) for end in ("low", "high"))
    return Table(name, caption, table[list(heads)].rename(columns=heads), low=low, high=high, decimals=decimals)


def _ranks(name: str, one: Ranking) -> Table:
    over = "test patients and seeds" if one.seeds > 1 else "test patients (one seed)"
    over = f"{one.folds} folds" if one.folds else over
    caption = f"{name} values; in brackets the 95 % confidence interval over {over}; ranks as intervals"
    if one.insufficient_data:
        caption += f"; {one.insufficient_data}: no difference is called significant"
    return ranking_table(f"{name.lower()}-ranks", caption, one)


def _utility_table(results: Results, name: str, values: Values) -> Table:
    columns = {}
    for utility, how in reliability.UTILITIES.items():
        try:
            one = resample(results, values, draws=2, utility=how)
        except BadInput:  # not recorded
            continue
        unit, factor = ("mm or px", 1.0) if how.sign < 0 else ("points", POINTS)
        columns[f"{utility} [{unit}]"] = pd.Series(factor * one.mean, one.sites)
    frame = pd.DataFrame(columns).rename_axis("Site").reset_index()
    caption = f"{name} values by the utility of a model; for a distance, the reduction by the site"
    return Table(f"{name.lower()}-by-utility", caption, frame, decimals=2)


def _benefit_table(results: Results, values: Values) -> Table:
    """Return Shapley values (rows) for the Dice of each tested site (columns), mean over seeds."""
    dice = results.coalition_results.dice.cases.groupby(level=["seed", "method", "site"]).mean().unstack("site")
    matrices = []
    for _, rows in dice.groupby(level="seed"):
        of_seed = rows.droplevel("seed")
        game: dict[Coalition, FloatArray] = {EMPTY_COALITION: np.zeros(of_seed.shape[1])}
        game |= {
            semivalues.parse_coalition(str(text)): line.to_numpy(dtype=np.float64) for text, line in of_seed.iterrows()
        }
        if len(game) == 2 ** len(results.sites):
            matrices.append(values(game))
    frame = pd.DataFrame(POINTS * np.mean(matrices, axis=0), index=results.sites, columns=list(dice.columns))
    caption = "Shapley values [points] of the site in the row for the test Dice of the site in the column"
    return Table("shapley-by-site", caption, frame.rename_axis("Site").reset_index(), decimals=2)
