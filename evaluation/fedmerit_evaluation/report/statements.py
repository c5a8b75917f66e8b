"""The sentences of a report on gains, contributions and Dice, as pure functions of numbers.

When a difference is called significant: `fedmerit_evaluation.statistics.inference`. Numbers are fractions as there.
"""

from collections.abc import Mapping, Sequence
from math import isnan

from fedmerit_evaluation.report.contribution_statements import find_ends
from fedmerit_evaluation.report.phrases import interval, join_words, percent, points
from fedmerit_evaluation.statistics import inference
from fedmerit_evaluation.statistics.inference import Comparison, Estimate, SampleSize

COUNTED = {  # what follows a number of hospitals
    Comparison.EQUIVALENT: f"equivalent within {100 * inference.MARGIN:g} points",
    Comparison.TIE: "without significant difference",
    Comparison.UNJUDGED: "with too few cases or seeds",
    Comparison.UNKNOWN: "with unknown gain",
}


def describe_benefit(mean_gain: Estimate, sample: SampleSize) -> str:
    """The first line of a report: whether federated training helped.

    Args:
        mean_gain: in test Dice over local training, mean over hospitals; a mean of NaN: not known.
        sample: behind it, over all hospitals.
    """
    if isnan(mean_gain.mean):
        return "Whether federated training helped is not known: there is no local training to compare with."
    ends = f" [95 % CI {interval(mean_gain)}]" if mean_gain.has_interval else ""
    gain = f"mean gain {points(mean_gain.mean)} points of Dice over local training{ends}"
    if sample.insufficient_data:
        return f"Federated training: unclear, {sample.insufficient_data}; {gain}."
    word = {1: "helped", 0: "unclear", -1: "did not help"}[mean_gain.compare(0)]
    if word == "unclear" and sample.folds and _excludes_0(mean_gain):
        return f"Federated training: unclear, since folds share training patients; {gain}."
    return f"Federated training{':' if word == 'unclear' else ''} {word}: {gain}."


def describe_gain(gain: Estimate, sample: SampleSize, *, tested: bool, has_local: bool, ambiguous: bool = False) -> str:
    """One hospital's gain in a sentence.

    Args:
        gain: in test Dice over local training.
        sample: behind it.
        tested: whether the hospital has test Dice of federated training.
        has_local: whether it has test Dice of local training.
        ambiguous: whether it has none since runs of standalone have several settings, none of them the method's.
    """
    found = inference.compare_training(gain, sample)
    if found is Comparison.UNKNOWN:
        lacking = "runs of standalone that differ; report with one of them" if ambiguous else "no run of standalone"
        missing = (
            "no test Dice" if not tested else lacking if not has_local else "no seed in common, on the same test cases"
        )
        return f"Gain not known: {missing}."
    text = sample.insufficient_data if found is Comparison.UNJUDGED else found
    if found is Comparison.TIE and _excludes_0(gain):
        folds = " and for training patients that folds share" if sample.folds else ""
        text = f"{found} (p is corrected for all hospitals{folds})"  # CIs are not
    return f"{text[0].upper()}{text[1:]}."


def describe_hospitals(found: Mapping[str, Comparison], method: str) -> str:
    """How many hospitals gained or lost significantly, in one sentence.

    Args:
        found: by hospital.
        method: of the federated training.
    """
    sites = {one: [site for site, this in found.items() if this is one] for one in Comparison}
    if len(sites[Comparison.UNKNOWN]) == len(found):
        return f"Gain of the hospitals with {method}: not known."
    parts = [f"{len(names)} {COUNTED.get(one, one)} ({', '.join(names)})" for one, names in sites.items() if names]
    lacking = sites[Comparison.WORSE] or sites[Comparison.UNJUDGED] or sites[Comparison.UNKNOWN]
    if sites[Comparison.BETTER] and not lacking:
        parts.insert(1, "none better with local training")
    return f"Of {len(found)} hospitals, method {method}: {'; '.join(parts)}."


def describe_methods(means: Mapping[str, float], worst: Mapping[str, float], spread: Mapping[str, float]) -> str:
    """Which of several methods has the highest mean, the best worst-case, the lowest dispersion."""
    best, best_worst_case = inference.find_highest(means), inference.find_highest(worst)
    text = (
        f"Of {len(means)} methods, {join_words(best)} {'has' if len(best) == 1 else 'have'} the highest mean test Dice "
        f"({percent(means[best[0]])}), {join_words(best_worst_case)} the highest Dice at the worst-served hospital "
        f"({percent(worst[best_worst_case[0]])})"
    )
    if known := {method: -value for method, value in spread.items() if not isnan(value)}:
        lowest = inference.find_highest(known)
        text += (
            f", and {join_words(lowest)} the smallest spread between hospitals (standard deviation "
            f"{-100 * known[lowest[0]]:.1f} points, at a mean of {join_words([percent(means[one]) for one in lowest])})"
        )
    return f"{text}."


def describe_lead(best: str, leads: Mapping[str, Estimate], sample: SampleSize) -> str:
    """Whether the method with the highest mean Dice is significantly better than the others.

    Args:
        best: the method.
        leads: its lead in Dice over every other, corrected for all pairs; also over those with few seeds in common.
        sample: the fewest cases of any hospital, and seeds.
    """
    if sample.insufficient_data:
        return f"Which method is best: {sample.insufficient_data}."
    how = "5 %, paired by case and seed, corrected for all pairs of methods"
    close = [method for method, lead in leads.items() if lead.compare(0) < 1]
    if not close:
        return f"{best} is significantly better than every other method ({how})."
    alike = [method for method in close if leads[method].is_equivalent]
    within = f"; equivalent within {100 * inference.MARGIN:g} points of Dice: {join_words(alike)}" if alike else ""
    return f"{best} is not significantly better than {join_words(close)} ({how}){within}."


def describe_gains(gains: Mapping[str, Estimate], sample: SampleSize) -> str:
    """What a hospital gained over local training with each method: what follows its name in a sentence.

    Args:
        gains: by method, p corrected for the hospitals, here also for the methods.
        sample: behind them.
    """
    gains = {method: gain.of_several(len(gains)) for method, gain in gains.items()}
    judged = not sample.insufficient_data
    end = "" if judged else f": {sample.insufficient_data}"
    if len(gains) == 1:
        ((_, gain),) = gains.items()
        verb = "gained" if gain.mean >= 0 else "lost"
        ends = f" [95 % CI {interval(gain)}]" if gain.has_interval else ""
        return f"{verb} {points(gain.mean)} points of Dice{ends} over local training{end}."
    won = [gain for gain in gains.values() if gain.mean >= 0]
    lost = {method: gain for method, gain in gains.items() if gain.mean < 0}
    parts = []
    if won:
        parts.append(f"gained with {len(won)} of {len(gains)} methods{_count_significant(won, 1, judged)}")
    if lost:
        _, worst = find_ends({method: gain.mean for method, gain in lost.items()})
        parts.append(
            f"lost with {len(lost)}{_count_significant(list(lost.values()), -1, judged)}, most with "
            f"{join_words(worst)} ({points(lost[worst[0]].mean)} points)"
        )
    return f"{' and '.join(parts)}, compared with local training{end}."


def _excludes_0(gain: Estimate) -> bool:
    return gain.low > 0 or gain.high < 0


def _count_significant(gains: Sequence[Estimate], sign: int, judged: bool) -> str:
    """How many of the changes are significant; "" if that is not to be said."""
    return f" ({sum(gain.compare(0) == sign for gain in gains) or 'none'} significantly)" if judged else ""
