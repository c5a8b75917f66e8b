"""Every sentence of the report: with too few cases, one seed, a tie, a loss, no number."""

import math

import numpy as np
import pytest

from fedmerit_evaluation.report import contribution_statements, phrases, statements
from fedmerit_evaluation.statistics.inference import Comparison, Estimate, SampleSize, compare_training, find_highest
from fedmerit_evaluation.statistics.ranks import Ranking, ranking

MINUS = "\N{MINUS SIGN}"
GAIN, LOSS, TIE = Estimate(0.05, 0.02, 0.08), Estimate(-0.05, -0.08, -0.02), Estimate(0.01, -0.02, 0.04)
NOTHING = Estimate(math.nan)
ENOUGH, FEW, ONE = SampleSize(5, 2), SampleSize(4, 2), SampleSize(5, 1)
APART = ranking("ABC", np.array([[0.031, -0.004, 0.01], [0.031, -0.004, 0.01]])[..., None])
CLOSE = ranking("ABC", np.array([[0.4, 0.3, 0.2], [0.2, 0.4, 0.1]])[..., None])
NO_PAYMENT = "so no payment should rest on the estimate."


@pytest.mark.parametrize(
    ("gain", "sample", "found", "sentence"),
    [
        (GAIN, ENOUGH, Comparison.BETTER, "Significantly better with federated training."),
        (LOSS, ENOUGH, Comparison.WORSE, "Significantly better with local training."),
        (TIE, ENOUGH, Comparison.TIE, "No significant difference."),
        (Estimate(0.05), ENOUGH, Comparison.TIE, "No significant difference."),
        (
            Estimate(0.001, -0.019, 0.019),
            ENOUGH,
            Comparison.EQUIVALENT,
            "No significant difference, equivalent within 2 points of Dice.",
        ),
        (
            Estimate(0.05, 0.02, 0.08, p=0.06),
            ENOUGH,
            Comparison.TIE,
            "No significant difference (p is corrected for all hospitals).",
        ),
        (GAIN, FEW, Comparison.UNJUDGED, "Too few test patients (4; at least 5 are needed)."),
        (GAIN, ONE, Comparison.UNJUDGED, "Only one seed."),
        (NOTHING, FEW, Comparison.UNKNOWN, "Gain not known: no seed in common, on the same test cases."),
    ],
)
def test_a_significant_gain_needs_cases_seeds_and_an_interval(
    gain: Estimate, sample: SampleSize, found: Comparison, sentence: str
) -> None:
    assert compare_training(gain, sample) is found
    assert statements.describe_gain(gain, sample, tested=True, has_local=True) == sentence


def test_sample_sizes_and_ties() -> None:
    assert SampleSize(5, 0).insufficient_data == "no seed has all test Dice that the comparison needs"
    assert SampleSize(5, 2).insufficient_data == ""
    assert find_highest({"A": 0.3, "B": 0.1 + 0.2, "C": 0.29}) == ["A", "B"]  # they differ by rounding only


def test_of_a_gain_that_is_missing() -> None:
    def text(**known: bool) -> str:
        return statements.describe_gain(NOTHING, ENOUGH, **known)

    assert text(tested=True, has_local=False) == "Gain not known: no run of standalone."
    differ = "Gain not known: runs of standalone that differ; report with one of them."
    assert text(tested=True, has_local=False, ambiguous=True) == differ
    assert text(tested=False, has_local=True) == "Gain not known: no test Dice."


def test_the_first_line_says_whether_federated_training_helped() -> None:
    end = "points of Dice over local training [95 % CI"
    assert statements.describe_benefit(GAIN, ENOUGH) == f"Federated training helped: mean gain +5.0 {end} +2.0, +8.0]."
    assert statements.describe_benefit(LOSS, ENOUGH).startswith(
        f"Federated training did not help: mean gain {MINUS}5.0"
    )
    assert statements.describe_benefit(TIE, ENOUGH).startswith("Federated training: unclear: mean gain +1.0")
    assert statements.describe_benefit(GAIN, ONE).startswith(
        "Federated training: unclear, only one seed; mean gain +5.0"
    )
    assert "not known" in statements.describe_benefit(NOTHING, ENOUGH)
    shown, folds = Estimate(0.05, 0.02, 0.08, p=0.06), SampleSize(5, 2, folds=5)
    unclear = f"Federated training: unclear, since folds share training patients; mean gain +5.0 {end} +2.0, +8.0]."
    assert statements.describe_benefit(shown, folds) == unclear
    assert statements.describe_gain(shown, folds, tested=True, has_local=True) == (
        "No significant difference (p is corrected for all hospitals and for training patients that folds share)."
    )


def test_the_second_line_says_why_payment_is_not_supported() -> None:
    def text(agreements: dict[str, tuple[int, str]], estimate: bool = True, seeds: int = 2, order: bool = True) -> str:
        return contribution_statements.describe_payment(
            has_estimate=estimate, seeds=seeds, agreements=agreements, has_order=order
        )

    agrees = {"Shapley": (1, "")}
    assert text(agrees).startswith("Payment: no objection found")
    assert text({}, estimate=False).endswith("because the method makes no estimate of contributions.")
    assert "one seed does not show what is chance" in text(agrees, seeds=1)
    assert "no two hospitals differ significantly by the estimate" in text(agrees, order=False)
    assert "not compared with a ground truth" in text({})
    assert "does not agree significantly with Shapley" in text({"Shapley": (0, "")})
    assert "it disagrees with Shapley values" in text({"Shapley": (-1, "")})
    assert "its agreement with Shapley values may be chance" in text({"Shapley": (1, "One seed: it may be chance.")})


def test_of_a_share() -> None:
    def text(low: float, high: float, seeds: int = 2) -> str:
        return contribution_statements.describe_share(Estimate((low + high) / 2, low, high), 0.25, seeds)

    assert text(0.26, 0.30) == "Significantly more than an equal share."
    assert text(0.20, 0.24) == "Significantly less than an equal share."
    assert text(0.24, 0.26) == text(0.24994, 0.24996) == "Not significantly different from an equal share."
    assert text(0.26, 0.30, seeds=1) == "One seed: the share may be chance."
    share = contribution_statements.describe_share(Estimate(0.28, 0.26, 0.30, p=0.06), 0.25, 2)
    assert share == "Not significantly different from an equal share (p is corrected for all hospitals)."
    assert contribution_statements.describe_share(NOTHING, 0.25, 2) == ""


def test_over_all_hospitals() -> None:
    better, tie = Comparison.BETTER, Comparison.TIE
    found = {"A": better, "B": better, "C": tie, "D": Comparison.UNJUDGED, "E": Comparison.UNKNOWN}
    assert statements.describe_hospitals(found, "fedce") == (
        "Of 5 hospitals, method fedce: 2 significantly better with federated training (A, B); 1 without significant "
        "difference (C); 1 with too few cases or seeds (D); 1 with unknown gain (E)."
    )
    assert statements.describe_hospitals(dict.fromkeys("AB", Comparison.UNKNOWN), "x").endswith("x: not known.")
    judged = statements.describe_hospitals({"A": better, "B": tie}, "fedce")
    assert "training (A); none better with local training; 1 without significant difference (B)." in judged
    lost = statements.describe_hospitals({"A": better, "B": Comparison.WORSE}, "fedce")
    assert lost.endswith("1 significantly better with local training (B).")


def test_of_the_largest_and_the_smallest_share() -> None:
    apart = {"A": Estimate(0.7, 0.65, 0.75), "B": Estimate(0.3, 0.25, 0.35)}

    def describe(
        shares: dict[str, Estimate], seeds: int, order: Ranking | None = APART, *, of_images: bool = False
    ) -> str:
        return contribution_statements.describe_largest_share(shares, seeds, order, of_images=of_images)

    text = describe(apart, 2)
    assert text.startswith("Estimated contribution: largest for A (70.0 %), smallest for B (30.0 %)")
    end = "Over 2 seeds, for these patients and this split."
    assert text.endswith(f"They differ significantly. {end}")
    assert describe(apart, 2, CLOSE).endswith(f"They are not significantly different. {end}")
    assert describe(apart, 2, None).endswith(f"Whether they differ significantly is not known. {end}")
    assert describe(apart, 1).endswith("One seed: the order may be chance.")
    assert describe({"A": NOTHING, "B": NOTHING}, 2) == ""
    images = describe(apart, 2, of_images=True)
    assert images.startswith("Share of images: largest for A")
    assert images.endswith("makes no estimate of contributions.")
    assert describe({"A": TIE, "B": TIE}, 2) == "Estimated contribution: the same for all hospitals, 50.0 % each."
    assert "A and B (5.0 % each), smallest for C (1.0 %)" in describe({"A": GAIN, "B": GAIN, "C": TIE}, 2)


def test_of_a_ground_truth() -> None:
    describe = contribution_statements.describe_values
    values = {"A": 0.031, "B": -0.004}
    text = f"Shapley values (retrained): highest for A (+3.1 points of mean Dice), lowest for B ({MINUS}0.4)."
    assert describe(values, "Shapley", APART) == f"{text} They differ significantly."
    assert describe({"A": 0.051, "B": 0.050, "C": 0.0505}, "Shapley", CLOSE).endswith(
        "They are not significantly different."
    )
    few = ranking("AB", np.array([[0.03, 0.0]] * 2)[..., None], sample=SampleSize(4, 2, "test patients"))
    why = "No difference is called significant: too few test patients (4; at least 5 are needed)."
    assert describe(values, "Shapley", few) == f"{text} {why}"
    assert describe(values, "Shapley", None) == f"{text} Whether they differ significantly is not known."
    assert "the same for all hospitals (+1.0" in describe({"A": 0.01, "B": 0.01, "C": math.nan}, "Shapley", APART)
    assert "A and B (+2.0 points of mean Dice each)" in describe({"A": 0.02, "B": 0.02, "C": 0.0}, "Shapley", CLOSE)
    assert describe({"A": 0.01, "B": math.nan}, "Shapley", APART) == ""


def test_of_how_an_estimate_agrees_with_a_ground_truth() -> None:
    describe = contribution_statements.describe_agreement
    agree, open_, against = Estimate(0.8, 0.4, 1.0), Estimate(0.1, -0.3, 0.6), Estimate(-0.6, -1.0, -0.2)
    assert describe(agree, 0.05, "Shapley", 2, 5) == (
        "Spearman correlation of the method's estimate with Shapley values: +0.80 [95 % CI +0.40, +1.00], permutation "
        "p = 0.05. Significant agreement: the CI excludes 0 and p is at most 0.05."
    )
    assert describe(open_, 0.05, "Shapley", 2, 0).endswith(f"No significant agreement, {NO_PAYMENT}")
    assert describe(against, 0.05, "Shapley", 2, 5).endswith(f"Significant disagreement, {NO_PAYMENT}")
    assert describe(agree, 0.05, "Shapley", 1, 5).endswith("One seed: it may be chance.")
    assert describe(agree, 0.05, "Shapley", 2, 1).endswith("With 1 test patient at a hospital it may be chance.")
    assert describe(Estimate(0.0), 0.05, "Shapley", 2, 5).endswith(f"No significant agreement, {NO_PAYMENT}")
    assert describe(NOTHING, 0.05, "Shapley", 2, 5) == ""


@pytest.mark.parametrize("ranks", [Estimate(1.0, 1.0, 1.0), Estimate(-1.0, -1.0, -1.0)])
@pytest.mark.parametrize("p", [0.051, math.nan])
def test_of_so_few_hospitals_that_their_order_may_be_chance_no_agreement_is_shown(ranks: Estimate, p: float) -> None:
    """Of three each correlation of 1 is that of two in six orders, however sure cases and seeds are of it."""
    assert contribution_statements.find_agreement(ranks, p) == 0
    said = contribution_statements.describe_agreement(ranks, p, "Shapley", 3, 9)
    assert said.endswith(f"No significant agreement, {NO_PAYMENT}")


def test_of_methods() -> None:
    text = statements.describe_methods({"a": 0.8, "b": 0.7}, {"a": 0.5, "b": 0.6}, {"a": 0.1, "b": 0.05})
    assert text == (
        "Of 2 methods, a has the highest mean test Dice (80.0 %), b the highest Dice at the worst-served hospital "
        "(60.0 %), and b the smallest spread between hospitals (standard deviation 5.0 points, at a mean of 70.0 %)."
    )
    tied = statements.describe_methods({"a": 0.8, "b": 0.8}, {"a": 0.6, "b": 0.6}, {"a": math.nan, "b": math.nan})
    assert tied.startswith("Of 2 methods, a and b have the highest mean test Dice (80.0 %), a and b the highest")
    assert "spread" not in tied


def test_of_the_method_in_the_lead() -> None:
    describe = statements.describe_lead
    how = "(5 %, paired by case and seed, corrected for all pairs of methods)"
    near = Estimate(0.006, -0.001, 0.012, p=0.2, p_equivalent=0.03)
    assert describe("a", {"b": TIE, "c": near, "d": GAIN}, ENOUGH) == (
        f"a is not significantly better than b and c {how}; equivalent within 2 points of Dice: c."
    )
    assert describe("a", {"b": TIE}, ENOUGH) == f"a is not significantly better than b {how}."
    assert describe("a", {"b": GAIN}, ENOUGH) == f"a is significantly better than every other method {how}."
    assert describe("a", {}, FEW) == "Which method is best: too few test patients (4; at least 5 are needed)."
    assert describe("a", {}, ONE) == "Which method is best: only one seed."


def test_of_gains_over_methods() -> None:
    def text(*gains: Estimate, sample: SampleSize = ENOUGH) -> str:
        return statements.describe_gains(dict(zip("abc", gains, strict=False)), sample)

    end = "compared with local training"
    assert text(GAIN, TIE) == f"gained with 2 of 2 methods (1 significantly), {end}."
    assert text(GAIN, LOSS) == (
        f"gained with 1 of 2 methods (1 significantly) and lost with 1 (1 significantly), most with b ({MINUS}5.0 "
        f"points), {end}."
    )
    assert text(LOSS, LOSS).endswith(f"most with a and b ({MINUS}5.0 points), {end}.")
    assert text(GAIN, TIE, sample=ONE) == f"gained with 2 of 2 methods, {end}: only one seed."
    assert text(LOSS) == f"lost {MINUS}5.0 points of Dice [95 % CI {MINUS}8.0, {MINUS}2.0] over local training."
    shown = Estimate(0.05, 0.01, 0.09, p=0.03)  # over the hospitals; with two methods 0.06
    assert text(shown, shown) == f"gained with 2 of 2 methods (none significantly), {end}."
    assert text(Estimate(0.05, 0.01, 0.09, p=0.02), TIE) == f"gained with 2 of 2 methods (1 significantly), {end}."
    few = "gained +5.0 points of Dice over local training: too few test patients (4; at least 5 are needed)."
    assert text(Estimate(0.05), sample=FEW) == few


def test_of_flags_and_simulated_attacks() -> None:
    assert phrases.describe_flags([], []) == "The server flagged no hospital and rejected no reply."
    assert phrases.describe_flags(["A"], ["A", "B"]) == (
        "Look at these first: A flagged in at least one round; A and B with a reply missing or rejected in at least "
        "one round."
    )
    attacks = {"A": "zero", "B": "noise"}
    flagged = {"A": ["the server (flagged)"], "C": ["the guard (withheld)"]}
    text = phrases.describe_simulated_attacks("fedce (attacked)", attacks, flagged)
    assert "A (zero) was flagged by the server (flagged) and B (noise) was not flagged" in text
    assert text.endswith("False positives: C.")
    assert phrases.describe_simulated_attacks("x", {"A": "zero"}, {}).endswith("No false positive.")


def test_words_of_numbers() -> None:
    assert phrases.join_words(["a", "b", "c"]) == "a, b and c"
    assert (phrases.percent(0.815), phrases.points(-0.003), phrases.correlation(-0.37)) == (
        "81.5 %", f"{MINUS}0.3", f"{MINUS}0.37",
    )  # fmt: skip
    assert phrases.points(-0.0001) == "+0.0"
