"""The pictures of a report, from its model: those that the page draws itself, and the figures for papers.

Of the page's own pictures this has numbers, axes and marks, in percent or points, rounded as the page prints them: a
picture has no digit that its text lacks.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, isnan, nan

import pandas as pd
from matplotlib.ticker import MaxNLocator

from fedmerit_evaluation.figures import curves, dots_and_bars
from fedmerit_evaluation.figures.drawing import METHOD_COLOURS
from fedmerit_evaluation.figures.pages import Drawing, SavedFigure
from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.report.agreement import ESTIMATE, Agreement
from fedmerit_evaluation.report.flags import GuardEvidence
from fedmerit_evaluation.report.model import UNKNOWN, Hospital, ReportModel, Training, surface_columns
from fedmerit_evaluation.report.words import resampling_units, say
from fedmerit_evaluation.results.views import STANDALONE
from fedmerit_evaluation.statistics.inference import Estimate
from fedmerit_evaluation.statistics.intervals import select_methods, select_sites

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
REACH = 3.0  # interval ends are drawn as far as so many times the largest value; an arrow says that they reach further


@dataclass(frozen=True)
class Axis:
    """A horizontal axis with marked numbers."""

    ticks: tuple[float, ...]  # ascending; the first and the last are its ends

    @property
    def low(self) -> float:
        """The number at the left end."""
        return self.ticks[0]

    @property
    def high(self) -> float:
        """The number at the right end."""
        return self.ticks[-1]

    def holds(self, value: float) -> bool:
        """Return whether a number is on the axis."""
        return self.low <= value <= self.high

    def place(self, value: float) -> str:
        """Return the place of a number in percent of the width; an end for numbers beyond it."""
        part = (value - self.low) / (self.high - self.low)
        return f"{100 * min(max(part, 0.0), 1.0):.2f}%"


def axis_of(values: Iterable[float], ends: Iterable[float] = (), *, zero: bool = False, ticks: int = 5) -> Axis:
    """Return an axis that holds all values, and the ends of their intervals if these reach not too far.

    Args:
        values: numbers to show; not finite ones are left out.
        ends: ends of intervals.
        zero: whether the axis has to hold 0.
        ticks: about how many steps there are between marked numbers.
    """
    shown = [value for value in values if isfinite(value)] or [0.0]
    low, high = min(shown + [0.0] * zero), max(shown + [0.0] * zero)
    reach = REACH * max(high - low, abs(high), abs(low)) if zero else REACH * (high - low)
    known = [end for end in ends if isfinite(end)]
    low = min([low, *(max(end, low - reach) for end in known)])
    high = max([high, *(min(end, high + reach) for end in known)])
    if low == high:
        low, high = low - 1, high + 1
    places = MaxNLocator(nbins=ticks, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    return Axis(tuple(float(round(place, 9)) + 0.0 for place in places))


@dataclass(frozen=True)
class Mark:
    """A training in pictures: colour and shape are the same in all of them, and the shape differs without colour."""

    label: str  # of the training
    name: str  # that is shown
    style: str  # class of the stylesheet
    shape: str  # of the template svg.html.j2


FEDERATED = (("c1", "dot"), ("c2", "diamond"), ("c3", "triangle"), ("c4", "down"), ("c5", "cross"), ("c6", "plus"))


def mark_trainings(local: str, federated: Sequence[str], pooled: Sequence[str]) -> dict[str, Mark]:
    """Return the marks by label.

    Args:
        local: the label of local training.
        federated: the labels of at most as many methods as there are marks, the most important one first.
        pooled: the labels of training with all images in one place, at most one.
    """
    marks = {local: Mark(local, "local", "local", "ring")}
    marks |= {label: Mark(label, label, *FEDERATED[place]) for place, label in enumerate(federated)}
    return marks | {label: Mark(label, label, "pooled", "square") for label in pooled}


MEAN = "Mean"
EVIDENCE_AXIS = Axis((0.0, 50.0, 100.0, 150.0))  # percent of the bound
CASE_AXIS = Axis((0.0, 25.0, 50.0, 75.0, 100.0))


@dataclass(frozen=True)
class GainRow:
    """A row of the picture of gains: a hospital, or the mean over hospitals."""

    name: str
    patients: int  # tested; 0: unknown
    local: float  # test Dice
    dice: Mapping[str, float]  # by label of a training
    gain: Mapping[str, Estimate]  # likewise, over local training


@dataclass(frozen=True)
class GainPicture:
    """The picture of what each hospital gained."""

    rows: Sequence[GainRow]  # hospitals; the mean, if it is shown, is the last
    dice_axis: Axis
    gain_axis: Axis
    has_mean: bool


@dataclass(frozen=True)
class SharePicture:
    """The picture of what each hospital contributed."""

    rows: Sequence[tuple[Hospital, Estimate]]
    equal: float
    axis: Axis


@dataclass(frozen=True)
class HospitalPanel:
    """The details of a hospital: its test cases, its failures, its images, its rounds."""

    name: str
    cases: Mapping[str, "pd.DataFrame"]  # by label: a row per case, columns local and federated
    curves: Mapping[str, Sequence[float]]  # by label: validation Dice by round
    first_round: int = 0
    images: SavedFigure | None = None

    @property
    def table(self) -> Table:
        """The test cases as a table: a row per case."""
        local = [one["local"] for one in self.cases.values()][:1]
        federated = [one["federated"].rename(label) for label, one in self.cases.items()]
        frame = pd.concat([*local, *federated], axis=1).rename_axis("case").reset_index()
        return Table(f"cases-{self.name}", "", frame)

    @property
    def rounds(self) -> int:
        """The last round of the curves."""
        return self.first_round + max((len(line) for line in self.curves.values()), default=1) - 1


@dataclass(frozen=True)
class MethodRow:
    """A row of the picture of methods."""

    mark: Mark | None
    label: str
    dice: Mapping[str, float]  # by hospital
    mean: float
    gain: Estimate
    worst: float
    surfaces: Mapping[str, float] = field(default_factory=dict)  # by heading


@dataclass(frozen=True)
class MethodsPicture:
    """The picture of all trainings: their Dice by hospital, and their mean gains."""

    rows: Sequence[MethodRow]
    dice_axis: Axis
    gain_axis: Axis


@dataclass(frozen=True)
class OthersRow:
    """A number of the hospital beside the median of the others, in percent."""

    name: str
    own: float
    median: float
    rank: str  # the third of all hospitals


@dataclass(frozen=True)
class Pictures:
    """A set of the pictures that the page draws itself; None: the model cannot fill one."""

    marks: Mapping[str, Mark]  # by label of the trainings that are drawn
    chosen: Sequence[str]  # labels of the trainings that a reader can choose, the report's first
    gains: GainPicture | None
    shares: SharePicture | None
    evidence: Sequence[GuardEvidence]  # the highest of the hospitals, and every simulated attacker
    panels: Mapping[str, HospitalPanel]
    methods: MethodsPicture | None
    others: Sequence[OthersRow] = ()  # in a report for one hospital
    evidence_axis: Axis = EVIDENCE_AXIS
    case_axis: Axis = CASE_AXIS

    @property
    def has_images(self) -> bool:
        """Whether a hospital's test images are shown."""
        return any(panel.images for panel in self.panels.values())


def draw_pictures(model: ReportModel, images: Mapping[str, SavedFigure]) -> Pictures:
    """Return the pictures of a model.

    Args:
        model: the report's content.
        images: by hospital, test images with outlines; none in a report to share.
    """
    federated = [one.label for one in _shown(model, "federated")]
    federated.sort(key=lambda label: label != model.primary)
    pooled = [one.label for one in _shown(model, "pooled")][:1]
    marks = mark_trainings(STANDALONE, federated[: len(FEDERATED)], pooled)
    gains = _gain_picture(model, [label for label in marks if label != STANDALONE])
    tested = {label for row in gains.rows for label, dice in row.dice.items() if not isnan(dice)} if gains else set()
    return Pictures(
        marks=marks,
        chosen=[label for label in marks if label in tested] or federated[:1],
        gains=gains,
        shares=_share_picture(model),
        evidence=_strongest(model.flags.evidence),
        panels={one.name: _panel(model, one.name, marks, images.get(one.name)) for one in model.hospitals},
        methods=_methods_picture(model, marks),
        others=list(_others(model)),
    )


def _others(model: ReportModel) -> Iterator[OthersRow]:
    """Yield Dice and share with the report's method where a median of the others is shown."""
    for row in model.others.to_dict("records"):
        if row["method"] == model.primary and not isnan(row.get("median", nan)):
            name = str(row["quantity"]).removesuffix(" [%]").partition(" of ")[0]
            own, median = (round(100 * float(row[key]), 1) for key in ("own", "median"))
            yield OthersRow(name, own, median, str(row["third"]))


def _strongest(evidence: Sequence[GuardEvidence]) -> list[GuardEvidence]:
    """Return the hospital with the highest evidence, those with a verdict, and every simulated attacker."""
    honest = sorted((one for one in evidence if not one.is_simulated), key=lambda one: -one.percent)
    return [*honest[:1], *(one for one in honest[1:] if one.is_flagged), *(one for one in evidence if one.is_simulated)]


def _shown(model: ReportModel, kind: str) -> list[Training]:
    return [one for one in model.trainings if one.kind == kind and not one.attacked]


def _gain_picture(model: ReportModel, labels: Sequence[str]) -> GainPicture | None:
    """Return the Dice and gains of hospitals and, of several, of their mean."""
    if model.tested.empty:
        return None
    dice, gain = model.tested["dice"], select_sites(model.intervals, "gain")
    means, mean_gains = select_methods(model.intervals, "mean"), select_methods(model.intervals, "mean_gain")

    def of(table: "pd.Series[float]", *key: str) -> float:
        return round(100 * float(table.get(key if len(key) > 1 else key[0], nan)), 1)

    rows = [
        GainRow(
            one.name,
            _patients(model, one.name),
            of(dice, STANDALONE, one.name),
            {label: of(dice, label, one.name) for label in labels},
            {label: _estimate(gain, (label, one.name)) for label in labels},
        )
        for one in model.hospitals
    ]
    if not rows:
        return None
    if has_mean := len(rows) > 1:
        total = sum(row.patients for row in rows)
        local = of(means["mean"], STANDALONE) if STANDALONE in means.index else nan
        mean_dice = {label: of(means["mean"], label) for label in labels}
        # A mean over some hospitals is not drawn: gains are over those with both, and it would not be their difference.
        local = nan if any(isnan(row.local) for row in rows) else local
        mean_dice = {one: nan if any(isnan(row.dice[one]) for row in rows) else mean for one, mean in mean_dice.items()}
        rows.append(GainRow(MEAN, total, local, mean_dice, {label: _estimate(mean_gains, label) for label in labels}))
    known = [estimate for row in rows for estimate in row.gain.values()]
    return GainPicture(
        rows,
        axis_of([value for row in rows for value in (row.local, *row.dice.values())]),
        axis_of([one.mean for one in known], [end for one in known for end in (one.low, one.high)], zero=True),
        has_mean,
    )


def _patients(model: ReportModel, site: str) -> int:
    """Return how many patients of a hospital were tested, in the run with the fewest; of folds all."""
    tested = model.tested.xs(site, level="site") if site in model.tested.index.get_level_values("site") else None
    return 0 if tested is None else int(tested["fewest_patients"].min())


def _estimate(table: pd.DataFrame, key: object) -> Estimate:
    """Return the estimate of a row in points, with the decimals that are shown."""
    if key not in table.index:
        return UNKNOWN
    row = table.loc[[key]].iloc[0]
    return Estimate(*(round(100 * float(row[name]), 1) + 0.0 for name in ("mean", "low", "high")))  # no -0.0


def _share_picture(model: ReportModel) -> SharePicture | None:
    rows = [
        (one, Estimate(*(round(100 * end, 1) for end in (one.share.mean, one.share.low, one.share.high))))
        for one in model.hospitals
        if not isnan(one.share.mean)
    ]
    if not rows:
        return None
    equal = 100 * rows[0][0].equal
    values = [share.mean for _, share in rows]
    axis = axis_of([*values, equal], [end for _, share in rows for end in (share.low, share.high)], zero=True)
    return SharePicture(rows, equal, axis)


def _panel(model: ReportModel, site: str, marks: Mapping[str, Mark], images: SavedFigure | None) -> HospitalPanel:
    """Return the details of a hospital: means over seeds by case and by round."""
    cases: dict[str, pd.DataFrame] = {}
    if not model.cases.empty and site in model.cases.index.get_level_values("site"):
        table = (100 * model.cases.xs(site, level="site")).groupby(level=["method", "case"], observed=True).mean()
        by_case = table.unstack("method").round(1)
        for label in marks:
            if label != STANDALONE and label in by_case:
                local = by_case.get(STANDALONE, pd.Series(nan, by_case.index))
                cases[label] = pd.DataFrame({"local": local, "federated": by_case[label]}).dropna(subset="federated")
    curves, first = dict[str, Sequence[float]](), 0
    if site in model.curves:
        rounds = (100 * model.curves[site]).groupby(level=["method", "round"], observed=True).mean().unstack("method")
        rounds = rounds.dropna(how="all")
        first = int(rounds.index.min()) if len(rounds) else 0
        curves = {label: rounds[label].dropna().round(1).to_list() for label in marks if label in rounds}
        curves = {label: line for label, line in curves.items() if len(line) > 1}
    return HospitalPanel(site, cases, curves, first, images)


def _methods_picture(model: ReportModel, marks: Mapping[str, Mark]) -> MethodsPicture | None:
    if model.site or model.comparison is None:
        return None
    means, gains = select_methods(model.intervals, "mean"), select_methods(model.intervals, "mean_gain")
    by_site = (100 * model.comparison[0]["site"]).round(1)
    surfaces = model.surface_means
    rows = [
        MethodRow(
            marks.get(label),
            label,
            {str(site): float(value) for site, value in by_site.loc[label].dropna().items()},
            _estimate(means, label).mean,
            _estimate(gains, label),
            round(100 * float(model.comparison[0]["sites"].loc[label, "worst"]), 1),
            dict(_surfaces(surfaces, label)),
        )
        for label in sorted(by_site.index, key=lambda label: (label != STANDALONE, model.methods.index(label)))
    ]
    return MethodsPicture(
        rows,
        axis_of([value for row in rows for value in row.dice.values()], ticks=6),
        axis_of(
            [row.gain.mean for row in rows], [end for row in rows for end in (row.gain.low, row.gain.high)], zero=True
        ),
    )


def _surfaces(means: pd.DataFrame, label: str) -> Iterator[tuple[str, float]]:
    if label in means.index:
        for heading, column in surface_columns(means).items():
            yield heading, round(float(column.loc[label]), 1)


def draw_figures(model: ReportModel) -> dict[str, Drawing]:
    """Return every figure that the model can fill, by name; of too many methods only the report's."""
    drawn = dict([*_draw_shares(model), *_draw_dice(model), *_draw_gains(model), *_draw_rounds(model)])
    drawn |= {f"agreement-{one.reference.lower()}": _draw_agreement(one) for one in model.agreements}
    if model.observed.rankings:
        figure = dots_and_bars.value_ranges(model.observed.rankings, model.observed.units, has_verdicts=False)
        drawn["values"] = Drawing(VALUES_CAPTION, figure)
    return drawn


def _draw_shares(model: ReportModel) -> Iterator[tuple[str, Drawing]]:
    known = {one.name: vars(one.share) for one in model.hospitals if not isnan(one.share.mean)}
    if not known or model.site:
        return
    shares, equal = pd.DataFrame(known).T, model.hospitals[0].equal
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
    sites = [one.name for one in model.hospitals] or sorted(map(str, gains.index.unique("of")))  # none if all is pooled
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
