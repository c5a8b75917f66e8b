"""Numbers and lists as a sentence says them."""

from collections.abc import Sequence

from evaluation.display.table import MINUS


def listed(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(words[:-1]), *words[-1:]] if len(words) > 1 else words)


def percent(fraction: float, decimals: int = 1) -> str:
    """``81.5 %`` of 0.815."""
    return f"{100 * fraction:.{decimals}f} %"


def points(fraction: float) -> str:
    """``+1.5`` of 0.015, points of Dice."""
    return f"{100 * fraction:+z.1f}".replace("-", MINUS)


def between(low: float, high: float) -> str:
    """``−0.3 to +1.5``, points of Dice."""
    return f"{points(low)} to {points(high)}"


def over_cases(seeds: int) -> str:
    """What intervals of Dice are over, by the number of seeds: of one, nothing is known of others."""
    return "cases and seeds" if seeds > 1 else "cases, of one seed alone"


def correlation(value: float) -> str:
    """``−0.37``, of -1 to 1."""
    return f"{value:+z.2f}".replace("-", MINUS)
