"""The sentences of a report on who is suspected: by the server, the guard, or detectors of free riders."""

from collections.abc import Mapping, Sequence

from evaluation.report.words import listed


def of_marks(flagged: Sequence[str], rejected: Sequence[str]) -> str:
    """Whom the server flagged, or who had no usable reply in a round: it may have been away."""
    parts = [
        f"{listed(sites)} {what} in at least one round"
        for sites, what in ((flagged, "flagged"), (rejected, "with a reply missing or rejected"))
        if sites
    ]
    if not parts:
        return "The server flagged no hospital and rejected no reply."
    return f"Look at these first: {'; '.join(parts)}."


def by_signs(kinds: Sequence[str]) -> str:
    """``, by signs of length and direction``; nothing where it is not known by which."""
    return f", by signs of {listed(list(kinds))}" if kinds else ""


def of_verdict(what: str, rounds: str, kinds: Sequence[str], lifted: int | None) -> str:
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
    return f"{did} {rounds}{by_signs(kinds)}{shown}{end}"


def of_verdicts(found: Mapping[str, Sequence[str]]) -> str:
    """Whom the guard judged in runs that were guarded, by hospital what `of_verdict` says of it."""
    if not found:
        return "The guard judged no hospital: no verdict stood in any round."
    return f"The guard's verdicts: {'; '.join(f'{site}: {listed(list(said))}' for site, said in found.items())}."


def of_suspicions(suspected: Mapping[str, Sequence[str]]) -> str:
    """Whom the detectors of free riders suspect, by detector; nothing where nobody is."""
    if not suspected:
        return ""
    told = "; ".join(f"{name} ({', '.join(sites)})" for name, sites in suspected.items())
    return f"Detectors of free riders suspect: {told}. They suspect honest hospitals, too."


def of_planted(
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
            f"{site} ({attack}) was flagged by {listed(names)}" if names else f"nothing flagged {site} ({attack})"
        )
    also = (
        f"Honest, and flagged by some detector as well: {', '.join(honest)}."
        if honest
        else "No honest one was flagged."
    )
    return f"{run} was made with attackers in it: {listed(parts)}. {also}"
