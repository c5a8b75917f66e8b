"""Errors with messages for users: input that cannot be used, and runs that failed."""

from collections.abc import Collection, Iterable, Mapping
from difflib import SequenceMatcher, get_close_matches

LONGEST_WORDS = 300  # characters of what a server asked for
LONGEST_MESSAGE = 2000  # characters of a line of a message


def printable(text: str, allowed: str = "") -> str:
    """Return ``text`` with all control characters escaped except those ``allowed``.

    Others may have chosen the text, and control characters can make a terminal hide or rewrite what it shows.
    """
    return "".join(
        one if one.isprintable() or one in allowed else one.encode("unicode_escape").decode() for one in text
    )


class BadInput(ValueError):
    """A file, site or parameter is unusable; the message names it, says what was expected and what to do.

    Args:
        message: one line, whatever text of others is in it: control characters are escaped.
        further: lines, each below the message.
    """

    def __init__(self, message: str, *further: str):
        super().__init__("\n\t".join(_one_line(text) for text in (message, *further)))


def _one_line(text: str) -> str:
    """Return the text without the middle of a long one: its end says what to do."""
    if len(text) > 2 * LONGEST_MESSAGE:
        text = text[:LONGEST_MESSAGE] + text[-LONGEST_MESSAGE:]
    shown = printable(text.replace("\n\t", " ").replace("\n", " "))
    if len(shown) <= LONGEST_MESSAGE:
        return shown
    return f"{shown[: LONGEST_MESSAGE - LONGEST_WORDS - 5]} ... {shown[-LONGEST_WORDS:]}"


class Untrusted(BadInput):
    """A record names code that nobody here trusts, or describes what no run writes."""


class Tampered(BadInput):
    """A chain of records, or a signature, that is not as its owner made it."""


class RunFailed(RuntimeError):
    """A run failed; the message says in which round, why, and where the log is."""


class MemoryLost(BadInput):
    """A site has lost its memory of the round before; the server sends it everything in the next one."""


class Refused(BadInput):
    """A site refuses what the server asked for.

    Args:
        reason: that the server receives.
        what: the server asked for; the site's own log has both. The server may have chosen some of its words.
    """

    def __init__(self, reason: str, what: str):
        super().__init__(f"{reason}: {what[:LONGEST_WORDS]}")
        self.reason = reason


def suggest(name: str, known: Iterable[str], renamed: Mapping[str, str] | None = None) -> str:
    """Return the end of a message about an unknown ``name``: the nearest of the ``known``, or all of them.

    Args:
        name: as the user wrote it.
        known: the names to choose from.
        renamed: other words that users try, and the known name that each stands for.
    """
    others = renamed or {}
    near = get_close_matches(name, [*known, *others], n=3)
    alike = [one for one in near if _similarity(name, one) == _similarity(name, near[0])]
    found = others.get(name) or " or ".join(dict.fromkeys(others.get(one, one) for one in sorted(alike)))
    return f"; did you mean {found}?" if found else f"; expected one of {', '.join(known)}"


def require_known(what: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise `BadInput` about the first of ``names`` that is not ``known``; ``what`` is named, such as an option."""
    for name in names:
        if name not in known:
            near = get_close_matches(str(name), known, n=1, cutoff=0.75)
            hint = f"; did you mean {near[0]}?" if near else ";"
            raise BadInput(f"{what} {name!r:.80}: unknown{hint} expected one of {', '.join(known) or 'none'}")


def _similarity(name: str, known: str) -> float:
    return SequenceMatcher(None, known, name).ratio()
