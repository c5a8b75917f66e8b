"""Tables of what each site is worth, from the results of trained coalitions: functions, no files.

A site's value goes by the utility of `evaluation.truth.utilities.coalition_utilities`: test Dice, mean over all sites,
also over those that took no part. Values stand in points of Dice (1/100), signed: negative where a site does harm.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from evaluation.display.table import Table
from evaluation.results.views import Results
from evaluation.truth import semivalues
from evaluation.truth.sampling import Estimate
from evaluation.truth.semivalues import Game, Weights
from evaluation.truth.utilities import coalition_utilities
from fedmerit.errors import BadInput

PAPER = "Jiang et al. 2023"
BETA = (4.0, 1.0)  # of Beta-Shapley as its authors recommend it: weight on small coalitions
SHARE = "share of the sum over sites, none where that is not above 0"
EVERYONE = "(nobody left out)"
DROP, IMAGES = "Drop [points]", "Training images"


def leave_one_out_tables(results: Results) -> list[Table]:
    """Tables 4 and 5 of the FedCE paper, and who loses by whose absence.

    Args:
        results: as `evaluation.truth.coalitions.results_of` gives them; the grand coalition and each without one site.

    Raises:
        BadInput: no seed has all of these coalitions.
    """
    utilities, labels = _whole(coalition_utilities(results), semivalues.leave_one_out_weights, results)
    of_labels = coalition_utilities(results, per_label=True)
    sites = semivalues.sites_of(next(iter(utilities.values())))
    grand = frozenset(sites)
    absent = [grand - {site} for site in sites]
    frames = []
    for seed, game in utilities.items():
        frame = pd.DataFrame(index=[*sites, EVERYONE])
        for place, label in enumerate(labels):
            of = f", {label}" * (len(labels) > 1)
            dice = 100 * np.array([of_labels[seed][one][place] for one in (*absent, grand)])
            frame[f"Dice without it{of} [%]"] = dice
            frame[f"Drop{of} [points]"] = pd.Series(dice[-1] - dice[:-1], sites)
        frame[DROP] = pd.Series(100 * semivalues.leave_one_out(game), sites)
        frame[IMAGES] = _images(results, seed)
        frames.append(frame)
    caption = (
        f"Leave-one-out (as Tables 4 and 5 of {PAPER}): drop of Dice, mean over all sites, where one takes no part; "
        f"performance contribution is its {SHARE}"
    )
    shares = {"Performance contribution [%]": DROP, "Sample contribution [%]": IMAGES}
    return [_table("leave-one-out", caption, frames, "Site", shares), _who_loses(results, list(utilities), sites)]


def shapley_tables(results: Results) -> list[Table]:
    """Shapley, Banzhaf, Beta-Shapley and leave-one-out values side by side, and the utilities they come from.

    Args:
        results: as `evaluation.truth.coalitions.results_of` gives them; all coalitions.

    Raises:
        BadInput: no seed has all coalitions.
    """
    utilities, _ = _whole(coalition_utilities(results), semivalues.shapley_weights, results)
    frames = []
    for seed, game in utilities.items():
        values = {
            "Shapley": semivalues.shapley(game),
            "Banzhaf": semivalues.banzhaf(game),
            f"Beta-Shapley({BETA[0]:g}, {BETA[1]:g})": semivalues.beta_shapley(game, *BETA),
            "Leave-one-out": semivalues.leave_one_out(game),
        }
        columns = {f"{name} [points]": 100 * value for name, value in values.items()}
        frames.append(pd.DataFrame(columns, index=semivalues.sites_of(game)).assign(**{IMAGES: _images(results, seed)}))
    caption = (
        f"Values of test Dice, mean over all sites, from {len(next(iter(utilities.values()))) - 1} coalitions; the "
        f"utility of nobody is 0; a share is a value's {SHARE}"
    )
    shares = {f"{name} share [%]": f"{name} [points]" for name in values}
    shares["Sample contribution [%]"] = IMAGES
    return [_table("shapley", caption, frames, "Site", shares), _coalitions(utilities)]


def sampled_tables(sites: Sequence[str], estimates: Mapping[int, Estimate]) -> list[Table]:
    """Shapley values from sampled permutations, by seed, with their standard errors."""
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
    """The seeds that have every coalition the values take, and the labels."""
    sites = results.sites
    whole = {seed: game for seed, game in utilities.items() if not semivalues.missing(game, sites, weights)}
    if not whole:
        lacking = {seed: semivalues.missing(game, sites, weights) for seed, game in utilities.items()}
        told = "; ".join(f"seed {seed}: {semivalues.named(coalitions)}" for seed, coalitions in lacking.items())
        if any(one in utilities[seed] for seed, coalitions in lacking.items() for one in coalitions):
            told += "; those that are trained have a site without Dice, prediction and reference being empty throughout"
        raise BadInput(
            f"no seed has all coalitions ({told or 'none is trained'}); the same command trains what is missing"
        )
    labels = results.rows.loc[results.rows["quantity"] == "dice", "label"]
    return whole, list(dict.fromkeys(labels))


def _images(results: Results, seed: int) -> "pd.Series[float]":
    """Training images of each site, as its coalitions recorded them."""
    rows = results.rows[(results.rows["quantity"] == "num_samples") & (results.rows["seed"] == seed)]
    return rows.groupby("site")["value"].max()


def _who_loses(results: Results, seeds: Sequence[int], sites: list[str]) -> Table:
    """Left out (rows) x tested (columns): the drop of Dice there."""
    dice = results.of_coalitions.dice.cases.groupby(level=["seed", "method", "site"]).mean()
    frames = []
    for seed in seeds:
        grand = dice.loc[seed, semivalues.text_of(sites)]
        rows = {site: grand - dice.loc[seed, semivalues.text_of(set(sites) - {site})] for site in sites}
        frames.append(100 * pd.DataFrame(rows).T.reindex(index=sites, columns=sites))
    caption = "Who loses by whose absence: drop of test Dice [points] of the site in the column without that in the row"
    return _table("leave-one-out-by-site", caption, frames, "Without")


def _coalitions(utilities: Mapping[int, Game]) -> Table:
    """Utility of each coalition."""
    first = next(iter(utilities.values()))
    ordered = sorted((one for one in first if one), key=lambda one: (-len(one), semivalues.text_of(one)))
    names = [semivalues.text_of(one) for one in ordered]
    frames = [
        pd.DataFrame({"Dice [%]": [100 * float(np.asarray(game[one])) for one in ordered]}, index=names)
        for game in utilities.values()
    ]
    return _table("coalitions", "Test Dice of each coalition's model, mean over all sites", frames, "Coalition")


def _table(
    name: str, caption: str, frames: Sequence[pd.DataFrame], first: str, shares: Mapping[str, str] | None = None
) -> Table:
    """Mean of the seeds' frames, ± their sample standard deviation; ``shares`` are of the means of a column each."""
    stacked = pd.concat(dict(enumerate(frames)))
    seeds = stacked.groupby(level=1, sort=False)
    mean, spread = seeds.mean(), seeds.std(ddof=1)
    for share, column in (shares or {}).items():
        known = mean[column].dropna()
        mean[share] = pd.Series(100 * semivalues.normalised(known), known.index)
        spread[share] = math.nan
    spread = spread.mask(spread == 0)  # such as of numbers of images: they are not measured
    if len(frames) > 1:
        caption += f"; mean ± std over {len(frames)} seeds"

    def headed(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.rename_axis(first).reset_index()

    return Table(name, caption, headed(mean), spread=headed(spread), decimals=2)
