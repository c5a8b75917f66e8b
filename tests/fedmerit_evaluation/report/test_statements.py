"""Every sentence on gains, contributions and Dice: too few cases, one seed, a tie, a loss, a missing run."""

import math

import pytest

from fedmerit_evaluation.report import statements
from fedmerit_evaluation.statistics.inference import Comparison, Estimate, SampleSize

MINUS = "\N{MINUS SIGN}"
GAIN, LOSS, TIE = Estimate(0.05, 0.02, 0.08), Estimate(-0.05, -0.08, -0.02), Estimate(0.01, -0.02, 0.04)
NOTHING = Estimate(math.nan)
ENOUGH, FEW, ONE = SampleSize(5, 2), SampleSize(4, 2), SampleSize(5, 1)


@pytest.mark.parametrize(
    ("gain", "sample", "said"),
    [
        (GAIN, ENOUGH, "Better together."),
        (LOSS, ENOUGH, "Better alone."),
        (TIE, ENOUGH, "Alone or together: no difference that can be told."),
        (GAIN, FEW, "Too few test cases (4; at least 5 are needed)."),
        (GAIN, ONE, "Only one seed."),
        (Estimate(0.05), ENOUGH, "Alone or together: no difference that can be told."),
    ],
)
def test_of_a_gain(gain: Estimate, sample: SampleSize, said: str) -> None:
    assert statements.describe_gain(gain, sample, tested=True, alone=True) == said


def test_of_a_gain_that_is_missing() -> None:
    def said(**known: bool) -> str:
        return statements.describe_gain(NOTHING, ENOUGH, **known)

    assert said(tested=True, alone=False) == "Gain not known: no run of standalone."
    differ = "Gain not known: runs of standalone that differ; report with one of them."
    assert said(tested=True, alone=False, differing=True) == differ
    assert said(tested=False, alone=True) == "Gain not known: no test Dice."
    assert said(tested=True, alone=True) == "Gain not known: no seed in common, on the same test cases."


def test_of_a_share() -> None:
    def said(low: float, high: float, seeds: int = 2) -> str:
        return statements.describe_share(Estimate((low + high) / 2, low, high), 0.25, seeds)

    assert said(0.26, 0.30) == "Gave more than an equal share."
    assert said(0.20, 0.24) == "Gave less than an equal share."
    assert said(0.24, 0.26) == "Cannot be told from an equal share."
    assert said(0.26, 0.30, seeds=1) == "One seed: its share may be chance."
    assert statements.describe_share(NOTHING, 0.25, 2) == ""


def test_over_all_hospitals() -> None:
    found = {
        "A": Comparison.BETTER,
        "B": Comparison.BETTER,
        "C": Comparison.TIE,
        "D": Comparison.UNJUDGED,
        "E": Comparison.UNKNOWN,
    }
    assert statements.describe_benefit(found, "fedce") == (
        "Of 5 hospitals that train together by fedce, 2 are better together (A, B), of C no difference can be "
        "told, D cannot be judged by so few cases or seeds and of E it is not known."
    )
    unknown = statements.describe_benefit(dict.fromkeys("AB", Comparison.UNKNOWN), "fedce")
    assert unknown == "Whether the hospitals are better together by fedce than alone is not known."
    judged = statements.describe_benefit({"A": Comparison.BETTER, "B": Comparison.TIE}, "fedce")
    assert judged.endswith("1 is better together (A), none is better alone and of B no difference can be told.")
    lost = statements.describe_benefit({"A": Comparison.BETTER, "B": Comparison.WORSE}, "fedce")
    assert lost.endswith("1 is better together (A) and 1 is better alone (B).")
    assert "better" not in statements.describe_benefit({"A": Comparison.UNJUDGED}, "fedce")


def test_of_who_contributed_most() -> None:
    apart = {"A": Estimate(0.7, 0.65, 0.75), "B": Estimate(0.3, 0.25, 0.35)}
    close = {"A": Estimate(0.55, 0.4, 0.7), "B": Estimate(0.45, 0.3, 0.6)}
    text = statements.describe_largest_share(apart, 2)
    assert text.startswith("By the method's own estimate A contributed most (70.0 % of all) and B least (30.0 %)")
    assert text.endswith("Their intervals over 2 seeds lie apart.")
    assert statements.describe_largest_share(close, 2).endswith("overlap: that they differ is not shown.")
    lacking = apart | {"B": Estimate(0.3)}
    assert statements.describe_largest_share(lacking, 2).endswith(
        "are not known, so neither is whether they can be told apart."
    )
    assert statements.describe_largest_share(apart, 1).endswith("This is one seed: the order may be chance.")
    assert statements.describe_largest_share({"A": NOTHING, "B": NOTHING}, 2) == ""


def test_of_a_ground_truth() -> None:
    values = {"A": 0.031, "B": -0.004}
    text = f"By Shapley values A is worth most to all (+3.1 points of mean Dice) and B least ({MINUS}0.4)."
    assert (
        statements.describe_values(values, "Shapley", 2, 5)
        == statements.describe_values(values, "Shapley", 2, 0)
        == text
    )
    assert statements.describe_values(values, "Shapley", 1, 5) == f"{text} This is one seed: the order may be chance."
    few = statements.describe_values(values, "Shapley", 2, 4)
    assert few == f"{text} With 4 test cases at a hospital the order may be chance."
    assert statements.describe_values(values, "Shapley", 2, 1).endswith(
        "With 1 test case at a hospital the order may be chance."
    )


def test_of_how_an_estimate_agrees_with_a_ground_truth() -> None:
    text = "The method's estimate and Shapley values rank the hospitals with a correlation of"
    agree, open_, against = Estimate(0.8, 0.4, 1.0), Estimate(0.1, -0.3, 0.6), Estimate(-0.6, -1.0, -0.2)
    assert statements.describe_agreement(agree, 0.05, "Shapley", 2, 5) == (
        f"{text} +0.80 [+0.40, +1.00]. They agree beyond what cases, seeds and so few hospitals leave to chance."
    )
    assert statements.describe_agreement(open_, 0.05, "Shapley", 2, 0).endswith(
        f"+0.10 [{MINUS}0.30, +0.60]. That they agree is not shown, so no payment should rest on the estimate."
    )
    assert statements.describe_agreement(against, 0.05, "Shapley", 2, 5).endswith(
        "They disagree, so no payment should rest on the estimate."
    )
    assert statements.describe_agreement(agree, 0.05, "Shapley", 1, 5).endswith(
        "1.00]. This is one seed: it may be chance."
    )
    assert statements.describe_agreement(agree, 0.05, "Shapley", 2, 1).endswith(
        "With 1 test case at a hospital it may be chance."
    )
    assert statements.describe_agreement(
        Estimate(0.0), 0.05, "Shapley", 2, 5
    ) == (  # of which no interval is known, so nor that
        f"{text} +0.00. That they agree is not shown, so no payment should rest on the estimate."
    )
    assert statements.describe_agreement(NOTHING, 0.05, "Shapley", 2, 5) == ""


@pytest.mark.parametrize("ranks", [Estimate(1.0, 1.0, 1.0), Estimate(-1.0, -1.0, -1.0)])
@pytest.mark.parametrize("p", [0.051, 1 / 3, math.nan])
def test_of_so_few_hospitals_that_their_order_may_be_chance_no_agreement_is_shown(ranks: Estimate, p: float) -> None:
    """Of three each correlation of 1 is that of two in six orders, however sure cases and seeds are of it."""
    said = statements.describe_agreement(ranks, p, "Shapley", 3, 9)
    assert said.endswith("That they agree is not shown, so no payment should rest on the estimate.")


def test_of_methods() -> None:
    text = statements.describe_methods({"a": 0.8, "b": 0.7}, {"a": 0.5, "b": 0.6}, {"a": 0.1, "b": 0.05})
    assert "a has the highest mean test Dice (80.0 %), b the highest at its worst-served hospital (60.0 %)" in text
    assert "b serves the hospitals most alike (standard deviation 5.0 points, at a mean of 70.0 %)" in text
    one_site = statements.describe_methods({"a": 0.8, "b": 0.7}, {"a": 0.8, "b": 0.7}, {"a": math.nan, "b": math.nan})
    assert "alike" not in one_site


def test_of_the_method_in_the_lead() -> None:
    assert statements.describe_lead("a", ["b", "c"], ENOUGH, 0.95).startswith(
        "a is not distinguishable from b and c: no 95 % interval"
    )
    assert statements.describe_lead("a", [], ENOUGH, 0.95).endswith("of what a is above each other method leave out 0.")
    assert (
        statements.describe_lead("a", [], FEW, 0.95)
        == "Which method is best: too few test cases (4; at least 5 are needed)."
    )
    assert statements.describe_lead("a", [], ONE, 0.95) == "Which method is best: only one seed."


def test_of_gains_over_methods() -> None:
    def said(*gains: Estimate, sample: SampleSize = ENOUGH) -> str:
        return statements.describe_gains(dict(zip("abc", gains, strict=False)), sample)

    assert (
        said(GAIN, TIE)
        == "gained under 2 of 2 methods (1 with an interval that leaves out 0), compared with local training."
    )
    assert said(GAIN, LOSS) == (
        "gained under 1 of 2 methods (1 with an interval that leaves out 0) and lost under 1 (1 with an interval that "
        f"leaves out 0), most under b ({MINUS}5.0 points), compared with local training."
    )
    assert said(GAIN, TIE, sample=ONE) == ("gained under 2 of 2 methods, compared with local training: only one seed.")
    assert said(LOSS) == f"lost {MINUS}5.0 points of Dice ({MINUS}8.0 to {MINUS}2.0) compared with local training."
    assert said(Estimate(0.05), sample=FEW) == (
        "gained +5.0 points of Dice compared with local training: too few test cases (4; at least 5 are needed)."
    )


def test_of_ties() -> None:
    """Who is equal is not put in an order."""
    alike = {"A": Estimate(0.5, 0.5, 0.5), "B": Estimate(0.5, 0.5, 0.5)}
    assert (
        statements.describe_largest_share(alike, 2)
        == "By the method's own estimate all contributed alike, 50.0 % of all each."
    )
    values = statements.describe_values({"A": 0.01, "B": 0.01, "C": math.nan}, "Shapley", 2, 5)
    assert values == "By Shapley values all are worth alike to all (+1.0 points of mean Dice)."
    assert statements.describe_largest_share({"A": GAIN, "B": GAIN, "C": TIE}, 2).startswith(
        "By the method's own estimate A and B contributed most (5.0 % of all each) and C least (1.0 %)"
    )
    assert statements.describe_values({"A": 0.02, "B": 0.02, "C": 0.0}, "Shapley", 2, 5) == (
        "By Shapley values A and B are worth most to all (+2.0 points of mean Dice each) and C least (+0.0)."
    )
    assert statements.describe_gains({"a": LOSS, "b": LOSS}, ENOUGH).endswith(
        f"most under a and b ({MINUS}5.0 points), compared with local training."
    )
    text = statements.describe_methods({"a": 0.8, "b": 0.8}, {"a": 0.6, "b": 0.6}, {"a": 0.1, "b": 0.1})
    assert text == (
        "Of 2 methods, a and b have the highest mean test Dice (80.0 %), a and b the highest at their worst-served "
        "hospital (60.0 %), and a and b serve the hospitals most alike (standard deviation 10.0 points, at a mean of "
        "80.0 % and 80.0 %)."
    )
    assert statements.describe_weights({"A": 0.5, "B": 0.5}) == "all sites ended with the weight 50.0 %"
    assert "that of A and B, 40.0 %, and the smallest that of C, 20.0 %" in statements.describe_weights(
        {"A": 0.4, "B": 0.4, "C": 0.2}
    )
    assert statements.describe_estimate({"A": 0.1, "B": 0.1}) == ""
    assert statements.describe_estimate({"A": 0.1, "B": 0.1, "C": -0.1}) == (
        "by the method's own estimate A and B contributed most, and the estimate is negative for C"
    )
    assert statements.describe_benefit({"A": Comparison.TIE}, "fedce").endswith("of A no difference can be told.")


def test_a_share_that_reads_as_an_equal_one_is_about_equal() -> None:
    assert (
        statements.describe_share(Estimate(0.1668, 0.16675, 0.1670), 1 / 6, 2) == "Cannot be told from an equal share."
    )


def test_of_a_ground_truth_that_is_missing() -> None:
    assert statements.describe_values({"A": math.nan, "B": math.nan}, "Shapley", 2, 5) == ""
    assert statements.describe_values({"A": 0.01, "B": math.nan}, "Shapley", 2, 5) == ""


def test_of_taking_part() -> None:
    """Nobody is said to be better alone by a mean whose interval holds 0, or by few cases, or by one seed."""

    def said(*gains: Estimate, sample: SampleSize = ENOUGH) -> str:
        text = statements.describe_participation(dict(zip("ABC", gains, strict=False)), sample)
        return text.partition("taking part changes Dice by ")[2]

    fell = Estimate(-0.01, -0.04, 0.02)
    assert said(GAIN, TIE).endswith("compared with local training, and no site has less than alone")
    assert said(GAIN, LOSS).endswith(f"and B ({MINUS}5.0) would do better alone")
    assert said(GAIN, LOSS, fell).endswith(
        f"and B ({MINUS}5.0) would do better alone and C ({MINUS}1.0) has less than alone by an interval that holds 0"
    )
    assert said(fell, fell).endswith("have less than alone by an interval that holds 0")
    no_interval = Estimate(-0.01)
    assert said(fell, no_interval).endswith(f"and B ({MINUS}1.0) has less than alone by an interval that is not known")
    assert said(LOSS, sample=FEW).endswith(
        "compared with local training (too few test cases (4; at least 5 are needed))"
    )
    assert said(LOSS, sample=ONE).endswith("compared with local training (only one seed)")
    assert said(GAIN, LOSS).startswith("+0.0 points on average")
    assert said(GAIN, NOTHING).startswith("+5.0 points on average")
    assert said(GAIN, NOTHING).endswith("compared with local training, and of B it is not known")


def test_of_what_a_method_reaches() -> None:
    assert statements.describe_dice({"A": 0.8, "B": 0.6, "C": 0.6}) == (
        "the mean test Dice is 66.7 %, highest at A (80.0 %) and lowest at B and C (60.0 %)"
    )
    assert statements.describe_dice({"A": 0.8, "B": 0.8}) == "the mean test Dice is 80.0 %, the same at all"
    assert statements.describe_dice({"A": 0.8}) == "the mean test Dice is 80.0 %"


def test_of_ranks() -> None:
    assert statements.describe_rank_stability([(1, 1), (2, 2)]) == "the sites rank alike by contribution in every seed"
    assert statements.describe_rank_stability([(1, 2), (1, 2)]).startswith(
        "the ranking by contribution changes with the seed"
    )
