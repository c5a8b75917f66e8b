"""The wording of a report, once for each sentence: with enough data, one seed, a tie, a loss, no number."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.report.agreement import Agreement
from fedmerit_evaluation.report.flags import Attacked, Flags
from fedmerit_evaluation.report.limits import Limit
from fedmerit_evaluation.report.model import Condition, Hospital, Payment, ReportModel, Study
from fedmerit_evaluation.report.report import NEEDED, Answer, answer
from fedmerit_evaluation.report.verdicts import CHANCE, ONE_SPLIT
from fedmerit_evaluation.report.words import interval, p_text, say
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
    ("gain", "sample", "sentence"),
    [
        (GAIN, ENOUGH, "Shown. fedce is 5.0 points of Dice above"),
        (LOSS, ENOUGH, "Harm shown. fedce is 5.0 points of Dice below"),
        (TIE, ENOUGH, "Not shown. fedce is 1.0 points of Dice above"),
        (GAIN, ONE, "Not tested: only one seed. fedce is 5.0 points of Dice above"),
    ],
)
def test_answer_on_benefit_begins_with_its_state(gain: Estimate, sample: SampleSize, sentence: str) -> None:
    model = replace(MODEL, mean_gain=gain, sample_of_gain=sample)
    ends = f"[{interval(gain)}], adjusted p {p_text(gain.p)}."
    assert say("answer_benefit", model) == f"{sentence} local training {ends}"
    assert answer(model)[0].state == sentence.partition(" fedce")[0].partition(".")[0].partition(":")[0].lower()


def test_answer_on_benefit_names_the_hospitals_at_which_it_is_shown() -> None:
    gains = {"A": GAIN, "B": LOSS, "C": TIE}
    hospitals = tuple(replace(HOSPITAL, name=name, gain=gain, sample=ENOUGH) for name, gain in gains.items())
    model = replace(MODEL, mean_gain=TIE, sample_of_gain=ENOUGH, hospitals=hospitals)
    sentence = say("answer_benefit", model)
    assert sentence.startswith("Not shown on the mean.")
    assert sentence.endswith("A gain is shown at A. Harm is shown at B.")
    assert answer(model)[0].state == "harm shown in part"
    assert answer(replace(model, hospitals=hospitals[::2]))[0].state == "shown in part"
    better = tuple(replace(hospitals[0], name=name) for name in "ABCD")
    assert say("answer_benefit", replace(model, hospitals=better)).endswith("A gain is shown at every hospital.")
    most = say("answer_benefit", replace(model, hospitals=(*better, hospitals[2])))
    assert most.endswith("A gain is shown at 4 of 5 hospitals.")


def test_benefit_without_local_or_federated_training() -> None:
    unknown = replace(MODEL, hospitals=(replace(HOSPITAL, gain=UNKNOWN, lacking="no_local"),))
    assert say("answer_benefit", unknown) == "Not known: there is no local training to compare with."
    assert say("answer_benefit", replace(MODEL, primary=None)).startswith("No run trains the hospitals together")


def _judge_payment(*conditions: Condition) -> Answer:
    return answer(replace(MODEL, payment=Payment(conditions)))[-1]


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


@pytest.mark.parametrize(
    ("p", "untested", "state", "sentence"),
    [
        (0.01, "", "shown", "Shown: A more, B less than an equal share, by the estimate of fedce."),
        (
            0.2,
            "",
            "not shown",
            "No hospital's share differs significantly from an equal one; their order may be chance.",
        ),
        (math.nan, ONE_SPLIT, "not tested", f"Not tested: {ONE_SPLIT}. The order of the shares may be chance."),
    ],
)
def test_answer_on_contribution(p: float, untested: str, state: str, sentence: str) -> None:
    hospitals = [
        replace(HOSPITAL, name=name, share=Estimate(share, p=p), share_untested=untested, equal=0.5)
        for name, share in {"A": 0.7, "B": 0.3}.items()
    ]
    shown = answer(replace(MODEL, hospitals=tuple(hospitals)))[1]
    assert (shown.state, shown.sentence) == (state, sentence)


def test_shares_of_images_are_no_estimate() -> None:
    shown = answer(replace(MODEL, hospitals=(HOSPITAL,), counts_images=True))[1]
    assert shown.state == "not estimated"
    assert shown.sentence == "fedce weighs by images and makes no estimate of contributions."


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


def test_answer_on_free_riders_names_whom_to_look_at() -> None:
    guarded = replace(NO_FLAGS, verdicts=[])
    assert answer(MODEL)[2].state == "not checked"
    nobody = answer(replace(MODEL, flags=guarded, hospitals=(HOSPITAL,)))[2]
    assert (nobody.state, nobody.sentence) == (
        "nobody flagged", "The guard flagged nobody; it cannot see every free rider.",
    )  # fmt: skip
    named = answer(replace(MODEL, flags=guarded, hospitals=(replace(HOSPITAL, needs_review=True),)))[2]
    assert (named.kind, named.state) == ("flag", "1 flagged")
    assert named.sentence.startswith("Flagged: A. Look there first;")
    attacks = [Attacked("x", {"B": "zero", "C": "noise"}, {"B": ["the guard (withheld)"]})]
    tested = answer(replace(MODEL, flags=replace(guarded, attacked=attacks), hospitals=(HOSPITAL,)))[2]
    assert tested.sentence.endswith(
        "In a test, it flagged the simulated free rider: B. In a test, it did not flag the simulated free rider: C."
    )


def test_p_value_is_never_printed_as_a_significant_one() -> None:
    assert [p_text(p) for p in (0.0004, 0.0123, 0.05, 0.0502, 0.0506, 0.234, 1.0, math.nan)] == [
        "< 0.001", "0.012", "0.05", "> 0.05", "0.051", "0.23", "1.00", "",
    ]  # fmt: skip


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
