"""The words of a report: sentences are macros of ``templates/words.j2``, filled with numbers and codes."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import isnan
from typing import Any

import pandas as pd
from jinja2 import Template

from fedmerit_data.pages import template_environment
from fedmerit_evaluation.figures.tables import MINUS
from fedmerit_evaluation.statistics.family import Verdict
from fedmerit_evaluation.statistics.inference import SIGNIFICANCE_LEVEL, Estimate, find_highest


def say(sentence: str, *content: Any) -> str:
    """Return the text of a macro of the sentences, on one line; "" if it has nothing to say."""
    text = getattr(_sentences().module, sentence)(*content)
    return re.sub(r"[ \n]+", " ", str(text)).strip()


@cache
def _sentences() -> Template:
    environment = template_environment("fedmerit_evaluation.report", autoescape=False)
    environment.trim_blocks = False  # the end of a line separates two sentences, also after a block
    environment.filters |= {
        one.__name__: one
        for one in (
            join_words, percent, points, points_apart, interval, correlation, name_rounds, begin, numbers, lowest,
            keys_below, differ, p_text, count_failures,
        )
    }  # fmt: skip
    environment.filters["highest"] = find_highest
    environment.tests |= {"unknown": lambda estimate: isnan(estimate.mean)}
    return environment.get_template("words.j2")


def join_words(words: Iterable[object]) -> str:
    """Return the words as ``a, b and c``."""
    texts = [str(word) for word in words]
    return " and ".join([", ".join(texts[:-1]), *texts[-1:]] if len(texts) > 1 else texts)


def percent(fraction: float, decimals: int = 1) -> str:
    """Return a fraction as percentage, such as ``81.5 %``."""
    return f"{100 * fraction:.{decimals}f} %"


def points(fraction: float) -> str:
    """Return a difference of fractions in points, such as ``+1.5``."""
    return f"{100 * fraction:+z.1f}".replace("-", MINUS)


def points_apart(fraction: float) -> str:
    """Return the size of a difference of fractions in points, without a sign, such as ``1.5``."""
    return f"{100 * fraction:.1f}"


def interval(estimate: Estimate) -> str:
    """Return the ends of a confidence interval in points, such as ``−0.3, 1.5``."""
    return f"{100 * estimate.low:z.1f}, {100 * estimate.high:z.1f}".replace("-", MINUS)


def correlation(value: float) -> str:
    """Return a correlation with its sign, such as ``−0.37``."""
    return f"{value:+z.2f}".replace("-", MINUS)


def name_rounds(ranges: str) -> str:
    """Return rounds, joined as ranges, with their noun: ``round 2``, ``rounds 2-9``."""
    return f"round {ranges}" if ranges.isdecimal() else f"rounds {ranges}"


def begin(text: str) -> str:
    """Return a text with a capital letter at its begin."""
    return f"{text[0].upper()}{text[1:]}"


def numbers(series: "pd.Series[float]") -> dict[str, float]:
    """Return the numbers of a series by name, without the unknown ones."""
    return {str(name): float(value) for name, value in series.dropna().items()}


def lowest(values: Mapping[str, float]) -> list[str]:
    """Return the names with the smallest number; several if they tie."""
    return find_highest({name: -value for name, value in values.items()})


def keys_below(values: Mapping[str, int], bound: int) -> list[str]:
    """Return the names with a number below a bound."""
    return [name for name, value in values.items() if value < bound]


def differ(verdicts: Sequence[Verdict], some: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether each of some sites differs significantly from each of others."""
    significant = {frozenset((one.subject, one.other)) for one in verdicts if one.sign}
    return all(frozenset((site, other)) in significant for site in some for other in others)


def p_text(p: float) -> str:
    """Return a p-value with two digits, such as ``0.20``, ``0.035`` or ``< 0.001``; "" if it is not known.

    A p-value above 5 % is never printed as 5 %.
    """
    if isnan(p):
        return ""
    if p < 0.001:
        return "< 0.001"
    text = f"{p:.2f}" if p >= 0.1 else f"{p:.2g}"
    return f"> {SIGNIFICANCE_LEVEL:g}" if p > SIGNIFICANCE_LEVEL >= float(text) else text


def count_failures(row: "pd.Series[Any]") -> str:
    """Return failed patients with the 95 % interval of their part, such as ``1 of 5 [1, 72 %]``."""
    low, high = (f"{100 * row[end]:.0f}" for end in ("low", "high"))
    return f"{row['failed']:.0f} of {row['patients']:.0f} [{low}, {high} %]"


def resampling_units(seeds: int, folds: int = 0) -> str:
    """Return what confidence intervals of Dice are over; of one seed, nothing is known of other seeds."""
    if folds:
        return f"{folds} folds"
    return "cases and seeds" if seeds > 1 else "cases (one seed)"
