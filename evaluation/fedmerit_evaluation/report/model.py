"""The model of a report: all that its page shows, in numbers and codes. Sentences, tables and figures are made of it.

Frames have the label of a training as ``method`` and a hospital as ``site``; Dice, gains and shares are fractions.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from fedmerit.evidence.closing_record import OBSERVED
from fedmerit_evaluation.figures.tables import HEADINGS, UNITS
from fedmerit_evaluation.report.agreement import Agreement, compare_with_ground_truth
from fedmerit_evaluation.report.flags import Flag, Flags, GuardVerdict, collect_flags
from fedmerit_evaluation.report.limits import Limit, list_limits
from fedmerit_evaluation.report.repeated_steps import list_repeated_steps
from fedmerit_evaluation.report.spent_privacy import list_spent_privacy
from fedmerit_evaluation.report.verdicts import (
    CHANCE,
    FAILURE,
    ONE_SPLIT,
    collect_verdicts,
    contribution_shares,
    sample_size,
)
from fedmerit_evaluation.results.runs import Run, combine_results, has_same_training
from fedmerit_evaluation.results.views import OWN, POOLED, RUN, STANDALONE, SURFACES, Dice, Results
from fedmerit_evaluation.statistics.family import Question, Verdict
from fedmerit_evaluation.statistics.inference import MIN_SEEDS, Comparison, Estimate, SampleSize, compare_training
from fedmerit_evaluation.statistics.intervals import estimates, select_methods, select_sites, sort_by_mean
from fedmerit_evaluation.statistics.ranks import Ranking
from fedmerit_evaluation.valuation.valued_runs import default_estimators, units, value_runs

KINDS = {STANDALONE: "local", POOLED: "pooled"}  # of training, by method; others are federated
QUANTITIES = ("weight", "contribution", "reputation")  # recorded round by round
SAME = 1e-6  # shares that differ by less, relative to the largest, are the same
SHARE_DECIMALS = 3  # of a fraction: shares that read as the same percentage do not differ
DRAWS = 200  # for the values of observed runs
SHOWN_ELSEWHERE = ("contribution", "data_size")  # estimators
BEST = "testing_best"  # the split of the round with the best validation Dice
RECEIVED = {"Received": "given", "Local": "local_only", "Final": "selected"}  # by the ends of the splits' names
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
    reference: str = ""  # the ground truth that it is about


@dataclass(frozen=True)
class Payment:
    """A judgement of whether the evidence supports payment by the method's estimate."""

    conditions: tuple[Condition, ...]  # that are not met

    @property
    def state(self) -> str:
        """The state of the judgement: ``no`` or ``supported``."""
        return "no" if self.conditions else "supported"


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
    payment: Payment
    sample: SampleSize  # behind comparisons of methods
    flags: Flags
    settings: tuple[tuple[str, Mapping[str, Any]], ...]  # by label: the settings of each run
    verdicts: Sequence[Verdict] = ()  # all that the report judges, one family; sentences and tables take theirs here
    failure: float = FAILURE  # Dice of a patient below which the segmentation has failed
    failures: pd.DataFrame = field(
        default_factory=pd.DataFrame
    )  # (method, site) x failed, patients, low, high: patients that failed, with the CI of their part
    repeated_steps: pd.DataFrame = field(default_factory=pd.DataFrame)  # as of `list_repeated_steps`
    spent_privacy: pd.DataFrame = field(default_factory=pd.DataFrame)  # as of `list_spent_privacy`
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
    rejected_sites: Sequence[str] = ()  # whose reply was missing or rejected in any round
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


def build_model(runs: Sequence[Run], ground_truth: Path | None = None, failure: float = FAILURE) -> ReportModel:
    """Return the model of a report on all hospitals.

    Args:
        runs: opened runs, on the same task and sites, labelled by `align_local_only`.
        ground_truth: folder of `fedmerit value leave-one-out` or `fedmerit value shapley`, on the same sites.
        failure: the Dice of a patient below which the segmentation counts as failed.

    Raises:
        BadInput: the ground truth is not of these runs.
    """
    honest = honest_runs(runs)
    everything = combine_results(runs)
    results = everything if len(honest) == len(runs) else combine_results(honest)
    return model_of_results(runs, results, everything, ground_truth, failure)


def model_of_results(
    runs: Sequence[Run],
    results: Results,
    everything: Results,
    ground_truth: Path | None = None,
    failure: float = FAILURE,
) -> ReportModel:
    """Return the model of a report on all hospitals from combined results.

    Args:
        runs: as of `build_model`.
        results: the results of runs without simulated attacks: Dice and verdicts are of these.
        everything: the results of all runs: rounds, flags and costs are of these.
        ground_truth: as of `build_model`.
        failure: as of `build_model`.

    Raises:
        BadInput: the ground truth is not of these runs.
    """
    honest, dice, rounds = honest_runs(runs), results.dice, everything.rounds
    agreements, ground_limits = (
        ([], []) if ground_truth is None else compare_with_ground_truth(honest, results, ground_truth)
    )
    primary = choose_method(honest, results)
    by_images = methods_by_image_count(runs)
    found, (notes, limits) = collect_flags(runs), list_limits(runs, honest, results)
    verdicts = collect_verdicts(results, primary, agreements, failure)
    hospitals = list_hospitals(honest, results, primary, agreements, found, verdicts) if primary else []
    mean_gains = [one.estimate for one in verdicts if one.question == Question.MEAN_GAIN]
    is_tested = not dice.rows.empty
    model = ReportModel(
        site="",
        study=_study(runs, results),
        number_of_sites=len(runs[0].sites),
        trainings=tuple(_trainings(runs, primary)),
        hospitals=tuple(hospitals),
        primary=primary,
        is_ambiguous=has_ambiguous_baseline(honest),
        counts_images=primary in by_images,
        payment=Payment(()),
        sample=sample_size(results),
        verdicts=verdicts,
        failure=failure,
        flags=found,
        repeated_steps=list_repeated_steps(runs),
        spent_privacy=list_spent_privacy(runs),
        settings=tuple((run.label, _settings(run)) for run in runs),
        intervals=dice.intervals,
        cases=dice.cases if is_tested else pd.Series(dtype=float),
        curves=rounds.validation,
        contributions=averaged(rounds.contributions) if not rounds.contributions.empty else NONE,
        costs=averaged(rounds.costs) if not rounds.costs.empty else NONE,
        rounds={name: rounds.of(name) for name in QUANTITIES if not rounds.of(name).isna().all(axis=None)},
        notes=notes,
        limits=[*limits, *(limit for one in agreements for limit in one.limits), *ground_limits],
        mean_gain=next(iter(mean_gains), UNKNOWN),
        sample_of_gain=sample_size(results, methods=[primary or "", STANDALONE]),
        comparison=dice.comparison if is_tested else None,
        ends=select_sites(rounds.intervals, "contribution"),
        cross_site={name: averaged(matrix) for name, matrix in results.union.cross_site.items()} if is_tested else {},
        by_images=by_images,
        best_round=_best_round(results.rows),
        final_models=_final_models(results.rows),
        agreements=agreements,
        observed=_observed_values(runs),
        flagged_sites=_sites_with(results, "flagged"),
        rejected_sites=_sites_with(results, "rejected"),
    )
    if is_tested:
        fewest = dice.sites["patients"].groupby(level=["method", "site"], observed=True).min()
        changes = dice.surface_changes
        model = replace(
            model,
            tested=averaged(dice.sites).assign(fewest_patients=fewest),
            failures=dice.failures(failure),
            all_failures=dice.failures(failure, ["method"]),
            labels=_labels(dice) if dice.labels.shape[1] > 1 else NONE,
            surface_means=_surface_means(dice.sites),
            surface_changes=changes if select_sites(dice.intervals, "gain")["mean"].notna().any() else NONE,
        )
    same = _same_quantities(model.rounds)
    return replace(model, same_quantities=same, payment=_judge_payment(model))


def honest_runs(runs: Sequence[Run]) -> list[Run]:
    """Return the runs without simulated attacks, or all if there is no other."""
    return [run for run in runs if not run.attacks] or list(runs)


def choose_method(runs: Sequence[Run], results: Results) -> str | None:
    """Return the method that a report judges: the first that estimates contributions, else the first federated one.

    Shares of training images are no estimate. None: no run is federated.
    """
    labels = {run.label: str(run.info["method"]) for run in runs}
    federated = [label for label in labels if labels[label] not in KINDS]
    counted = methods_by_image_count(runs)
    estimating = [label for label in federated if label not in counted and label in contribution_shares(results)]
    return next(iter([*estimating, *federated]), None)


def align_local_only(runs: Sequence[Run]) -> list[Run]:
    """Return the runs, those of local training that hospitals are compared with under the plain label of it.

    Of runs of local training with several settings these are the ones with the settings of the report's method; none
    if no run has them, or runs of several labels.
    """
    honest = honest_runs(runs)
    local = {run.label: run for run in honest if run.info["method"] == STANDALONE and not run.attacks}
    if not local or STANDALONE in local:
        return list(runs)
    matching = list(local)
    if len(local) > 1:
        method = choose_method(honest, combine_results(honest))
        chosen = [run for run in honest if run.label == method][:1]
        matching = [label for label, run in local.items() if any(has_same_training(run, other) for other in chosen)]
    return [replace(run, label=STANDALONE) if matching == [run.label] else run for run in runs]


def has_ambiguous_baseline(runs: Sequence[Run]) -> bool:
    """Return whether there are runs of local training among those of `align_local_only`, but none to compare with."""
    labels = {run.label for run in runs if run.info["method"] == STANDALONE and not run.attacks}
    return bool(labels) and STANDALONE not in labels


def list_hospitals(
    runs: Sequence[Run],
    results: Results,
    method: str,
    agreements: Sequence[Agreement],
    flags: Flags,
    verdicts: Sequence[Verdict],
) -> list[Hospital]:
    """Return the hospitals with one method, by name.

    Args:
        runs: runs without simulated attacks.
        results: their results.
        method: the method, as of `choose_method`.
        agreements: agreement with each ground truth, if there is any.
        flags: what was found of the sites.
        verdicts: of `collect_verdicts`.
    """
    dice, sites = results.dice, runs[0].sites
    local = pd.Series(dtype=float)
    if not dice.rows.empty and STANDALONE in dice.by_site.index.get_level_values("method"):
        local = pd.Series(pd.DataFrame(dice.by_site.loc[STANDALONE]).mean())
    federated, gain = (_select_method(select_sites(dice.intervals, name), method) for name in ("dice", "gain"))
    surfaces = _surfaces(results, method)
    shares = contribution_shares(results).get(method, {})
    gain_of, share_of = (
        {one.subject: one for one in verdicts if one.question == of} for of in (Question.GAIN, Question.SHARE)
    )
    gain = {name: replace(one, p=gain_of[name].estimate.p) for name, one in gain.items() if name in gain_of}
    shares = {name: replace(one, p=share_of[name].estimate.p) for name, one in shares.items()}
    hospitals = []
    for site in sites:
        server_flags, of_guard = flags.of(method, site)
        tested = site in federated and not math.isnan(federated[site].mean)
        has_local = not math.isnan(local.get(site, math.nan))
        no_local = "ambiguous" if has_ambiguous_baseline(runs) else "no_local"
        hospitals.append(
            Hospital(
                name=site,
                local=float(local.get(site, math.nan)),
                federated=federated.get(site, UNKNOWN),
                surfaces=surfaces.get(site, {}),
                gain=gain.get(site, UNKNOWN),
                sample=sample_size(results, site, [method, STANDALONE]),
                lacking="untested" if not tested else "no_seed" if has_local else no_local,
                share=shares.get(site, UNKNOWN),
                equal=round(1 / len(sites), SHARE_DECIMALS),
                share_seeds=count_share_seeds(results).get(method, 0),
                counts_images=method in methods_by_image_count(runs),
                values={one.reference: float(one.values[site].mean()) / 100 for one in agreements},
                detectable=gain_of[site].detectable if site in gain_of else math.nan,
                share_untested=share_of[site].insufficient_data if site in share_of else "",
                flags=server_flags,
                verdicts=of_guard,
                needs_review=bool(server_flags) or any(one.lifted is None for one in of_guard),
            )
        )
    return hospitals


def count_share_seeds(results: Results) -> dict[str, int]:
    """Return, by method, the number of seeds of its `contribution_shares`."""
    seeds = results.rounds.share_intervals["seeds"].groupby(level="method").max()
    return {str(method): int(number) for method, number in seeds.items()}


def methods_by_image_count(runs: Sequence[Run]) -> list[str]:
    """Return the labels of the runs whose method declares that its contributions are shares of training images."""
    return list(dict.fromkeys(run.label for run in runs if run.counts_images))


def image_shares(results: Results, quantity: str) -> "pd.Series[bool]":
    """Return whether all positive numbers of a round are the same multiple of the training images.

    The index is ``(method, seed or fold, round)``, without rounds in which only one number is positive (such as the
    one update that Krum takes).
    """
    rounds = results.rounds if results.folds is None else results.rounds.over_folds  # images differ by fold
    images, table = rounds.of("num_samples"), rounds.of(quantity)
    ratio = table.where(table > 0) / images.reindex(table.index)
    ratio = ratio[ratio.notna().sum(axis=1) != 1]
    return pd.Series(ratio.max(axis=1) - ratio.min(axis=1) <= SAME * ratio.max(axis=1))


def averaged(table: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over seeds, ``(method, site)`` x columns; counts stay whole if they are the same in all."""
    mean = table.groupby(level=["method", "site"], observed=True).mean()
    whole = [name for name in table.select_dtypes("integer") if (mean[name] % 1 == 0).all()]
    return mean.astype(dict.fromkeys(whole, int))


def surface_columns(table: pd.DataFrame) -> dict[str, pd.Series]:
    """Return HD95 and NSD of a table of tested sites in the units shown, by heading."""
    return {HEADINGS[name]: table[name] * UNITS.get(name, 1.0) for name in SURFACES if name in table}


def training_days(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the first and the last day on which the runs were started: one if they are the same, () if unknown."""
    days = sorted({str(run.info["started"])[:10] for run in runs if run.info.get("started")})
    return tuple(dict.fromkeys((days[0], days[-1]))) if days else ()


def _study(runs: Sequence[Run], results: Results) -> Study:
    info, is_tested = runs[0].info, not results.dice.rows.empty
    return Study(
        task=str(info["task"]) if "task" in info else "",
        labels=tuple(map(str, info.get("labels", ()))),
        sites=tuple(runs[0].sites),
        runs=len(runs),
        rounds=tuple(dict.fromkeys(run.rounds for run in runs)),
        seeds=tuple(dict.fromkeys(run.seed for run in runs)),
        days=training_days(runs),
        seeds_tested=results.dice.rows["seed"].nunique() if is_tested else 0,
        folds=results.dice.clusters.folds if is_tested else 0,
        repeats=results.repeats,
    )


def _trainings(runs: Sequence[Run], primary: str | None) -> Iterator[Training]:
    for run in {run.label: run for run in runs}.values():
        kind = KINDS.get(str(run.info["method"]), "federated")
        yield Training(run.label, kind, run.label == primary, bool(run.attacks))


def _settings(run: Run) -> dict[str, Any]:
    """Return run.json, each setting once: its configuration repeats all but the network."""
    shown = {name: value for name, value in run.info.items() if name not in ("plan", "settings")}
    return shown | {"network": run.info.get("plan", {}).get("network", {})}


def _judge_payment(model: ReportModel) -> Payment:
    """Return the conditions of payment by the method's estimate that are not met."""
    if model.primary is None:
        return Payment(())
    if model.counts_images or any(math.isnan(one.share.mean) for one in model.hospitals):
        return Payment((Condition("no_estimate"),))
    conditions = []
    if model.share_seeds < MIN_SEEDS:
        conditions.append(Condition("one_seed"))
    elif any(one.share_untested == ONE_SPLIT for one in model.hospitals):
        conditions.append(Condition("one_split"))
    elif not any(one.share_sign for one in model.hospitals):
        conditions.append(Condition("no_order"))
    compared = model.verdicts_on(Question.AGREEMENT)
    if not compared:
        conditions.append(Condition("no_ground_truth"))
    for one in compared:
        if one.insufficient_data == CHANCE:
            conditions.append(Condition("chance", one.other))
        elif one.sign < 1:
            conditions.append(Condition("disagreement" if one.sign else "no_agreement", one.other))
    return Payment(tuple(conditions))


def _labels(dice: Dice) -> pd.DataFrame:
    surfaces = {
        f"{label}, {HEADINGS[name]}": table[label] * UNITS.get(name, 1.0)
        for label in dice.labels
        for name, table in dice.label_surfaces.items()
    }
    return averaged((100 * dice.labels).assign(**surfaces))


def _surfaces(results: Results, method: str) -> dict[str, dict[str, float]]:
    """Return, by site, HD95 and NSD of a method by their headings, means over seeds."""
    if results.dice.rows.empty:
        return {}
    sites = averaged(results.dice.sites)
    own = sites[sites.index.get_level_values("method") == method].droplevel("method")
    table = pd.DataFrame(surface_columns(own)).dropna(axis=1, how="all").T
    return {str(site): {str(name): float(value) for name, value in column.items()} for site, column in table.items()}


def _surface_means(sites: pd.DataFrame) -> pd.DataFrame:
    runs = sites[[name for name in SURFACES if name in sites]].groupby(level=RUN).mean()
    return runs.groupby(level="method").mean()


def _select_method(table: pd.DataFrame, method: str) -> dict[str, Estimate]:
    return estimates(table[table.index.get_level_values("method") == method].droplevel("method"))


def _same_quantities(rounds: Mapping[str, pd.DataFrame]) -> dict[str, list[str]]:
    """Return the recorded quantities of rounds, each with those that are the same numbers."""
    seen: dict[str, list[str]] = {}
    for quantity, table in rounds.items():
        same = [other for other in seen if table.equals(rounds[other])]
        if same:
            seen[same[0]].append(quantity)
        else:
            seen[quantity] = []
    return seen


def _best_round(rows: pd.DataFrame) -> pd.DataFrame:
    """Return means over sites in the last and the best round, a row per run; if they are the same round, it is both."""
    best = _by_site(rows, BEST)
    if best.empty:
        return NONE
    chosen = rows[(rows["split"] == BEST) & (rows["quantity"] == "dice")].groupby(RUN, observed=True)["round"].first()
    last, best = (table.groupby(level=RUN, observed=True).mean() for table in (_by_site(rows, OWN), best))
    both = {"Last round": last, "Best round": best.reindex(last.index).fillna(last)}
    shown = {f"{when}, {name}": table[name] for name in best if name in last for when, table in both.items()}
    return pd.DataFrame(shown | {"Round": chosen.reindex(last.index)})


def _final_models(rows: pd.DataFrame) -> pd.DataFrame:
    """Return Dice and surfaces of the models of final model selection, by heading."""
    tested = {name: _by_site(rows, f"testing_{end}") for name, end in RECEIVED.items()}
    if tested["Final"].empty:
        return NONE
    validated = {name: _by_site(rows, f"validation_{end}") for name, end in RECEIVED.items()}
    dice = HEADINGS["dice"]
    columns = {f"{name}, {dice}": table[dice] for name, table in tested.items() if dice in table}
    columns |= {f"{name}, validation {dice}": table[dice] for name, table in validated.items() if dice in table}
    columns |= {f"{name}, {other}": tested[name][other] for other in tested["Final"] if other != dice
                for name in tested if other in tested[name]}  # fmt: skip
    return pd.DataFrame(columns).groupby(level=["method", "site"], observed=True).mean()


def _by_site(rows: pd.DataFrame, split: str) -> pd.DataFrame:
    """Return ``(method, seed, site)`` x Dice and surfaces by heading: means over cases of means over labels."""
    dice = Dice(rows, split)
    if dice.rows.empty:
        return NONE
    return pd.DataFrame({HEADINGS["dice"]: 100 * dice.sites["dice"], **surface_columns(dice.sites)})


def _observed_values(runs: Sequence[Run]) -> ObservedValues:
    """Return the values of methods whose runs were all observed."""
    rankings, named_units = dict[str, Ranking](), dict[str, str]()
    labels = list(dict.fromkeys(run.label for run in runs))
    for label in labels:
        folders = [run.path for run in runs if run.label == label and run.tested]
        if not folders or not all((folder / OBSERVED).exists() for folder in folders):
            continue
        if specs := [spec for spec in default_estimators(folders) if spec not in SHOWN_ELSEWHERE]:
            valued = value_runs(folders, specs, DRAWS)
            names = {spec: spec if len(labels) == 1 else f"{label}: {spec}" for spec in specs}
            rankings |= {names[spec]: one for spec, one in valued.shown.items()}
            named_units |= {names[spec]: unit for spec, unit in units(valued).items()}
    return ObservedValues(rankings, named_units)


def _sites_with(results: Results, quantity: str) -> list[str]:
    """Return the sites with a positive quantity in any round of any run."""
    is_positive = (results.rows["quantity"] == quantity) & (results.rows["value"] > 0)
    return sorted(map(str, results.rows.loc[is_positive, "site"].unique()))
