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
from fedmerit_evaluation.statistics.inference import Estimate, find_highest
from fedmerit_evaluation.statistics.ranks import Ranking


def say(sentence: str, *content: Any) -> str:
    """Return the text of a macro of the sentences, on one line; "" if it has nothing to say."""
    text = getattr(_sentences().module, sentence)(*content)
    return re.sub(r"[ \n]+", " ", str(text)).strip()


@cache
def _sentences() -> Template:
    environment = template_environment("fedmerit_evaluation.report", autoescape=False)
    environment.filters |= {
        one.__name__: one
        for one in (
            join_words, percent, points, interval, correlation, begin, numbers, highest, lowest, pick, keys_below,
            differ, count_significant,
        )
    }  # fmt: skip
    environment.tests |= {"unknown": lambda estimate: isnan(estimate.mean), "excluding": is_excluding}
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


def interval(estimate: Estimate) -> str:
    """Return the ends of a confidence interval in points, such as ``−0.3, +1.5``."""
    return f"{points(estimate.low)}, {points(estimate.high)}"


def correlation(value: float) -> str:
    """Return a correlation with its sign, such as ``−0.37``."""
    return f"{value:+z.2f}".replace("-", MINUS)


def begin(text: str) -> str:
    """Return a text with a capital letter at its begin."""
    return f"{text[0].upper()}{text[1:]}"


def numbers(series: "pd.Series[float]") -> dict[str, float]:
    """Return the numbers of a series by name, without the unknown ones."""
    return {str(name): float(value) for name, value in series.dropna().items()}


def highest(values: Mapping[str, float]) -> list[str]:
    """Return the names with the largest number; several if they tie."""
    return find_highest(values)


def lowest(values: Mapping[str, float]) -> list[str]:
    """Return the names with the smallest number; several if they tie."""
    return find_highest({name: -value for name, value in values.items()})


def pick(values: Mapping[str, float], names: Sequence[str]) -> list[float]:
    """Return the numbers of some of the names."""
    return [values[name] for name in names]


def keys_below(values: Mapping[str, int], bound: int) -> list[str]:
    """Return the names with a number below a bound."""
    return [name for name, value in values.items() if value < bound]


def differ(order: Ranking, some: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether each of some sites differs significantly from each of others."""
    return all(order.differ(site, other) for site in some for other in others)


def count_significant(estimates: Sequence[Estimate], sign: int) -> int:
    """Return how many estimates differ significantly from 0 in a direction."""
    return sum(one.compare(0) == sign for one in estimates)


def is_excluding(estimate: Estimate, value: float) -> bool:
    """Return whether a confidence interval, which is not corrected, excludes a value."""
    return estimate.low > value or estimate.high < value


def resampling_units(seeds: int, folds: int = 0) -> str:
    """Return what confidence intervals of Dice are over; of one seed, nothing is known of other seeds."""
    if folds:
        return f"{folds} folds"
    return "cases and seeds" if seeds > 1 else "cases (one seed)"
