"""The answers and sentences of a report: states follow from the model, no number is missing, no sentence repeats."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.report.agreement import Agreement
from fedmerit_evaluation.report.assembly import CHANCE, ONE_SPLIT
from fedmerit_evaluation.report.flags import Attacked, Flags
from fedmerit_evaluation.report.limits import Limit
from fedmerit_evaluation.report.model import Condition, Hospital, ReportModel, Study
from fedmerit_evaluation.report.report import NEEDED, Answer, answer
from fedmerit_evaluation.report.words import p_text, say
from fedmerit_evaluation.statistics.family import Question, Verdict
from fedmerit_evaluation.statistics.inference import ONE_SEED, Estimate, SampleSize

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
MODEL = ReportModel("", STUDY, 2, (), (), "fedce", False, False, (), ENOUGH, NO_FLAGS, ())


SHARES = {"A": Estimate(0.7, p=0.01), "B": Estimate(0.3, p=0.01)}


def _hospitals(**changes: Sequence[Any]) -> dict[str, Any]:
    """Return the change of a model to one hospital for each value of a field."""
    rows = [dict(zip(changes, row, strict=True)) for row in zip(*changes.values(), strict=True)]
    named = zip("ABCD", rows, strict=False)
    return {"hospitals": tuple(replace(HOSPITAL, name=name, **row) for name, row in named)}


@pytest.mark.parametrize(
    ("question", "changes", "state"),
    [
        (0, {"mean_gain": GAIN, "sample_of_gain": ENOUGH}, "shown"),
        (0, {"mean_gain": LOSS, "sample_of_gain": ENOUGH}, "harm shown"),
        (0, {"mean_gain": TIE, "sample_of_gain": ENOUGH}, "not shown"),
        (0, {"mean_gain": replace(GAIN, p=0.06), "sample_of_gain": ENOUGH}, "not shown"),
        (0, {"mean_gain": GAIN, "sample_of_gain": ONE}, "not tested"),
        (0, {"mean_gain": GAIN, "sample_of_gain": FEW}, "not tested"),
        (0, {"mean_gain": TIE, "sample_of_gain": ENOUGH, **_hospitals(gain=[GAIN, TIE])}, "shown in part"),
        (0, {"mean_gain": TIE, "sample_of_gain": ENOUGH, **_hospitals(gain=[GAIN, LOSS, TIE])}, "harm shown in part"),
        (0, {"primary": None}, "not known"),
        (1, _hospitals(share=list(SHARES.values()), equal=[0.5, 0.5]), "shown"),
        (1, _hospitals(share=[replace(one, p=0.2) for one in SHARES.values()], equal=[0.5, 0.5]), "not shown"),
        (1, _hospitals(share=list(SHARES.values()), share_untested=[ONE_SPLIT] * 2), "not tested"),
        (1, {**_hospitals(share=list(SHARES.values())), "counts_images": True}, "not estimated"),
        (1, _hospitals(share=[UNKNOWN]), "not estimated"),
        (2, {}, "not checked"),
        (2, {"flags": replace(NO_FLAGS, verdicts=[]), **_hospitals(needs_review=[False])}, "nobody flagged"),
        (2, {"flags": replace(NO_FLAGS, verdicts=[]), **_hospitals(needs_review=[True, False])}, "1 flagged"),
        (3, {}, "supported"),
        (3, {"unmet": (Condition("no_ground_truth"),)}, "no"),
    ],
)
def test_answer_state_follows_from_the_model(question: int, changes: dict[str, Any], state: str) -> None:
    shown = answer(replace(MODEL, **changes))[question]
    assert shown.state == state
    assert shown.sentence.endswith(".")
    assert not re.search(r"nan|None|<", shown.sentence)


def _judge_payment(*conditions: Condition) -> Answer:
    return answer(replace(MODEL, unmet=conditions))[-1]


@pytest.mark.parametrize("code", [code for _, badges in NEEDED.values() for code in badges])
def test_payment_repeats_no_sentence_of_the_question_on_contribution(code: str) -> None:
    shares = [Estimate(share, p=0.2) for share in (0.7, 0.3)]
    untested = {"one_seed": ONE_SEED, "one_split": ONE_SPLIT}.get(code, "")
    hospitals = tuple(replace(HOSPITAL, share=share, share_untested=untested, equal=0.5) for share in shares)
    contribution = answer(replace(MODEL, hospitals=hospitals))[1]
    judged = _judge_payment(Condition(code, "Shapley"))
    texts = [judged.sentence, *(one.reason for one in judged.needed if one.reason)]
    assert texts[1:]
    assert judged.sentence.startswith("No: ")
    assert len(judged.sentence.split()) <= 20
    assert not any(text.strip(".").lower() in contribution.sentence.lower() for text in texts)


def test_every_reason_against_payment_has_a_sentence() -> None:
    source = Path(say.__code__.co_filename).with_name("assembly.py").read_text()
    codes = set(re.findall(r'Condition\("(\w+)"', source)) | {"no_agreement", "disagreement"}
    assert codes == {code for _, badges in NEEDED.values() for code in badges}


def _agreement(values: dict[str, float], ranks: Estimate = GAIN) -> Agreement:
    seeds = pd.DataFrame([{site: 100 * value for site, value in values.items()}] * 2)
    table = Table("t", "", pd.DataFrame())
    return Agreement("Shapley", seeds, {}, {"fedce": ranks}, {"fedce": 0.05}, table, table, (), "", None)


def _verdict(question: Question, estimate: Estimate = GAIN, why: str = "") -> Verdict:
    of = {Question.VALUE: ("B", "A"), Question.AGREEMENT: ("fedce", "Shapley")}.get(question, ("fedce", "standalone"))
    return Verdict(question, *of, estimate, why, reference="Shapley")


VALUES_OF_TWO, DICE = _agreement({"A": 0.031, "B": -0.004}), pd.Series({"A": 0.7, "B": 0.6})
FAILURES = pd.DataFrame({"failed": [0, 5], "patients": 20, "low": 0.0, "high": 0.4}, ["fedce", "standalone"])
GAINS = pd.DataFrame({"mean": [0.03, -0.02], "low": [0.01, -0.04], "high": [0.05, -0.01]}, ["A", "B"])
ATTACKED = Attacked("fedce (attacked)", {"A": "zero", "B": "noise"}, {"A": ["the guard"], "C": ["x"]})


@pytest.mark.parametrize(
    ("sentence", "content"),
    [
        *(
            ("values", (VALUES_OF_TWO, pairs))
            for pairs in ([], [_verdict(Question.VALUE)], [_verdict(Question.VALUE, TIE)])
        ),
        ("values", (_agreement({"A": 0.01, "B": 0.01}), [])),
        *(
            ("agreement", (VALUES_OF_TWO, "fedce", 5, [_verdict(Question.AGREEMENT, one, why)]))
            for one, why in ((GAIN, ""), (TIE, ""), (LOSS, ""), (GAIN, CHANCE))
        ),
        *(("lead", ("a", {"b": _verdict(Question.METHODS, one)})) for one in (GAIN, TIE)),
        *(
            ("failures", (replace(MODEL, all_failures=FAILURES, verdicts=verdicts),))
            for verdicts in ([], [_verdict(Question.FAILURES)], [_verdict(Question.FAILURES, TIE)])
        ),
        *(
            ("limit_of_benefit", (replace(MODEL, mean_gain=gain, sample_of_gain=ENOUGH, hospitals=hospitals),))
            for gain in (TIE, replace(GAIN, p=0.06), GAIN)
            for hospitals in ((), (replace(HOSPITAL, gain=replace(GAIN, p=0.06)),))
        ),
        ("limit", (Limit("few_patients", counts={"A": 2, "B": 1, "C": 4}),)),
        ("attacks", (ATTACKED,)),
        ("seen_dice", ([("fedce", DICE)],)),
        ("seen_gains", ([("fedce", GAINS)],)),
        ("seen_shares", (DICE, 0.5)),
        ("seen_lines", ([("fedavg", DICE)], "Dice")),
        ("seen_panels", ([("fedce", DICE)], "Weight")),
        ("seen_agreement", (DICE, [("fedce", -DICE)], "Shapley")),
    ],
)
def test_sentence_is_complete_with_known_numbers(sentence: str, content: tuple[object, ...]) -> None:
    text = say(sentence, *content)
    assert text.endswith(".")
    assert not re.search(r"nan|None|<|\s[.,;:]", text)


def test_sentences_follow_the_verdict() -> None:
    """Significant, not significant, or not tested: of differences, of agreement, of a lead and of failures."""
    for question, sentence, content in (
        (Question.VALUE, "values", lambda verdict: (VALUES_OF_TWO, [verdict])),
        (Question.AGREEMENT, "agreement", lambda verdict: (VALUES_OF_TWO, "fedce", 5, [verdict])),
        (Question.METHODS, "lead", lambda verdict: ("a", {"b": verdict})),
        (Question.FAILURES, "failures", lambda verdict: (replace(MODEL, all_failures=FAILURES, verdicts=[verdict]),)),
    ):
        shown, open_question = (say(sentence, *content(_verdict(question, one))) for one in (GAIN, TIE))
        assert re.search(r"[Ss]ignificant", shown), sentence
        assert re.search(r"not (significantly|differ)|No significant", open_question), sentence
        assert not re.search(r"not (significantly|differ)|No significant", shown), sentence


def test_p_value_is_never_printed_as_a_significant_one() -> None:
    assert [p_text(p) for p in (0.0004, 0.0123, 0.05, 0.0502, 0.0506, 0.234, 1.0, math.nan)] == [
        "< 0.001", "0.012", "0.05", "> 0.05", "0.051", "0.23", "1.00", "",
    ]  # fmt: skip


VALUES = {
    "done": 1, "rounds": [1, 2], "score": "accuracy score", "metric": "accuracy", "lowest": 0.0, "highest": 1.0,
    "better": "lower", "number": 1, "sites": 3, "what": "joined with", "round": 1, "seeds": [0, 1], "methods": ["a"],
    "note": "it", "reference": "Shapley", "estimates": ["a"], "why": "b", "mean": 0.5, "low": 0.1, "high": 0.9,
    "p": 0.04, "sampled": "many", "folds": 3,
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
