"""The four answers of a report's first screen: each a question, a state in a word, one sentence, and what limits it.

States come from the model's verdicts, which are tested once; no sentence tests anything again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isnan

from fedmerit_evaluation.report.model import Hospital, ReportModel
from fedmerit_evaluation.report.words import join_words, say
from fedmerit_evaluation.statistics.inference import Comparison

STATES = {  # by comparison with local training: the kind of the badge, its word
    Comparison.BETTER: ("yes", "shown"),
    Comparison.WORSE: ("no", "harm shown"),
    Comparison.TIE: ("open", "not shown"),
    Comparison.UNJUDGED: ("off", "not tested"),
    Comparison.UNKNOWN: ("off", "not known"),
}
NEEDED = {  # of payment: the codes of unmet conditions, by what it is
    "The method estimates contributions": ("no_estimate",),
    "Hospitals differ by the estimate": ("one_seed", "one_split", "no_order"),
    "The estimate agrees with retraining": ("no_ground_truth", "chance", "no_agreement", "disagreement"),
}


@dataclass(frozen=True)
class Needed:
    """A condition of payment by the method's estimate."""

    text: str
    is_met: bool
    reason: str = ""  # why it is not met


@dataclass(frozen=True)
class Answer:
    """An answer of the first screen."""

    name: str
    question: str
    kind: str  # of the badge: open, no, yes, flag, warn or off
    state: str  # in the badge
    sentence: str
    foot: str = ""
    needed: Sequence[Needed] = ()


def answer(model: ReportModel) -> list[Answer]:
    """Return the answers of a report in the order of the page."""
    return [
        _benefit(model),
        _contribution(model),
        _free_riders(model),
        _others(model) if model.site else _payment(model),
    ]


def _benefit(model: ReportModel) -> Answer:
    kind, state = STATES[model.benefit] if model.primary else ("off", "not known")
    texts = (say("answer_benefit", model), say("limit_of_benefit", model))
    return Answer("benefit", "Did it help?", kind, state, *texts)


def _contribution(model: ReportModel) -> Answer:
    question = "What did it contribute?" if model.site else "Who contributed?"
    foot = say("basis_of_shares", model)
    known = [one for one in model.hospitals if not isnan(one.share.mean)]
    if not known or model.counts_images:
        return Answer("contribution", question, "off", "not estimated", say("no_shares", model), foot)
    sentence = say("answer_shares", model, *(list(_names(known, sign)) for sign in (1, -1)))
    if reason := known[0].share_untested:
        return Answer("contribution", question, "off", "not tested", say("untested_shares", model, reason), foot)
    differ = any(one.share_sign for one in known)
    return Answer("contribution", question, *(("yes", "shown") if differ else ("open", "not shown")), sentence, foot)


def _names(hospitals: Sequence[Hospital], sign: int) -> Iterator[str]:
    return (one.name for one in hospitals if one.share_sign == sign)


def _free_riders(model: ReportModel) -> Answer:
    question = "Was it flagged?" if model.site else "Does anyone free-ride?"
    flagged = [one.name for one in model.hospitals if one.needs_review or one.verdicts]
    is_guarded = model.flags.verdicts is not None
    if flagged:
        kind, state = "flag", "flagged" if model.site else f"{len(flagged)} flagged"
    elif is_guarded:
        kind, state = "open", "not flagged" if model.site else "nobody flagged"
    else:
        kind, state = "off", "not checked"
    foot = say("limits_of_guard") if is_guarded else ""
    return Answer("free-riders", question, kind, state, say("answer_flags", model, flagged), foot)


def _payment(model: ReportModel) -> Answer:
    question = "Can anyone be paid by it?"
    if model.primary is None:
        return Answer("payment", question, "off", "not known", say("answer_benefit", model))
    unmet = {text: [one for one in model.payment.conditions if one.code in codes] for text, codes in NEEDED.items()}
    stops = any(one.code == "no_estimate" for one in model.payment.conditions)  # the others are not judged
    needed = [
        Needed(text, not conditions, join_words(dict.fromkeys(say("reason", one) for one in conditions)))
        for text, conditions in unmet.items()
        if conditions or not stops
    ]
    kind, state = ("yes", "supported") if model.payment.state == "supported" else ("no", "no")
    sentence = say("answer_payment", *(not conditions for conditions in unmet.values()))
    return Answer("payment", question, kind, state, sentence, needed=needed)


def _others(model: ReportModel) -> Answer:
    state = "shown in part" if not model.others.empty else "not shown"
    return Answer("others", "How does it compare?", "off", state, say("answer_others", model))
