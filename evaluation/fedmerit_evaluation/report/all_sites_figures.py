"""The figures of a report on all sites, as far as the results fill them."""

import math
from collections.abc import Sequence

import pandas as pd

from fedmerit.contract.semivalues import EXACT
from fedmerit.evidence.closing_record import OBSERVED
from fedmerit_evaluation.figures import curves, dots_and_bars
from fedmerit_evaluation.figures.drawing import METHOD_COLOURS
from fedmerit_evaluation.figures.pages import Drawing
from fedmerit_evaluation.report import alt_texts
from fedmerit_evaluation.report.contributions import ESTIMATE, Agreement
from fedmerit_evaluation.report.hospitals import Hospital
from fedmerit_evaluation.report.phrases import resampling_units
from fedmerit_evaluation.report.shared_parts import ROUNDS, shared_quantities
from fedmerit_evaluation.results.runs import Run
from fedmerit_evaluation.results.views import STANDALONE, Results
from fedmerit_evaluation.statistics.intervals import select_sites
from fedmerit_evaluation.statistics.ranks import Ranking
from fedmerit_evaluation.valuation.valued_runs import default_estimators, units, value_runs

AGREEMENTS = {name: f"agreement-{name.lower()}" for name in EXACT}  # figures by ground truth
FIGURES = {"dice", "gains", "convergence", "shares", "values", *(name for name, _ in ROUNDS.values())}
FIGURES |= set(AGREEMENTS.values())
MAX_GAINS = 5  # methods whose gains are drawn with their CIs
DRAWS = 200  # of the values of observed runs
VALUES_CAPTION = (
    "Value of each site by what was observed of the run, with 95 % confidence intervals over patients, rounds and "
    "seeds. Sites on one grey band are not significantly different; the ranks beside them show what is known. No "
    "payment should rest on a difference that is not significant."
)
SHOWN_ELSEWHERE = ("contribution", "data_size")  # estimators


def draw_figures(
    runs: Sequence[Run],
    results: Results,
    everything: Results,
    hospitals: Sequence[Hospital],
    agreed: Sequence[Agreement],
    method: str | None,
) -> dict[str, Drawing]:
    """Every figure that the results can fill, by name; of too many methods only those of the report.

    Args:
        runs: all.
        results: of the runs without simulated attacks; Dice is of these.
        everything: of all runs; rounds are of these.
        hospitals: of the report's method.
        agreed: agreement with each ground truth.
        method: of the report.
    """
    drawn = _draw_shares(hospitals, results.repeats)
    if not results.dice.rows.empty:
        drawn["dice"] = _draw_dice(results, method)
    gains = select_sites(results.dice.intervals, "gain").dropna(subset="mean")  # none without a seed in common
    if not gains.empty:
        drawn["gains"] = _draw_gains(results, gains, method)
    return drawn | _draw_rounds(everything) | _draw_agreements(agreed) | draw_values(runs)


def moving_quantities(results: Results) -> dict[str, list[str]]:
    """By quantity that is recorded and not another's numbers, the methods with which it changes over the rounds."""
    found = {quantity: curves.moving(results.rounds.of(quantity)) for quantity in shared_quantities(results)}
    return {quantity: methods for quantity, methods in found.items() if methods}


def _draw_shares(hospitals: Sequence[Hospital], repeats: str) -> dict[str, Drawing]:
    known = {one.name: vars(one.share) for one in hospitals if not math.isnan(one.share.mean)}
    if not known:
        return {}
    shares, equal = pd.DataFrame(known).T, 1 / len(hospitals)
    of_images = any(one.counts_images for one in hospitals)
    what = "images" if of_images else "contribution"
    text = f"Share of {what} of each hospital" + "." * of_images
    text += "" if of_images else f" by the method's estimate, with 95 % confidence intervals over {repeats}."
    figure = dots_and_bars.share_ranges(shares, equal, f"Share of {what} [%]")
    return {"shares": Drawing(text, figure, alt_texts.describe_shares(shares, equal))}


def _draw_dice(results: Results, method: str | None) -> Drawing:
    shown, others = _choose_methods(results.methods, method, len(METHOD_COLOURS))
    if others:
        results = Results(results.rows[results.rows["method"].isin(shown)])
    text = f"Test Dice of each hospital, a colour per method: bars are means, dots cases.{others}"
    means = pd.DataFrame(results.dice.comparison[0]["site"])
    return Drawing(text, dots_and_bars.dice_bars(results), alt_texts.describe_dice(means))


def _draw_gains(results: Results, gains: pd.DataFrame, method: str | None) -> Drawing:
    """Of ``gains``, ``(method, site)`` x ``mean, low, high``, fractions."""
    order = [one for one in results.methods if one in gains.index.unique("method")]
    shown, others = _choose_methods(order, method, MAX_GAINS)
    over = resampling_units(results.dice.rows["seed"].nunique(), results.dice.clusters.folds)
    ends = f", 95 % confidence intervals over {over}" if gains["low"].notna().any() else ""
    text = f"Gain in test Dice over local training{ends}; left of 0 a hospital lost.{others}"
    gains = gains.loc[shown]
    return Drawing(text, dots_and_bars.gain_ranges(gains, results.sites), alt_texts.describe_gains(gains))


def _choose_methods(methods: Sequence[str], method: str | None, most: int) -> tuple[list[str], str]:
    """All methods, or of more than ``most`` that of the report and local training; and words on the others."""
    if len(methods) <= most:
        return list(methods), ""
    shown = [one for one in methods if one in (method, STANDALONE)] or list(methods[:most])
    return shown, " The other methods are in the tables."


def _draw_rounds(results: Results) -> dict[str, Drawing]:
    """Validation Dice, and the quantities that change over the rounds."""
    drawn: dict[str, Drawing] = {}
    if not results.rounds.validation.empty:
        text = (
            "Validation Dice over the rounds, of the model each hospital receives. Mean over hospitals: thin as "
            "measured, thick smoothed (Savitzky-Golay); lines of single hospitals are smoothed."
        )
        means = 100 * results.rounds.validation.groupby(level=["method", "round"], observed=True).mean().mean(axis=1)
        seen = alt_texts.describe_lines(means.unstack("method"), "Validation Dice in percent")
        drawn["convergence"] = Drawing(text, curves.convergence(results), seen)
    same = shared_quantities(results)
    for quantity, methods in moving_quantities(results).items():
        name, caption = ROUNDS[quantity]
        caption += "".join(f" Here the {other} is the same number." for other in same[quantity])
        table, weight = results.rounds.of(quantity), quantity == "weight"
        if still := [method for method in results.methods if method not in methods and method in table.index]:
            caption += f" Not shown, as it never changes: {', '.join(still)}."
        title = "Weight [%]" if weight else f"{quantity.title()} [own unit]"
        figure = curves.over_rounds(results, quantity, title, equal_share=weight)
        rounds = (100 if weight else 1) * table.groupby(level=["method", "round"], observed=True).mean()
        panels = {method: pd.DataFrame(rounds.loc[method]) for method in methods}
        drawn[name] = Drawing(caption, figure, alt_texts.describe_panels(panels, title))
    return drawn


def _draw_agreements(agreed: Sequence[Agreement]) -> dict[str, Drawing]:
    """The methods' estimates over the values of each ground truth, means over seeds."""
    drawn = {}
    for one in agreed:
        estimates = {method: frame.mean() for (method, estimate), frame in one.estimates.items()
                     if estimate in (ESTIMATE, "sample share")}  # fmt: skip
        estimates = {("sample share" if method == "any" else method): line for method, line in estimates.items()}
        text = f"Estimated contribution of each hospital by each method, over {one.reference} values; means over seeds."
        values = one.values.mean()
        figure = dots_and_bars.agreement(values, estimates, one.reference)
        seen = alt_texts.describe_agreement(values, estimates, one.reference)
        drawn[AGREEMENTS[one.reference]] = Drawing(text, figure, seen)
    return drawn


def draw_values(runs: Sequence[Run]) -> dict[str, Drawing]:
    """The values of observed runs in one figure; nothing if no method's runs were all observed."""
    rankings, of_values, caption = dict[str, Ranking](), dict[str, str](), VALUES_CAPTION
    labels = list(dict.fromkeys(run.label for run in runs))
    for label in labels:
        folders = [run.path for run in runs if run.label == label and run.tested]
        if not folders or not all((folder / OBSERVED).exists() for folder in folders):
            continue
        if asked := [spec for spec in default_estimators(folders) if spec not in SHOWN_ELSEWHERE]:
            valued = value_runs(folders, asked, DRAWS)
            named = {spec: spec if len(labels) == 1 else f"{label}: {spec}" for spec in asked}
            rankings |= {named[spec]: one for spec, one in valued.shown.items()}
            for why in dict.fromkeys(one.insufficient_data for one in valued.shown.values() if one.insufficient_data):
                caption += f" {label}: {why}, so no difference is called significant."
            of_values |= {named[spec]: unit for spec, unit in units(valued).items()}
    return {"values": Drawing(caption, dots_and_bars.value_ranges(rankings, of_values))} if rankings else {}
