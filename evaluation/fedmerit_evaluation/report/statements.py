"""The sentences of a report's summary on gains, contributions and Dice, as pure functions of numbers.

What they may say of these, and when nothing, is in `fedmerit_evaluation.statistics.inference`; numbers are fractions
as there.
"""

from collections.abc import Mapping, Sequence
from math import isnan

from fedmerit_evaluation.report.phrases import between, correlation, join_words, percent, points
from fedmerit_evaluation.statistics.inference import (
    MIN_CASES,
    MIN_SEEDS,
    SIGNIFICANCE_LEVEL,
    Comparison,
    Estimate,
    SampleSize,
    highest,
    verdict,
)

AS_SHOWN = 3  # decimals of a fraction: what a reader sees as the same percentage is not told apart
AGREES = {  # whether an estimate ranks hospitals as their values do, by where the interval of the correlation lies
    1: "They agree beyond what cases, seeds and so few hospitals leave to chance.",
    0: "That they agree is not shown, so no payment should rest on the estimate.",
    -1: "They disagree, so no payment should rest on the estimate.",
}


def describe_gain(gain: Estimate, grounds: SampleSize, *, tested: bool, alone: bool, differing: bool = False) -> str:
    """A hospital's gain in a sentence.

    Args:
        gain: over training alone.
        grounds: of it.
        tested: whether the hospital's test Dice together is known.
        alone: whether its test Dice alone is known.
        differing: whether it is not, as runs of standalone have several settings, and not one the method's.
    """
    found = verdict(gain, grounds)
    if found is Comparison.UNKNOWN:
        lacking = "runs of standalone that differ; report with one of them" if differing else "no run of standalone"
        missing = (
            "no test Dice" if not tested else lacking if not alone else "no seed in common, on the same test cases"
        )
        return f"Gain not known: {missing}."
    if found is Comparison.UNJUDGED:
        return f"{_capital(grounds.insufficient_data)}."
    if found is Comparison.TIE:
        return "Alone or together: no difference that can be told."
    return f"{_capital(found)}."


def describe_share(share: Estimate, equal: float, seeds: int) -> str:
    """A hospital's share of what all contributed, in a sentence; nothing where no method says.

    Args:
        share: with its interval over seeds.
        equal: what each would have if all gave the same.
        seeds: that it rests on.
    """
    if isnan(share.mean):
        return ""
    if seeds < MIN_SEEDS:
        return "One seed: its share may be chance."
    shown = Estimate(*(round(one, AS_SHOWN) for one in (share.mean, share.low, share.high)))
    place = {1: "Gave more than", -1: "Gave less than", 0: "Cannot be told from"}
    return f"{place[shown.against(round(equal, AS_SHOWN))]} an equal share."


def describe_benefit(found: Mapping[str, Comparison], method: str) -> str:
    """How many hospitals are better off, in one sentence.

    Args:
        found: by hospital.
        method: that trains together.
    """
    places = {one: [site for site, this in found.items() if this is one] for one in Comparison}
    told = [
        f"{len(sites)} {_is(sites)} {one} ({', '.join(sites)})"
        for one, sites in places.items()
        if sites and one in (Comparison.BETTER, Comparison.WORSE)
    ]
    if told and not (places[Comparison.WORSE] or places[Comparison.UNJUDGED] or places[Comparison.UNKNOWN]):
        told.append("none is better alone")
    if sites := places[Comparison.TIE]:
        told.append(f"of {', '.join(sites)} no difference can be told")
    if sites := places[Comparison.UNJUDGED]:
        told.append(f"{', '.join(sites)} cannot be judged by so few cases or seeds")
    if sites := places[Comparison.UNKNOWN]:
        if len(sites) == len(found):
            return f"Whether the hospitals are better together by {method} than alone is not known."
        told.append(f"of {', '.join(sites)} it is not known")
    return f"Of {len(found)} hospitals that train together by {method}, {join_words(told)}."


def describe_largest_share(shares: Mapping[str, Estimate], seeds: int) -> str:
    """Who contributed most and least by the method's own estimate; nothing where it makes none.

    Args:
        shares: by hospital, with their intervals over seeds.
        seeds: that they rest on.
    """
    known = {site: share for site, share in shares.items() if not isnan(share.mean)}
    if len(known) < 2:
        return ""
    most, least = _ends({site: share.mean for site, share in known.items()})
    if len(most) == len(known):
        return f"By the method's own estimate all contributed alike, {percent(1 / len(known))} of all each."
    text = (
        f"By the method's own estimate {join_words(most)} contributed most ({percent(known[most[0]].mean)} of all"
        f"{_each(most)}) and {join_words(least)} least ({percent(known[least[0]].mean)}{_each(least)}); an equal "
        f"share is "
        f"{percent(1 / len(known))}"
    )
    if chance := _perhaps("the order", seeds):
        return f"{text}. {chance}"
    if not all(known[site].has_interval for site in (*most, *least)):
        return f"{text}. Their intervals over seeds are not known, so neither is whether they can be told apart."
    if min(known[site].low for site in most) > max(known[site].high for site in least):
        return f"{text}. Their intervals over {seeds} seeds lie apart."
    return f"{text}. Their intervals over {seeds} seeds overlap: that they differ is not shown."


def describe_values(values: Mapping[str, float], truth: str, seeds: int, cases: int) -> str:
    """Whose absence costs most, by a ground truth; nothing where it says nothing of two hospitals.

    Args:
        values: by hospital, fractions of Dice.
        truth: what the values are.
        seeds: that they rest on.
        cases: test cases of the hospital that has the fewest, of any seed; 0: not known.
    """
    known = {site: value for site, value in values.items() if not isnan(value)}
    if len(known) < 2:
        return ""
    most, least = _ends(known)
    if len(most) == len(known):
        return f"By {truth} values all are worth alike to all ({points(known[most[0]])} points of mean Dice)."
    text = (
        f"By {truth} values {join_words(most)} {_is(most)} worth most to all ({points(known[most[0]])} points of mean "
        f"Dice"
        f"{_each(most)}) and {join_words(least)} least ({points(known[least[0]])}{_each(least)})"
    )
    return f"{text}. {_perhaps('the order', seeds, cases)}".rstrip()


def describe_agreement(ranks: Estimate, p: float, truth: str, seeds: int, cases: int) -> str:
    """Whether a method's estimate ranks the hospitals as a ground truth does; nothing where that is undefined.

    The interval holds the hospitals fixed: of few, half of all orders at random lie above 0 by it. So p counts, too.

    Args:
        ranks: Spearman's correlation of the two, -1 to 1, with its interval over cases and seeds.
        p: of it, by permuting the hospitals, 0 to 1.
        truth: what the values are.
        seeds: that it rests on.
        cases: test cases of the hospital that has the fewest, of any seed; 0: not known.
    """
    if isnan(ranks.mean):
        return ""
    inside = "" if isnan(ranks.low) else f" [{correlation(ranks.low)}, {correlation(ranks.high)}]"
    text = (
        f"The method's estimate and {truth} values rank the hospitals with a correlation of "
        f"{correlation(ranks.mean)}{inside}"
    )
    return f"{text}. {_perhaps('it', seeds, cases) or AGREES[ranks.against(0) if p <= SIGNIFICANCE_LEVEL else 0]}"


def describe_methods(means: Mapping[str, float], worst: Mapping[str, float], spread: Mapping[str, float]) -> str:
    """Which of several methods is highest in the mean, which for the worst-served, which serves most alike."""
    best, kindest = highest(means), highest(worst)
    text = (
        f"Of {len(means)} methods, {join_words(best)} {_has(best)} the highest mean test Dice "
        f"({percent(means[best[0]])}), "
        f"{join_words(kindest)} the highest at {'its' if len(kindest) == 1 else 'their'} worst-served hospital "
        f"({percent(worst[kindest[0]])})"
    )
    if known := {method: -value for method, value in spread.items() if not isnan(value)}:
        evenest = highest(known)
        text += (
            f", and {join_words(evenest)} {'serves' if len(evenest) == 1 else 'serve'} the hospitals most alike "
            f"(standard "
            f"deviation {-100 * known[evenest[0]]:.1f} points, at a mean of "
            f"{join_words([percent(means[one]) for one in evenest])})"
        )
    return f"{text}."


def describe_lead(best: str, close: Sequence[str], grounds: SampleSize, level: float) -> str:
    """Whether the method with the highest mean Dice can be told from the others.

    Args:
        best: the method.
        close: the methods above which it is not by an interval beyond 0: it holds 0, lies below, or there is none, as
            where methods have few seeds in common.
        grounds: the fewest cases of any hospital, and seeds.
        level: of the intervals, 0 to 1.
    """
    if grounds.insufficient_data:
        return f"Which method is best: {grounds.insufficient_data}."
    if close:
        return (
            f"{best} is not distinguishable from {join_words(close)}: no {100 * level:g} % interval of the "
            f"differences, "
            "case by case and over common seeds, lies above 0."
        )
    return f"The {100 * level:g} % intervals of what {best} is above each other method leave out 0."


def describe_gains(gains: Mapping[str, Estimate], grounds: SampleSize) -> str:
    """What a hospital gained against training alone, over all methods: what follows its name in a sentence.

    Args:
        gains: by method.
        grounds: of them.
    """
    judged = not grounds.insufficient_data
    end = "" if judged else f": {grounds.insufficient_data}"
    if len(gains) == 1:
        ((_, gain),) = gains.items()
        verb = "gained" if gain.mean >= 0 else "lost"
        inside = f" ({between(gain.low, gain.high)})" if not isnan(gain.low) else ""
        return f"{verb} {points(gain.mean)} points of Dice{inside} against training alone{end}."
    won = [gain for gain in gains.values() if gain.mean >= 0]
    lost = {method: gain for method, gain in gains.items() if gain.mean < 0}
    parts = []
    if won:
        parts.append(f"gained under {len(won)} of {len(gains)} methods{_sure(won, 1, judged)}")
    if lost:
        _, worst = _ends({method: gain.mean for method, gain in lost.items()})
        parts.append(
            f"lost under {len(lost)}{_sure(list(lost.values()), -1, judged)}, most under {join_words(worst)} "
            f"({points(lost[worst[0]].mean)} points)"
        )
    return f"{' and '.join(parts)}, against training alone{end}."


def describe_dice(dice: Mapping[str, float]) -> str:
    """What a method reaches and where: a part of a sentence; ``dice`` by hospital, those that are known."""
    most, least = _ends(dice)
    text = f"the mean test Dice is {percent(sum(dice.values()) / len(dice))}"
    if len(most) == len(dice):
        return f"{text}, the same at all" if len(dice) > 1 else text
    return (
        f"{text}, highest at {join_words(most)} ({percent(dice[most[0]])}) and lowest at {join_words(least)} "
        f"({percent(dice[least[0]])})"
    )


def describe_participation(gains: Mapping[str, Estimate], grounds: SampleSize) -> str:
    """What taking part in one method changed against training alone: a part of a sentence.

    Args:
        gains: by hospital; at least one is known.
        grounds: the fewest cases of any of them, and seeds.
    """
    unknown = [site for site, gain in gains.items() if isnan(gain.mean)]
    gains = {site: gain for site, gain in gains.items() if site not in unknown}
    mean = sum(gain.mean for gain in gains.values()) / len(gains)
    text = f"taking part changes Dice by {points(mean)} points on average against training alone"
    if grounds.insufficient_data:
        return f"{text} ({grounds.insufficient_data})"
    worse = [f"{site} ({points(gain.mean)})" for site, gain in gains.items() if gain.against(0) < 0]
    parts = [f"{join_words(worse)} would do better alone"] if worse else []
    less = {site: gain for site, gain in gains.items() if gain.mean < 0 <= gain.against(0)}
    for by, known in (("by an interval that holds 0", True), ("by an interval that is not known", False)):
        told = [f"{site} ({points(gain.mean)})" for site, gain in less.items() if gain.has_interval == known]
        parts += [f"{join_words(told)} {_has(told)} less than alone {by}"] if told else []
    if unknown:
        parts.append(f"of {join_words(unknown)} it is not known")
    return f"{text}, and {join_words(parts) if parts else 'no site has less than alone'}"


def describe_weights(weights: Mapping[str, float]) -> str:
    """Who has the largest and the smallest weight in the end, likewise: ``weights`` by hospital, if known."""
    most, least = _ends(weights)
    largest, smallest = weights[most[0]], weights[least[0]]
    if len(most) == len(weights):
        return f"all sites ended with the weight {percent(largest)}"
    return (
        f"the largest weight in the end is that of {join_words(most)}, {percent(largest)}, and the smallest that of "
        f"{join_words(least)}, {percent(smallest)} (an equal share is {percent(1 / len(weights))})"
    )


def describe_estimate(contributions: Mapping[str, float]) -> str:
    """Who contributed most by a method's own estimate, likewise; nothing where all contributed alike."""
    most = highest(contributions)
    if len(most) == len(contributions):
        return ""
    text = f"by the method's own estimate {join_words(most)} contributed most"
    below = [site for site, value in contributions.items() if value < 0]
    return f"{text}, and the estimate is negative for {join_words(below)}" if below else text


def describe_rank_stability(ranges: Sequence[tuple[int, int]]) -> str:
    """Whether hospitals rank alike by contribution in every seed: best and worst rank of each, of several seeds."""
    if all(best == worst for best, worst in ranges):
        return "the sites rank alike by contribution in every seed"
    return "the ranking by contribution changes with the seed, so no payment should rest on it"


def _perhaps(what: str, seeds: int, cases: int = 0) -> str:
    """Why something may be chance, in a sentence; nothing where neither seeds nor cases, if known, are too few."""
    if seeds < MIN_SEEDS:
        return f"This is one seed: {what} may be chance."
    if 0 < cases < MIN_CASES:
        return f"With {cases} test {'case' if cases == 1 else 'cases'} at a hospital {what} may be chance."
    return ""


def _sure(gains: Sequence[Estimate], sign: int, judged: bool) -> str:
    """How many of the changes have an interval that leaves out 0; nothing where that is not to be said."""
    if not judged:
        return ""
    return f" ({sum(gain.against(0) == sign for gain in gains) or 'none'} with an interval that leaves out 0)"


def _ends(numbers: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """Who has the largest number, and who the smallest; several, where they tie."""
    return highest(numbers), highest({name: -number for name, number in numbers.items()})


def _each(names: Sequence[str]) -> str:
    return " each" if len(names) > 1 else ""


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"
