"""Numbers and lists as a sentence says them.

The sentences of a report on who is suspected: by the server, the guard, or detectors of free riders.
"""

from collections.abc import Mapping, Sequence

from fedmerit_evaluation.figures.tables import MINUS


def join_words(words: Sequence[str]) -> str:
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


def resampling_units(seeds: int) -> str:
    """What intervals of Dice are over, by the number of seeds: of one, nothing is known of others."""
    return "cases and seeds" if seeds > 1 else "cases, of one seed alone"


def correlation(value: float) -> str:
    """``−0.37``, of -1 to 1."""
    return f"{value:+z.2f}".replace("-", MINUS)


def describe_flags(flagged: Sequence[str], rejected: Sequence[str]) -> str:
    """Whom the server flagged, or who had no usable reply in a round: it may have been away."""
    parts = [
        f"{join_words(sites)} {what} in at least one round"
        for sites, what in ((flagged, "flagged"), (rejected, "with a reply missing or rejected"))
        if sites
    ]
    if not parts:
        return "The server flagged no hospital and rejected no reply."
    return f"Look at these first: {'; '.join(parts)}."


def describe_indicators(kinds: Sequence[str]) -> str:
    """``, by signs of length and direction``; nothing where it is not known by which."""
    return f", by signs of {join_words(list(kinds))}" if kinds else ""


def describe_verdict(what: str, rounds: str, kinds: Sequence[str], lifted: int | None) -> str:
    """One verdict of the guard: what follows the hospital's name.

    Args:
        what: it did: accused, withheld, excluded.
        rounds: in which it stood, in words.
        kinds: of signs that it was found by.
        lifted: the round without it; None: it stands.
    """
    did = "contribution, weight and reward withheld" if what == "withheld" else what
    shown = "; nothing was withheld" if what == "accused" else ""
    end = "" if lifted is None else f"; lifted in round {lifted}" + ("" if shown else ", and paid again")
    return f"{did} {rounds}{describe_indicators(kinds)}{shown}{end}"


def describe_verdicts(found: Mapping[str, Sequence[str]]) -> str:
    """Whom the guard judged in runs that were guarded, by hospital what `describe_verdict` says of it."""
    if not found:
        return "The guard judged no hospital: no verdict stood in any round."
    return f"The guard's verdicts: {'; '.join(f'{site}: {join_words(list(said))}' for site, said in found.items())}."


def describe_suspicions(suspected: Mapping[str, Sequence[str]]) -> str:
    """Whom the detectors of free riders suspect, by detector; nothing where nobody is."""
    if not suspected:
        return ""
    told = "; ".join(f"{name} ({', '.join(sites)})" for name, sites in suspected.items())
    return f"Detectors of free riders suspect: {told}. They suspect honest hospitals, too."


def describe_simulated_attacks(
    run: str, planted: Mapping[str, str], told_by: Mapping[str, Sequence[str]], honest: Sequence[str]
) -> str:
    """Whether the attackers that a run was given were told.

    Args:
        run: what it is called.
        planted: by hospital, its attack.
        told_by: by hospital among them, the detectors that flag it.
        honest: other hospitals of the run that some detector flags.
    """
    parts = []
    for site, attack in planted.items():
        names = told_by.get(site, ())
        parts.append(
            f"{site} ({attack}) was flagged by {join_words(names)}" if names else f"nothing flagged {site} ({attack})"
        )
    also = (
        f"Honest, and flagged by some detector as well: {', '.join(honest)}."
        if honest
        else "No honest one was flagged."
    )
    return f"{run} was made with attackers in it: {join_words(parts)}. {also}"
