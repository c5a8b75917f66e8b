"""The sentences of a report on contributions, values and payment, as pure functions of numbers (see `statements`)."""

from collections.abc import Mapping, Sequence
from math import isnan

from fedmerit_evaluation.report.phrases import correlation, join_words, percent, points
from fedmerit_evaluation.statistics.inference import MIN_CASES, MIN_SEEDS, SIGNIFICANCE_LEVEL, Estimate, find_highest
from fedmerit_evaluation.statistics.ranks import Ranking

SHOWN_DECIMALS = 3  # of a fraction: shares that read as the same percentage do not differ
AGREEMENT = {  # by the sign of the correlation, if it is significant
    1: "Significant agreement: the CI excludes 0 and p is at most 0.05.",
    0: "No significant agreement, so no payment should rest on the estimate.",
    -1: "Significant disagreement, so no payment should rest on the estimate.",
}


def describe_payment(
    *, has_estimate: bool, seeds: int, agreements: Mapping[str, tuple[int, str]], has_order: bool
) -> str:
    """The second line: whether the evidence supports payment by the method's estimate, and why not.

    Args:
        has_estimate: whether the method estimates contributions; shares of images are no estimate.
        seeds: that the estimate rests on.
        agreements: by ground truth: as `find_agreement`, and why it may be chance.
        has_order: whether any two hospitals differ significantly in their contributions.
    """
    reasons = []
    if not has_estimate:
        reasons.append("the method makes no estimate of contributions")
    else:
        if seeds < MIN_SEEDS:
            reasons.append("one seed does not show what is chance")
        elif not has_order:
            reasons.append("no two hospitals differ significantly by the estimate")
        if not agreements:
            reasons.append("the estimate was not compared with a ground truth (retraining without each hospital)")
        for name, (sign, chance) in agreements.items():
            if chance:
                reasons.append(f"its agreement with {name} values may be chance")
            elif sign < 1:
                reasons.append(f"it {'does not agree significantly' if not sign else 'disagrees'} with {name} values")
    if reasons:
        return f"Payment: not supported, because {join_words(reasons)}."
    return (
        "Payment: no objection found: the estimate agrees significantly with the ground truth. Hospitals that do not "
        "differ significantly should be paid alike. It is not a price."
    )


def describe_share(share: Estimate, equal: float, seeds: int) -> str:
    """One hospital's share of the contributions in a sentence; "" if the method makes no estimate.

    Args:
        share: with its CI over seeds.
        equal: the share of each if all contributed the same.
        seeds: that it rests on.
    """
    if isnan(share.mean):
        return ""
    if seeds < MIN_SEEDS:
        return "One seed: the share may be chance."
    mean, low, high = (round(one, SHOWN_DECIMALS) for one in (share.mean, share.low, share.high))
    shown = Estimate(mean, low, high, share.p)
    words = {1: "Significantly more than", -1: "Significantly less than", 0: "Not significantly different from"}
    equal = round(equal, SHOWN_DECIMALS)
    outside = equal < low or high < equal  # of a CI, which is not corrected
    corrected = " (p is corrected for all hospitals)" if outside and not shown.compare(equal) else ""
    return f"{words[shown.compare(equal)]} an equal share{corrected}."


def describe_largest_share(
    shares: Mapping[str, Estimate],
    seeds: int,
    order: Ranking | None,
    *,
    of_images: bool = False,
    has_folds: bool = False,
) -> str:
    """Which hospitals have the largest and the smallest share; "" if the method makes no estimate.

    Args:
        shares: by hospital, with their CIs over seeds.
        seeds: that they rest on.
        order: of the contributions; None: not known.
        of_images: whether the method counts images and estimates nothing.
        has_folds: whether ``seeds`` are folds.
    """
    known = {site: share for site, share in shares.items() if not isnan(share.mean)}
    if len(known) < 2:
        return ""
    most, least = find_ends({site: share.mean for site, share in known.items()})
    what = "Share of images" if of_images else "Estimated contribution"
    if len(most) == len(known):
        return f"{what}: the same for all hospitals, {percent(1 / len(known))} each."
    text = (
        f"{what}: largest for {join_words(most)} ({percent(known[most[0]].mean)}{_each(most)}), smallest for "
        f"{join_words(least)} ({percent(known[least[0]].mean)}{_each(least)}); an equal share is "
        f"{percent(1 / len(known))}"
    )
    if of_images:
        return f"{text}. The method weighs by images and makes no estimate of contributions."
    if chance := describe_chance("the order", seeds):
        return f"{text}. {chance}"
    over = f"Over {seeds} folds." if has_folds else f"Over {seeds} seeds, for these patients and this split."
    return f"{text}. {_describe_difference(order, most, least)} {over}"


def describe_values(values: Mapping[str, float], reference: str, order: Ranking | None) -> str:
    """Which hospitals have the highest and the lowest value by a ground truth; "" if fewer than two are known.

    Args:
        values: by hospital, fractions of Dice.
        reference: what the values are: leave-one-out or Shapley.
        order: of the values; None: they come from sampled permutations, whose error no interval includes.
    """
    known = {site: value for site, value in values.items() if not isnan(value)}
    if len(known) < 2:
        return ""
    most, least = find_ends(known)
    what = f"{reference[0].upper()}{reference[1:]} values (retrained)"
    if len(most) == len(known):
        return f"{what}: the same for all hospitals ({points(known[most[0]])} points of mean Dice)."
    text = (
        f"{what}: highest for {join_words(most)} ({points(known[most[0]])} points of mean Dice{_each(most)}), lowest "
        f"for {join_words(least)} ({points(known[least[0]])}{_each(least)})"
    )
    return f"{text}. {_describe_difference(order, most, least)}"


def _describe_difference(order: Ranking | None, most: Sequence[str], least: Sequence[str]) -> str:
    """Whether the highest and the lowest differ significantly."""
    if order is None:
        return "Whether they differ significantly is not known."
    if order.insufficient_data:
        return f"No difference is called significant: {order.insufficient_data}."
    differ = all(order.differ(one, other) for one in most for other in least)
    return f"They {'differ significantly' if differ else 'are not significantly different'}."


def find_agreement(ranks: Estimate, p: float) -> int:
    """1 or -1: an estimate agrees or disagrees significantly with a ground truth; 0: neither.

    Both have to hold: the CI over cases and seeds, with the hospitals fixed, excludes 0; and p, by permuting the
    hospitals, is at most `SIGNIFICANCE_LEVEL`. Of few hospitals, half of all random orders pass the first.
    """
    return ranks.compare(0) if p <= SIGNIFICANCE_LEVEL else 0


def describe_agreement(ranks: Estimate, p: float, reference: str, seeds: int, patients: int) -> str:
    """Whether a method's estimate ranks the hospitals as a ground truth does; "" if that is undefined.

    Args:
        ranks: Spearman's correlation of the two, -1 to 1, with its CI over cases and seeds.
        p: of it, by permuting the hospitals, 0 to 1.
        reference: what the values are.
        seeds: that it rests on.
        patients: test patients of the hospital with the fewest, of any seed; 0: not known.
    """
    if isnan(ranks.mean):
        return ""
    ends = "" if isnan(ranks.low) else f" [95 % CI {correlation(ranks.low)}, {correlation(ranks.high)}]"
    text = f"Spearman correlation of the method's estimate with {reference} values: {correlation(ranks.mean)}{ends}"
    text += "" if isnan(p) else f", permutation p = {p:.2g}"
    return f"{text}. {describe_chance('it', seeds, patients) or AGREEMENT[find_agreement(ranks, p)]}"


def describe_chance(what: str, seeds: int, patients: int = 0) -> str:
    """Why something may be chance, in a sentence; "" if there are enough seeds and, if known, patients."""
    if seeds < MIN_SEEDS:
        return f"One seed: {what} may be chance."
    if 0 < patients < MIN_CASES:
        return f"With {patients} test {'patient' if patients == 1 else 'patients'} at a hospital {what} may be chance."
    return ""


def find_ends(numbers: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """The names with the largest and with the smallest number; several if they tie."""
    return find_highest(numbers), find_highest({name: -number for name, number in numbers.items()})


def _each(names: Sequence[str]) -> str:
    return " each" if len(names) > 1 else ""
