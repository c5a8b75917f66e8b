"""The model of a report: all that its page shows, in numbers and codes. Sentences, tables and figures are made of it.

Frames have the label of a training as ``method`` and a hospital as ``site``; Dice, gains and shares are fractions.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from fedmerit_evaluation.figures.tables import HEADINGS, UNITS
from fedmerit_evaluation.report.agreement import Agreement
from fedmerit_evaluation.report.flags import Flag, Flags, GuardVerdict
from fedmerit_evaluation.report.limits import Limit
from fedmerit_evaluation.results.views import STANDALONE, SURFACES
from fedmerit_evaluation.statistics.family import Question, Verdict
from fedmerit_evaluation.statistics.inference import Comparison, Estimate, SampleSize, compare_training
from fedmerit_evaluation.statistics.intervals import select_methods, sort_by_mean
from fedmerit_evaluation.statistics.ranks import Ranking

FAILURE = 0.5  # Dice of a patient below which a segmentation has failed
QUANTITIES = ("weight", "contribution", "reputation")  # recorded round by round
SHARE_DECIMALS = 3  # of a fraction: shares that read as the same percentage do not differ
UNKNOWN = Estimate(math.nan)


@dataclass(frozen=True)
class Study:
    """A description of what was trained."""

    task: str
    labels: tuple[str, ...]
    sites: tuple[str, ...]  # the names of all hospitals; () if they may not be named
    runs: int
    rounds: tuple[int, ...]  # the numbers of rounds of the runs, each once
    seeds: tuple[int, ...]  # each once, in the order of the runs
    days: tuple[str, ...]  # the first and the last day on which a run was started
    seeds_tested: int = 0  # seeds with test Dice
    folds: int = 0  # that have tested, if CIs of Dice are over them
    repeats: str = "seeds"  # what CIs of contributions are over


@dataclass(frozen=True)
class Training:
    """A way of training, with all of its runs."""

    label: str
    kind: str  # local, federated or pooled
    primary: bool  # whether it is the federated training that the report judges
    attacked: bool  # whether its runs have simulated attackers


@dataclass(frozen=True)
class Hospital:
    """A hospital with the primary training: what it gained, contributed, and is flagged for."""

    name: str
    local: float  # test Dice of local training; NaN if it is not known
    federated: Estimate  # test Dice
    surfaces: Mapping[str, float]  # HD95 and NSD of federated training by their headings, in the units of these
    gain: Estimate  # p is corrected for all verdicts of the report; NaN: not tested
    sample: SampleSize  # behind the gain
    lacking: str  # why no gain is known: untested, ambiguous, no_local or no_seed
    share: Estimate  # of all contributions by the method's estimate, or of images; p as of the gain
    equal: float  # the share of each hospital if all were the same
    share_seeds: int  # that the share rests on
    counts_images: bool  # whether the share is that of images, which is no estimate
    values: Mapping[str, float]  # by ground truth, as fractions of Dice
    detectable: float = math.nan  # gain that four of five such studies would show; NaN: not tested
    share_untested: str = ""  # why the share is not compared with an equal one
    flags: tuple[Flag, ...] = ()  # of the method and the server
    verdicts: tuple[GuardVerdict, ...] = ()
    needs_review: bool = False  # whether it is flagged by the server, or by a verdict in force

    @property
    def state(self) -> Comparison:
        """The comparison of federated with local training."""
        return compare_training(self.gain, self.sample)

    @property
    def rounded_share(self) -> Estimate:
        """The share with the decimals that are shown, to be compared with `equal`."""
        mean, low, high = (round(end, SHARE_DECIMALS) for end in (self.share.mean, self.share.low, self.share.high))
        return Estimate(mean, low, high, self.share.p)

    @property
    def share_sign(self) -> int:
        """The sign of a significant difference from an equal share, both as shown: 1 above, -1 below, 0 none."""
        return self.rounded_share.compare(self.equal)


@dataclass(frozen=True)
class Condition:
    """A reason for which the evidence does not support payment by the method's estimate."""

    code: str
    reference: str = ""  # the ground truth that it is about; of ``no_estimate``: hospitals without, if others have one


@dataclass(frozen=True)
class ObservedValues:
    """The values of sites by what runs observed, by the name of the estimator."""

    rankings: Mapping[str, Ranking]
    units: Mapping[str, str]


NONE = pd.DataFrame()


@dataclass(frozen=True, eq=False)
class ReportModel:
    """The content of a report. What may not be shown of other hospitals is empty in the model for one hospital."""

    site: str  # the hospital that the report is for; "" if it is for all
    study: Study
    number_of_sites: int
    trainings: tuple[Training, ...]
    hospitals: tuple[Hospital, ...]
    primary: str | None  # the label of the primary training; None: no run is federated
    is_ambiguous: bool  # whether there are runs of local training, but none to compare with
    counts_images: bool  # whether the contributions of the primary training are shares of images
    unmet: tuple[Condition, ...]  # conditions of payment by the estimate that are not met; (): it is supported
    sample: SampleSize  # behind comparisons of methods
    flags: Flags
    settings: tuple[tuple[str, Mapping[str, Any]], ...]  # by label: the settings of each run
    verdicts: Sequence[Verdict] = ()  # all that the report judges, one family; sentences and tables take theirs here
    failure: float = FAILURE  # Dice of a patient below which the segmentation has failed
    failures: pd.DataFrame = field(
        default_factory=pd.DataFrame
    )  # (method, site) x failed, patients, low, high: patients that failed, with the CI of their part
    all_failures: pd.DataFrame = field(default_factory=pd.DataFrame)  # method x the same, over all sites
    intervals: pd.DataFrame = field(
        default_factory=pd.DataFrame
    )  # (statistic, method, of) x mean, low, high of test Dice; p of single tests, which `verdicts` correct
    tested: pd.DataFrame = field(default_factory=pd.DataFrame)  # (method, site) x Dice, surfaces, numbers of cases
    cases: "pd.Series[float]" = field(
        default_factory=lambda: pd.Series(dtype=float)
    )  # Dice: (method, seed, site, case)
    labels: pd.DataFrame = field(default_factory=pd.DataFrame)  # (method, site) x labels, with surfaces by heading
    surface_changes: pd.DataFrame = field(
        default_factory=pd.DataFrame
    )  # (method, site) x surfaces: federated minus local
    final_models: pd.DataFrame = field(
        default_factory=pd.DataFrame
    )  # (method, site) x headings: received, local and final model
    contributions: pd.DataFrame = field(
        default_factory=pd.DataFrame
    )  # (method, site) x weights, contributions, reputations
    costs: pd.DataFrame = field(default_factory=pd.DataFrame)  # (method, site) x seconds and bytes of a round
    curves: pd.DataFrame = field(default_factory=pd.DataFrame)  # validation Dice: (method, seed, round) x sites
    rounds: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # of `QUANTITIES`: (method, seed, round) x sites
    same_quantities: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of `rounds`: others with its numbers
    notes: Sequence[Limit] = ()  # limits of runs, which a reader has to know first
    limits: Sequence[Limit] = ()
    mean_gain: Estimate = UNKNOWN  # p is corrected for all verdicts
    sample_of_gain: SampleSize = field(default_factory=lambda: SampleSize(0, 0))
    comparison: tuple[pd.DataFrame, pd.DataFrame] | None = None  # means and deviations of methods x sites, mean, worst
    ends: pd.DataFrame = field(
        default_factory=pd.DataFrame
    )  # (method, site) x mean, low, high, seeds: of contributions
    cross_site: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # by quantity: (method, site) x tested site
    surface_means: pd.DataFrame = field(default_factory=pd.DataFrame)  # method x surfaces: means over sites
    by_images: Sequence[str] = ()  # methods whose contributions are shares of images
    best_round: pd.DataFrame = field(default_factory=pd.DataFrame)  # (method, seed) x headings
    agreements: Sequence[Agreement] = ()
    observed: ObservedValues = ObservedValues({}, {})
    flagged_sites: Sequence[str] = ()  # by the method or the server, in any round
    groups: pd.DataFrame = field(default_factory=pd.DataFrame)  # of patients, as of `compare_groups`
    others: pd.DataFrame = field(
        default_factory=pd.DataFrame
    )  # a row per quantity and method: what is shown of the other hospitals
    left_out: Sequence[str] = ()  # why some weights and contributions are left out, as codes

    @property
    def shares(self) -> dict[str, float]:
        """The known shares by hospital."""
        return {one.name: one.share.mean for one in self.hospitals if not math.isnan(one.share.mean)}

    @property
    def share_seeds(self) -> int:
        """The number of seeds that the shares rest on."""
        return min((one.share_seeds for one in self.hospitals), default=0)

    @property
    def shares_have_intervals(self) -> bool:
        """Whether any share has a confidence interval."""
        return any(one.share.has_interval for one in self.hospitals)

    @property
    def shown_gain(self) -> Estimate:
        """The gain that the page's first answer is about: that of the one hospital, or the mean over hospitals."""
        return self.hospitals[0].gain if self.site and self.hospitals else self.mean_gain

    @property
    def detectable_shown_gain(self) -> float:
        """The gain that four of five such studies would show, for `shown_gain`; NaN: not tested."""
        return self.hospitals[0].detectable if self.site and self.hospitals else self.detectable_mean_gain

    @property
    def sample_of_shown_gain(self) -> SampleSize:
        """The sample behind `shown_gain`."""
        return self.hospitals[0].sample if self.site and self.hospitals else self.sample_of_gain

    @property
    def benefit(self) -> Comparison:
        """The comparison that the page's first answer is about."""
        return compare_training(self.shown_gain, self.sample_of_shown_gain)

    @property
    def shown_in_part(self) -> Comparison | None:
        """The verdict at some hospital, harm first, if there is none on the mean; None: there is none either."""
        if self.site or self.benefit != Comparison.TIE:
            return None
        states = {one.state for one in self.hospitals}
        return next((state for state in (Comparison.WORSE, Comparison.BETTER) if state in states), None)

    @property
    def number_of_patients(self) -> int:
        """The number of test patients of all hospitals, in the run with the fewest; 0 if none is tested."""
        if self.tested.empty:
            return 0
        return int(self.tested["fewest_patients"].groupby(level="site").min().sum())

    @property
    def patients(self) -> int:
        """The number of test patients of the hospital with the fewest; 0 if none is tested."""
        return 0 if self.tested.empty else int(self.tested["fewest_patients"].min())

    def verdicts_on(self, question: Question) -> list[Verdict]:
        """Return the verdicts on one question."""
        return [one for one in self.verdicts if one.question == question]

    @property
    def leads(self) -> tuple[str, dict[str, Verdict]]:
        """The training, other than local, with the highest mean Dice, and the verdicts on its leads over the others."""
        order = sort_by_mean(select_methods(self.intervals, "mean"))
        best = next(iter(one for one in order if one != STANDALONE), "")
        found = self.verdicts_on(Question.METHODS)
        return best, {one.other: one for one in found if one.subject == best and one.other != STANDALONE}

    @property
    def detectable_mean_gain(self) -> float:
        """The mean gain that four of five such studies would show; NaN: not tested."""
        return next((one.detectable for one in self.verdicts_on(Question.MEAN_GAIN)), math.nan)

    @property
    def failures_verdict(self) -> Verdict | None:
        """The verdict on fewer failures than with local training; None: no patient failed with only one of the two."""
        return next(iter(self.verdicts_on(Question.FAILURES)), None)

    @property
    def methods(self) -> list[str]:
        """The labels of the trainings, in the order of the runs."""
        return [one.label for one in self.trainings]


def surface_columns(table: pd.DataFrame) -> dict[str, pd.Series]:
    """Return HD95 and NSD of a table of tested sites in the units shown, by heading."""
    return {HEADINGS[name]: table[name] * UNITS.get(name, 1.0) for name in SURFACES if name in table}
