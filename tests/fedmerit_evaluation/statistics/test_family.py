"""The verdicts of a page as one family: parts of the level, corrected p-values, and how often a page errs."""

import math

import numpy as np
import pandas as pd
import pytest
from made_results import SITES, made_dice
from scipy.stats import binomtest, ttest_1samp
from simulated_studies import STABLE, page_comparisons, wrong_pages

from fedmerit_evaluation.report.assembly import collect_verdicts
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.family import Question, Verdict, judge
from fedmerit_evaluation.statistics.inference import Estimate


def _verdict(question: Question, p: float, why: str = "", smallest: float = 0.0) -> Verdict:
    return Verdict(question, "a", "b", Estimate(0.1, p=p, error=0.01, freedom=4), why, smallest)


def test_judge_gives_each_question_an_equal_part_of_the_level() -> None:
    mean, *gains = judge(
        [_verdict(Question.MEAN_GAIN, 0.02), *(_verdict(Question.GAIN, p) for p in (0.002, 0.03, 0.5))]
    )
    assert [one.level for one in (mean, *gains)] == pytest.approx([0.025, *[0.025 / 3] * 3])
    # .002 of a sixth comes first, then .02 of 3/5 of what is left, then .03 of a half
    assert [one.estimate.p for one in (*gains, mean)] == pytest.approx([0.012, 0.06, 0.5, 0.02 * 5 / 3])
    assert [one.sign for one in (mean, *gains)] == [1, 1, 0, 0]


def test_judge_leaves_out_what_cannot_be_tested() -> None:
    few = _verdict(Question.GAIN, 0.001, "too few test patients")
    impossible = _verdict(Question.AGREEMENT, 1 / 12, smallest=1 / 12)
    mean, gain, agreement = judge([_verdict(Question.MEAN_GAIN, 0.04), few, impossible])
    assert (mean.estimate.p, mean.sign, mean.level) == (0.04, 1, 0.05)
    assert math.isnan(gain.estimate.p + gain.level + gain.detectable)
    assert (gain.sign, agreement.sign, agreement.insufficient_data) == (0, 0, "no p-value can be below 0.083")


@pytest.mark.parametrize("level", [0.05, 0.004])
def test_detectable_difference_is_found_in_four_of_five_studies(level: float) -> None:
    """Five numbers with a standard error of .01 on the mean, which is not known to the test."""
    true = judge([_verdict(Question.MEAN_GAIN, 0.5)] * round(0.05 / level))[0].detectable
    numbers = np.random.default_rng(0).normal(true, 0.01 * 5**0.5, (4000, 5))
    assert np.mean(ttest_1samp(numbers, 0, axis=1).pvalue <= 0.05 / round(0.05 / level)) == pytest.approx(0.8, abs=0.02)


def test_failures_are_counted_by_patient_with_exact_interval() -> None:
    """Of six patients in three seeds two fail locally in every seed; one in a single seed does not count."""
    rows = made_dice({"fedce": (0.9, 0.9, 0.9), "standalone": (0.9, 0.9, 0.9)}, noise=0.0).rows
    failed = (rows["method"] == "standalone") & rows["case"].isin(["000", "001"])
    once = (rows["method"] == "standalone") & (rows["case"] == "002") & (rows["seed"] == 0)
    results = Results(rows.assign(value=rows["value"].mask(failed, 0.3).mask(once, 0.1)))
    table = results.dice.failures(0.5)
    assert table["failed"].to_list() == [0] * 3 + [2] * 3
    assert table["patients"].to_list() == [6] * 6
    exact = binomtest(2, 6).proportion_ci(method="exact")
    assert table.iloc[-1][["low", "high"]].to_list() == pytest.approx([exact.low, exact.high])
    assert results.dice.failures(0.95)["failed"].to_list() == [6] * 6
    overall = results.dice.failures(0.5, ["method"])
    assert overall[["failed", "patients"]].to_numpy().tolist() == [[0, 18], [6, 18]]
    (verdict,) = [one for one in collect_verdicts(results, "fedce") if one.question == Question.FAILURES]
    assert verdict.estimate.mean == pytest.approx(6 / 18)
    assert verdict.smallest_p == 2 / 2**6
    stricter = collect_verdicts(results, "fedce", failure=0.2)  # by which nobody fails: there is nothing to compare
    assert Question.FAILURES not in {one.question for one in stricter}


def test_images_of_one_patient_are_one_failure() -> None:
    rows = made_dice({"fedce": (0.4, 0.9, 0.9)}, noise=0.0).rows
    named = rows.assign(patient=pd.Series(rows["case"]).map(lambda case: str(int(case) // 3)))
    assert Results(named).dice.failures(0.5)[["failed", "patients"]].to_numpy().tolist() == [[2, 2], [0, 2], [0, 2]]


def test_every_sentence_takes_its_verdict_from_the_family() -> None:
    """Two methods, so the best leads over local training by just the mean gain: it is compared once."""
    found = collect_verdicts(made_dice({"standalone": (0.6, 0.7, 0.8), "fedce": (0.7, 0.8, 0.9)}), "fedce")
    assert [one.question for one in found] == [Question.MEAN_GAIN, *[Question.GAIN] * 3]
    assert all(one.sign == 1 for one in found)
    assert sum(one.level for one in found) == pytest.approx(0.05)


def test_simulated_page_makes_the_comparisons_of_a_report() -> None:
    """The simulation of docs/studies/statistics.md judges the same numbers, without the cost of a report."""
    results = made_dice({"standalone": (0.6, 0.7, 0.4), "fedce": (0.7, 0.72, 0.9), "other": (0.6, 0.5, 0.9)})
    names = ["fedce", "standalone", "other"]
    cases = results.dice.cases.unstack("case")
    dice = np.stack([cases.loc[name].to_numpy().reshape(3, 3, -1) for name in names])
    found = {(one.question, one.subject if one.question != Question.GAIN else SITES[int(one.subject[1:])],
              one.other): one for one in judge(page_comparisons(dice, names))}  # fmt: skip
    expected = {(one.question, one.subject, one.other): one for one in collect_verdicts(results, "fedce")}
    assert len(found) == len(expected) == 1 + 3 + 2 + 1
    for (question, subject, other), one in expected.items():
        own = found.get((question, subject, other)) or found[question, other, subject]
        assert (abs(own.estimate.mean), own.estimate.p) == pytest.approx((abs(one.estimate.mean), one.estimate.p))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "patients", "design"), [(3, 5, {}), (3, 5, {"patient_cv": 0.05}), (3, 10, {"failing": 0.1})]
)
def test_page_on_equal_hospitals_rarely_errs(seeds: int, patients: int, design: dict[str, float]) -> None:
    """By separate families 15 % of such pages erred, 32 % if patients moved shares."""
    assert wrong_pages(seeds, patients, STABLE, studies=150, **design).get("any", 0.0) <= 5 + 4.5
