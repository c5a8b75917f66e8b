"""The wording of a report, once for each sentence: with enough data, one seed, a tie, a loss, no number."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.report.agreement import Agreement
from fedmerit_evaluation.report.flags import Attacked, Flag, Flags, GuardVerdict
from fedmerit_evaluation.report.limits import Limit
from fedmerit_evaluation.report.model import Condition, Hospital, Payment, ReportModel, Study
from fedmerit_evaluation.report.verdicts import CHANCE, ONE_SPLIT
from fedmerit_evaluation.report.words import correlation, join_words, percent, points, say
from fedmerit_evaluation.statistics.family import Question, Verdict
from fedmerit_evaluation.statistics.inference import Estimate, SampleSize

MINUS = "\N{MINUS SIGN}"
GAIN, LOSS = Estimate(0.05, 0.02, 0.08, 0.01), Estimate(-0.05, -0.08, -0.02, 0.01)
TIE = Estimate(0.01, -0.02, 0.04, 0.4)
UNKNOWN = Estimate(math.nan)
ENOUGH, FEW, ONE = SampleSize(5, 2), SampleSize(4, 2), SampleSize(5, 1)
HOSPITAL = Hospital(
    "A",
    0.6,
    Estimate(0.7),
    {},
    GAIN,
    ENOUGH,
    "no_seed",
    Estimate(0.25, 0.24, 0.26),
    0.25,
    2,
    False,
    {},
    detectable=0.044,
)
STUDY = Study("prostate", ("prostate",), ("A", "B"), 2, (5,), (0, 1), ())
NO_FLAGS = Flags(pd.DataFrame(), pd.DataFrame(), (), None)
MODEL = ReportModel("", STUDY, 2, (), (), "fedce", False, False, Payment(()), ENOUGH, NO_FLAGS, ())


@pytest.mark.parametrize(
    ("gain", "sample", "sentence"),
    [
        (GAIN, ENOUGH, "Significantly better with federated training."),
        (LOSS, ENOUGH, "Significantly better with local training."),
        (TIE, ENOUGH, "No significant difference; four of five such studies would show +4.4."),
        (replace(GAIN, p=0.06), ENOUGH, "No significant difference; four of five such studies would show +4.4."),
        (GAIN, FEW, "Too few test patients (4; at least 5 are needed)."),
        (GAIN, ONE, "Only one seed."),
        (UNKNOWN, FEW, "Gain not known: no seed in common, on the same test cases."),
    ],
)
def test_gain_of_hospital(gain: Estimate, sample: SampleSize, sentence: str) -> None:
    assert say("gain", replace(HOSPITAL, gain=gain, sample=sample)) == sentence


@pytest.mark.parametrize(
    ("lacking", "reason"),
    [
        ("no_local", "no run of standalone"),
        ("ambiguous", "runs of standalone that differ; report with one of them"),
        ("untested", "no test Dice"),
    ],
)
def test_gain_of_hospital_unknown_says_why(lacking: str, reason: str) -> None:
    assert say("gain", replace(HOSPITAL, gain=UNKNOWN, lacking=lacking)) == f"Gain not known: {reason}."


@pytest.mark.parametrize(
    ("gain", "sample", "sentence"),
    [
        (GAIN, ENOUGH, "significant mean gain, +5.0"),
        (LOSS, ENOUGH, f"significant mean loss, {MINUS}5.0"),
        (TIE, ENOUGH, "no significant mean gain, +1.0"),
        (GAIN, ONE, "mean gain not tested, only one seed; +5.0"),
    ],
)
def test_benefit(gain: Estimate, sample: SampleSize, sentence: str) -> None:
    ends = f"{points(gain.low)}, {points(gain.high)}"
    verdict = Verdict(
        Question.MEAN_GAIN, "fedce", "standalone", Estimate(0.01, p=0.4, error=0.01, freedom=4), level=0.05
    )
    text = say("benefit", replace(MODEL, mean_gain=gain, sample_of_gain=sample, verdicts=[verdict]))
    end = "; four of five such studies would show +3.8" if gain is TIE else ""
    begin = f"Federated training: {sentence} points of Dice over local training [95 % CI {ends}], p = {gain.p:g}"
    assert text == f"{begin}{end}."


def test_benefit_without_local_or_federated_training() -> None:
    assert "no local training to compare with" in say("benefit", MODEL)
    assert say("benefit", replace(MODEL, primary=None)).startswith("No run trains the hospitals together")


def test_payment() -> None:
    def text(*conditions: Condition) -> str:
        return say("payment", Payment(conditions))

    assert text().startswith("Payment: the estimate agrees significantly")
    codes = (
        "no_estimate",
        "one_seed",
        "one_split",
        "no_order",
        "no_ground_truth",
        "chance",
        "no_agreement",
        "disagreement",
    )
    texts = [text(Condition(code, "Shapley")) for code in codes]
    assert len(set(texts)) == len(codes)
    assert all(one.startswith("Payment: not supported, because ") for one in texts)
    assert text(Condition("one_seed"), Condition("chance", "Shapley")) == (
        "Payment: not supported, because one seed does not show what is chance and its agreement with Shapley values "
        "may be chance."
    )


@pytest.mark.parametrize(
    ("share", "seeds", "sentence"),
    [
        (Estimate(0.28, 0.26, 0.30, 0.01), 2, "Significantly more than an equal share."),
        (Estimate(0.22, 0.20, 0.24, 0.01), 2, "Significantly less than an equal share."),
        (Estimate(0.2501, 0.25005, 0.25015, 0.0), 2, "Not significantly different from an equal share."),
        (Estimate(0.28, 0.26, 0.30, p=0.06), 2, "Not significantly different from an equal share."),
        (Estimate(0.28, 0.26, 0.30), 1, "One seed: the share may be chance."),
        (UNKNOWN, 2, ""),
    ],
)
def test_share_of_hospital(share: Estimate, seeds: int, sentence: str) -> None:
    assert say("contribution", replace(HOSPITAL, share=share, share_seeds=seeds)) == sentence
    flagged = say("contribution", replace(HOSPITAL, share=share, share_seeds=seeds, needs_review=True))
    assert flagged == f"Flagged: look at it first. {sentence}".strip()
    assert say("share", replace(HOSPITAL, share=share, counts_images=True)) == ""


def test_share_of_one_split_is_not_tested() -> None:
    assert say("share", replace(HOSPITAL, share_untested=ONE_SPLIT)) == "Not tested: the patients of one split."


def test_hospitals_counts_states() -> None:
    def text(*hospitals: Hospital) -> str:
        named = [replace(one, name=name) for name, one in zip("ABCDE", hospitals, strict=False)]
        return say("hospitals", replace(MODEL, hospitals=tuple(named)))

    better, tie = HOSPITAL, replace(HOSPITAL, gain=TIE)
    unjudged, unknown = replace(HOSPITAL, sample=FEW), replace(HOSPITAL, gain=UNKNOWN)
    assert text(better, better, tie, unjudged, unknown) == (
        "Of 5 hospitals, method fedce: 2 significantly better with federated training (A, B); 1 without significant "
        "difference (C); 1 with too few cases or seeds (D); 1 with unknown gain (E)."
    )
    assert text(unknown, unknown) == "Gain of the hospitals with fedce: not known."
    assert "training (A); none better with local training; 1 without significant difference (B)." in text(better, tie)
    assert text(better, replace(HOSPITAL, gain=LOSS)).endswith("1 significantly better with local training (B).")


def test_largest_share() -> None:
    def text(shares: dict[str, float], seeds: int = 2, images: bool = False, p: float = math.nan) -> str:
        hospitals = [replace(HOSPITAL, name=name, share=Estimate(share, p=p), share_seeds=seeds, equal=1 / len(shares))
                     for name, share in shares.items()]  # fmt: skip
        study = STUDY if math.isnan(p) else replace(STUDY, repeats="folds")
        model = replace(MODEL, hospitals=tuple(hospitals), counts_images=images, study=study)
        return say("largest_share", model)

    shares = {"A": 0.7, "B": 0.3}
    begin = "largest for A (70.0 %), smallest for B (30.0 %); an equal share is 50.0 %."
    end = "Mean over 2 seeds; not tested: shares rest on the patients of one split."
    assert text(shares) == f"Estimated contribution: {begin} {end}"
    assert text(shares, 5, p=0.01).endswith(
        f"{begin} Significantly more than an equal share: A; significantly less than an equal share: B. Over 5 folds."
    )
    assert text(shares, 5, p=0.2).endswith(f"{begin} No share differs significantly from an equal one. Over 5 folds.")
    assert text(shares, seeds=1).endswith("One seed: the order may be chance.")
    images = f"Share of images: {begin} The method weighs by images and makes no estimate of contributions."
    assert text(shares, images=True) == images
    assert text({"A": 0.5, "B": 0.5}) == "Estimated contribution: the same for all hospitals, 50.0 % each."
    assert "A and B (50.0 % each), smallest for C (1.0 %)" in text({"A": 0.5, "B": 0.5, "C": 0.01})
    assert text({"A": math.nan, "B": math.nan}) == ""


def _agreement(values: dict[str, float], ranks: Estimate = GAIN, p: float = 0.05) -> Agreement:
    seeds = pd.DataFrame([{site: 100 * value for site, value in values.items()}] * 2)
    table = Table("t", "", pd.DataFrame())
    return Agreement("Shapley", seeds, {}, {"fedce": ranks}, {"fedce": p}, table, table, (), "", None)


def _pair(p: float, why: str = "", reference: str = "Shapley") -> Verdict:
    return Verdict(Question.VALUE, "B", "A", Estimate(-0.03, p=p), why, reference=reference)


def test_values_of_ground_truth() -> None:
    values = _agreement({"A": 0.031, "B": -0.004})
    text = f"Shapley values (retrained): highest for A (+3.1 points of mean Dice), lowest for B ({MINUS}0.4)."
    assert (
        say("values", values, [_pair(0.01), _pair(0.5, reference="leave-one-out")])
        == f"{text} They differ significantly."
    )
    assert say("values", values, [_pair(0.06)]) == f"{text} They are not significantly different."
    assert say("values", values, []) == f"{text} Whether they differ significantly is not known."
    why = "too few test patients (4; at least 5 are needed)"
    assert say("values", values, [_pair(math.nan, why)]) == f"{text} No difference is called significant: {why}."
    assert "the same for all hospitals (+1.0" in say("values", _agreement({"A": 0.01, "B": 0.01}), [])
    assert "A and B (+2.0 points of mean Dice each)" in say("values", _agreement({"A": 0.02, "B": 0.02, "C": 0}), [])
    assert say("values", _agreement({"A": 0.01, "B": math.nan}), []) == ""


@pytest.mark.parametrize(
    ("ranks", "p", "sentence"),
    [
        (Estimate(0.8, 0.4, 1.0), 0.05, "Significant agreement: the CI excludes 0 and p, corrected, is at most 0.05."),
        (Estimate(0.1, -0.3, 0.6), 1.0, "No significant agreement, so no payment should rest on the estimate."),
        (Estimate(-0.6, -1.0, -0.2), 0.05, "Significant disagreement, so no payment should rest on the estimate."),
        (Estimate(-1.0, -1.0, -1.0), math.nan, "No significant agreement, so no payment should rest on the estimate."),
    ],
)
def test_agreement_sentence_follows_verdict(ranks: Estimate, p: float, sentence: str) -> None:
    verdict = Verdict(Question.AGREEMENT, "fedce", "Shapley", replace(ranks, p=p))
    text = say("agreement", _agreement({"A": 0.1, "B": 0.2}, ranks), "fedce", 5, [verdict])
    begin = f"Spearman correlation of the method's estimate with Shapley values: {correlation(ranks.mean)} [95 % CI"
    assert text.startswith(begin)
    assert text.endswith(sentence)


def test_agreement_of_few_patients_may_be_chance() -> None:
    verdict = Verdict(Question.AGREEMENT, "fedce", "Shapley", GAIN, CHANCE)
    few = say("agreement", _agreement({"A": 0.1, "B": 0.2}), "fedce", 1, [verdict])
    assert few.endswith("With 1 test patient at a hospital it may be chance.")
    assert say("agreement", _agreement({"A": 0.1, "B": 0.2}, UNKNOWN), "fedce", 5, [verdict]) == ""


def test_methods_names_the_highest_mean() -> None:
    table = pd.DataFrame({"mean": [0.8, 0.7], "worst": [0.5, 0.6], "std": [0.1, 0.05]}, ["a", "b"])
    assert say("methods", table) == "Of 2 methods, a has the highest mean test Dice (80.0 %)."
    tied = say("methods", pd.DataFrame({"mean": [0.8, 0.8]}, ["a", "b"]))
    assert tied == "Of 2 methods, a and b have the highest mean test Dice (80.0 %)."


def test_lead() -> None:
    def text(**leads: Estimate) -> str:
        return say("lead", "a", {name: Verdict(Question.METHODS, "a", name, one) for name, one in leads.items()})

    assert text(b=TIE, d=GAIN) == (
        f"a is not significantly better than b (+1.0 points [95 % CI {MINUS}2.0, +4.0], p = 0.4)."
    )
    assert text(b=GAIN) == "a is significantly better than every other method."
    assert text() == ""
    few = {"b": Verdict(Question.METHODS, "a", "b", TIE, FEW.insufficient_data)}
    assert say("lead", "a", few) == "Which method is best: too few test patients (4; at least 5 are needed)."


def test_failures() -> None:
    table = pd.DataFrame(
        {"failed": [0, 5], "patients": [20, 20], "low": [0.0, 0.0866], "high": [0.1684, 0.491]}, ["fedce", "standalone"]
    )
    begin = "Patients with a Dice below 50 %: fedce 0 of 20 [0, 17 %], standalone 5 of 20 [9, 49 %]."
    model = replace(MODEL, all_failures=table)
    assert say("failures", model) == begin
    verdict = Verdict(Question.FAILURES, "fedce", "standalone", Estimate(0.25, p=0.0625))
    same = f"{begin} fedce and local training do not differ significantly (paired exact test, p = 0.062)."
    assert say("failures", replace(model, verdicts=[verdict])) == same
    fewer = replace(verdict, estimate=Estimate(0.25, p=0.0004))
    assert say("failures", replace(model, verdicts=[fewer])) == (
        f"{begin} Significantly fewer with fedce than with local training (paired exact test, p < 0.001)."
    )


def test_flags_verdicts_and_attacks() -> None:
    assert say("server_flags", [], []) == "The server flagged no hospital and rejected no reply."
    assert say("server_flags", ["A"], ["A", "B"]) == (
        "Look at these first: A flagged in at least one round; A and B with a reply missing or rejected in at least "
        "one round."
    )
    attacked = Attacked("fedce (attacked)", {"A": "zero", "B": "noise"}, {"A": ["the server (flagged)"], "C": ["x"]})
    assert say("attacks", attacked) == (
        "fedce (attacked), simulated attacks: A (zero) was flagged by the server (flagged) and B (noise) was not "
        "flagged. False positives: C."
    )
    assert say("attacks", Attacked("x", {"A": "zero"}, {})).endswith("No false positive.")
    assert say("verdicts", {}) == "The guard detected no free rider in any round."
    withheld, lifted = GuardVerdict("A", "withheld", 4, None), GuardVerdict("A", "withheld", 3, 7, seed=1)
    assert say("verdicts", {"A": [withheld, lifted]}) == (
        "Free riders that the guard detected: A: contribution, weight and reward withheld since round 4 and seed 1: "
        "contribution, weight and reward withheld from round 3 to 6; lifted in round 7, and rewarded again."
    )
    flagged = replace(HOSPITAL, flags=(Flag("flagged", "1"),), verdicts=(GuardVerdict("A", "detected", 2, None),))
    assert say("flagged", flagged) == "flagged, rounds 1; detected since round 2; nothing was withheld"
    assert say("flagged", HOSPITAL) == ""


VALUES = {
    "done": 1, "rounds": [1, 2], "score": "accuracy score", "metric": "accuracy", "lowest": 0.0, "highest": 1.0,
    "better": "lower", "number": 1, "sites": 3, "what": "joined with", "round": 1, "seeds": [0, 1], "methods": ["a"],
    "note": "it", "reference": "Shapley", "estimates": ["a"], "why": "b", "mean": 0.5, "low": 0.1, "high": 0.9,
    "p": 0.04, "sampled": "many",
}  # fmt: skip


def test_every_code_of_a_limit_has_a_sentence() -> None:
    sources = Path(say.__code__.co_filename).parent.glob("*.py")
    codes = {code for file in sources for code in re.findall(r'Limit\("(\w+)"', file.read_text())}
    assert len(codes) >= 25
    for code in codes:
        text = say("limit", Limit(code, "fedce", ("0", "1"), {"A": 1, "B": 2}, VALUES))
        assert text.startswith("fedce, seeds 0 and 1: ")
        assert text.endswith(".")
        assert len(text) > len("fedce, seeds 0 and 1: .")


def test_limits_name_hospitals_with_their_counts() -> None:
    few = say("limit", Limit("few_patients", counts={"A": 2, "B": 1, "C": 4}))
    assert few.startswith("Fewer than 5 test patients in a run: A (2), B (1) and C (4).")
    assert few.endswith("and of fewer than 3 there is no CI (A and B).")
    assert say("limit", Limit("both_empty", counts={"A": 1})).startswith("1 pair of test case and label")
    assert say("limit", Limit("membership", values=VALUES)).startswith("a site joined with round 1:")
    assert say("limit", Limit("untested_sites", values=VALUES)).startswith("no test Dice from 1 of 3 sites;")


def test_alternative_texts() -> None:
    dice = pd.Series({"Alder": 0.7, "Birch": 0.6})
    assert say("seen_dice", [("fedce", dice)]) == (
        "A row per hospital. Mean test Dice: fedce from 60.0 % (Birch) to 70.0 % (Alder)."
    )
    assert say("seen_dice", [(name, dice) for name in "abcdefgh"]).endswith("; and 2 more.")
    gains = pd.DataFrame({"mean": [0.03, -0.02], "low": [0.01, -0.04], "high": [0.05, -0.01]}, ["Alder", "Birch"])
    assert say("seen_gains", [("fedce", gains)]) == (
        f"A row per hospital, a line at 0. Gains: fedce from {MINUS}2.0 points (Birch) to +3.0 points (Alder), the CI "
        "above 0 at Alder, below 0 at Birch."
    )
    assert say("seen_shares", pd.Series({"A": 0.2, "B": 0.8}), 0.5) == (
        "A row per hospital, the largest share on top: B 80.0 %, A 20.0 %. A dashed line is at the equal share, 50.0 %."
    )
    lines = [("fedavg", pd.Series([0.25, 0.75]))]
    assert say("seen_lines", lines, "Dice") == "Dice, from the first round to the last: fedavg from 0.25 to 0.75."
    assert say("seen_panels", [("fedce", dice)], "Weight").endswith("highest at Alder (0.7), lowest at Birch (0.6).")
    assert say("seen_agreement", dice, [("fedce", -dice)], "Shapley").endswith(
        "By Shapley value Alder is highest and Birch lowest; fedce puts Birch highest and Alder lowest."
    )


def test_numbers_in_words() -> None:
    assert (join_words(["a", "b", "c"]), join_words(["a"]), join_words([])) == ("a, b and c", "a", "")
    assert (percent(0.815), points(-0.003), correlation(-0.37)) == ("81.5 %", f"{MINUS}0.3", f"{MINUS}0.37")
    assert points(-0.0001) == "+0.0"
