"""The figures of a report, from its model, with captions and alternative texts."""

import math
from collections.abc import Iterator, Sequence

import pandas as pd

from fedmerit_evaluation.figures import curves, dots_and_bars
from fedmerit_evaluation.figures.drawing import METHOD_COLOURS
from fedmerit_evaluation.figures.pages import Drawing
from fedmerit_evaluation.report.agreement import ESTIMATE, Agreement
from fedmerit_evaluation.report.model import ReportModel
from fedmerit_evaluation.report.words import resampling_units, say
from fedmerit_evaluation.results.views import STANDALONE
from fedmerit_evaluation.statistics.intervals import select_sites

ROUNDS = {  # by quantity: the name of its figure, and the caption
    "weight": ("weights", "Aggregation weight of {} over the rounds, in percent of the whole."),
    "contribution": (
        "contributions",
        "Contribution of {} as the method estimates it, round by round, in the method's own unit.",
    ),
    "reputation": ("reputation", "Reputation of {}: running average of its contribution, in its own unit."),
}
FIGURES = ("dice", "gains", "convergence", "shares", "values", "weights", "contributions", "reputation", "overlays",
           "agreement-leave-one-out", "agreement-shapley")  # fmt: skip
MAX_GAINS = 5  # methods whose gains are drawn with their CIs
VALUES_CAPTION = (
    "Value of each site by what was observed of the run, with 95 % confidence intervals over patients, rounds and "
    "seeds; `fedmerit value estimate` compares them."
)
ELSEWHERE = " The other methods are in the tables."


def draw_figures(model: ReportModel) -> dict[str, Drawing]:
    """Return every figure that the model can fill, by name; of too many methods only the report's."""
    drawn = dict([*_draw_shares(model), *_draw_dice(model), *_draw_gains(model), *_draw_rounds(model)])
    drawn |= {f"agreement-{one.reference.lower()}": _draw_agreement(one) for one in model.agreements}
    if model.observed.rankings:
        figure = dots_and_bars.value_ranges(model.observed.rankings, model.observed.units, has_verdicts=False)
        drawn["values"] = Drawing(VALUES_CAPTION, figure)
    return drawn


def _draw_shares(model: ReportModel) -> Iterator[tuple[str, Drawing]]:
    known = {one.name: vars(one.share) for one in model.hospitals if not math.isnan(one.share.mean)}
    if not known or model.site:
        return
    shares, equal = pd.DataFrame(known).T, 1 / model.number_of_sites
    what = "images" if model.counts_images else "contribution"
    over = f" by the method's estimate, with 95 % confidence intervals over {model.study.repeats}"
    text = f"Share of {what} of each hospital{'' if model.counts_images else over}."
    figure = dots_and_bars.share_ranges(shares, equal, f"Share of {what} [%]")
    yield "shares", Drawing(text, figure, say("seen_shares", shares["mean"].astype(float), equal))


def _draw_dice(model: ReportModel) -> Iterator[tuple[str, Drawing]]:
    if model.cases.empty:
        return
    methods = model.cases.index.get_level_values("method")
    shown, elsewhere = _choose_methods(model, [one for one in model.methods if one in methods], len(METHOD_COLOURS))
    cases = model.cases[methods.isin(shown)]
    sites = sorted(map(str, cases.index.unique("site")))
    means = model.tested["dice"].unstack("site").dropna(how="all")
    rows = [(method, means.loc[method]) for method in shown if method in means.index]
    text = f"Test Dice of {_whose(model)}, a colour per method: bars are means, dots cases.{elsewhere}"
    yield "dice", Drawing(text, dots_and_bars.dice_bars(cases, sites), say("seen_dice", rows))


def _draw_gains(model: ReportModel) -> Iterator[tuple[str, Drawing]]:
    gains = select_sites(model.intervals, "gain").dropna(subset="mean")  # none without a seed in common
    if gains.empty:
        return
    order = [one for one in model.methods if one in gains.index.unique("method")]
    shown, elsewhere = _choose_methods(model, order, MAX_GAINS)
    over = resampling_units(model.study.seeds_tested, model.study.folds)
    ends = f", 95 % confidence intervals over {over}" if gains["low"].notna().any() else ""
    text = f"Gain in test Dice over local training{ends}; left of 0 a hospital lost.{elsewhere}"
    rows = [(method, pd.DataFrame(gains.loc[method])) for method in shown]
    sites = [one.name for one in model.hospitals]
    yield "gains", Drawing(text, dots_and_bars.gain_ranges(gains.loc[shown], sites), say("seen_gains", rows))


def _whose(model: ReportModel) -> str:
    return "this hospital" if model.site else "each hospital"


def _choose_methods(model: ReportModel, methods: Sequence[str], most: int) -> tuple[list[str], str]:
    """Return all methods, or of more than ``most`` the report's and local training; and words on the others."""
    if len(methods) <= most:
        return list(methods), ""
    return [one for one in methods if one in (model.primary, STANDALONE)] or list(methods[:most]), ELSEWHERE


def _draw_rounds(model: ReportModel) -> Iterator[tuple[str, Drawing]]:
    """Yield validation Dice, and the quantities that change over the rounds."""
    if not model.curves.empty:
        over = "" if model.site else " Mean over hospitals:"
        text = (
            f"Validation Dice over the rounds, of the model that {_whose(model)} receives.{over} thin as measured, "
            "thick smoothed (Savitzky-Golay); lines of single hospitals are smoothed."
        )
        means = 100 * model.curves.groupby(level=["method", "round"], observed=True).mean().mean(axis=1)
        lines = [(str(name), line.dropna()) for name, line in means.unstack("method").items() if line.notna().any()]
        seen = say("seen_lines", lines, "Validation Dice in percent")
        yield "convergence", Drawing(text, curves.convergence(model.curves), seen)
    for quantity, same in model.same_quantities.items():
        table, is_weight = model.rounds[quantity], quantity == "weight"
        if not (methods := curves.moving(table)):
            continue
        name, caption = ROUNDS[quantity]
        caption = caption.format(_whose(model)) + "".join(f" Here the {other} is the same number." for other in same)
        if still := [one for one in model.methods if one not in methods and one in table.index.unique("method")]:
            caption += f" Not shown, as it never changes: {', '.join(still)}."
        title = "Weight [%]" if is_weight else f"{quantity.title()} [own unit]"
        figure = curves.over_rounds(table, title, 1 / model.number_of_sites if is_weight else None)
        rounds = (100 if is_weight else 1) * table.groupby(level=["method", "round"], observed=True).mean()
        panels = [(method, rounds.loc[method].ffill().iloc[-1].dropna()) for method in methods]
        yield name, Drawing(caption, figure, say("seen_panels", panels, title))


def _draw_agreement(one: Agreement) -> Drawing:
    """Draw the methods' estimates over the values of a ground truth, means over seeds."""
    estimates = {
        "sample share" if method == "any" else method: frame.mean()
        for (method, estimate), frame in one.estimates.items()
        if estimate in (ESTIMATE, "sample share")
    }
    text = f"Estimated contribution of each hospital by each method, over {one.reference} values; means over seeds."
    values = one.values.mean()
    figure = dots_and_bars.agreement(values, estimates, one.reference)
    return Drawing(text, figure, say("seen_agreement", values, list(estimates.items()), one.reference))
