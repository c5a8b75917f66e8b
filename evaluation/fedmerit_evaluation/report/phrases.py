"""Numbers and lists as words, and the sentences on sites that the server or its guard flags."""

from collections.abc import Mapping, Sequence

from fedmerit_evaluation.figures.tables import MINUS
from fedmerit_evaluation.statistics.inference import Estimate


def join_words(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(words[:-1]), *words[-1:]] if len(words) > 1 else words)


def percent(fraction: float, decimals: int = 1) -> str:
    """``81.5 %`` of 0.815."""
    return f"{100 * fraction:.{decimals}f} %"


def points(fraction: float) -> str:
    """``+1.5`` of 0.015, points of Dice."""
    return f"{100 * fraction:+z.1f}".replace("-", MINUS)


def interval(estimate: Estimate) -> str:
    """``−0.3, +1.5``, points of Dice: the ends of a confidence interval."""
    return f"{points(estimate.low)}, {points(estimate.high)}"


def correlation(value: float) -> str:
    """``−0.37``, of -1 to 1."""
    return f"{value:+z.2f}".replace("-", MINUS)


def resampling_units(seeds: int, folds: int = 0) -> str:
    """What confidence intervals of Dice are over; of one seed, nothing is known of other seeds."""
    if folds:
        return f"{folds} folds"
    return "cases and seeds" if seeds > 1 else "cases (one seed)"


def describe_flags(flagged: Sequence[str], rejected: Sequence[str]) -> str:
    """The sites that the server flagged, and those without a usable reply in a round; they may have been offline."""
    parts = [
        f"{join_words(sites)} {what} in at least one round"
        for sites, what in ((flagged, "flagged"), (rejected, "with a reply missing or rejected"))
        if sites
    ]
    if not parts:
        return "The server flagged no hospital and rejected no reply."
    return f"Look at these first: {'; '.join(parts)}."


def describe_verdict(what: str, rounds: str, lifted: int | None) -> str:
    """One verdict of the guard: what follows the hospital's name.

    Args:
        what: its effect: detected, withheld, excluded.
        rounds: in which it was in force, in words.
        lifted: the first round without it; None: it is in force.
    """
    effect = "contribution, weight and reward withheld" if what == "withheld" else what
    shown = "; nothing was withheld" if what == "detected" else ""
    end = "" if lifted is None else f"; lifted in round {lifted}" + ("" if shown else ", and rewarded again")
    return f"{effect} {rounds}{shown}{end}"


def describe_verdicts(found: Mapping[str, Sequence[str]]) -> str:
    """The free riders that the guard detected in guarded runs: by hospital, its `describe_verdict`."""
    if not found:
        return "The guard detected no free rider in any round."
    verdicts = "; ".join(f"{site}: {join_words(list(words))}" for site, words in found.items())
    return f"Free riders that the guard detected: {verdicts}."


def describe_simulated_attacks(run: str, attacks: Mapping[str, str], flagged: Mapping[str, Sequence[str]]) -> str:
    """Which simulated attackers of a run were flagged.

    Args:
        run: its label.
        attacks: by hospital, its attack.
        flagged: by hospital, honest ones too, by what.
    """
    parts = []
    for site, attack in attacks.items():
        names = flagged.get(site, ())
        parts.append(f"{site} ({attack}) was {f'flagged by {join_words(names)}' if names else 'not flagged'}")
    honest = sorted(flagged.keys() - attacks.keys())
    also = f"False positives: {', '.join(honest)}." if honest else "No false positive."
    return f"{run}, simulated attacks: {join_words(parts)}. {also}"
