"""The guard's rules of enrolments: which sites hold each other's cases, and how many images a site has committed to."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

SHARED_CASES = 0.75  # of the training cases of either site: with more of its own it is no second name of the other
MOST_MISSING = 0.1  # share of a site's first training images that may be missing later


def find_shared_cases(fingerprints: Sequence[frozenset[str]]) -> list[list[bool]]:
    """Return (n, n) whether two sites hold at least `SHARED_CASES` of each other's cases.

    The larger site counts, too: one case of a hospital must not earn a part of its reward. Sites that share fewer, such
    as hospitals that all train on one public set, are no pair: `count_once` counts what they share once.
    """
    return [
        [
            site is not other
            and (larger := max(len(site), len(other))) > 0
            and len(site & other) >= SHARED_CASES * larger
            for other in fingerprints
        ]
        for site in fingerprints
    ]


def count_once(fingerprints: Sequence[frozenset[str]]) -> list[float]:
    """Return (n,) the share of each site's cases that count, 0 to 1: a case that k sites hold counts 1 / k at each.

    So all sites together are counted for the union of their cases. 1 for a site without cases.
    """
    holders = Counter(case for site in fingerprints for case in site)
    return [sum(1 / holders[case] for case in site) / len(site) if site else 1.0 for site in fingerprints]


def find_unlike(stated: Mapping[str, str], before: Iterable[str] = ()) -> list[str]:
    """Return the sites that state something else than the others.

    Args:
        stated: By site what it states, "" if nothing. What most state counts; of equally many, what the first does.
        before: What sites state that have been accepted already; if any, it counts instead.
    """
    accepted = [value for value in before if value]
    usual = Counter(accepted or [value for value in stated.values() if value]).most_common(1)
    return [site for site, value in stated.items() if value and value != usual[0][0]]


def may_share(cases: int, others: int) -> bool:
    """Return whether two sites with so many training cases can hold `SHARED_CASES` of each other's."""
    return min(cases, others) >= SHARED_CASES * max(cases, others) > 0


def may_train_on(images: float, first: float) -> bool:
    """Return whether a site with ``first`` training images may continue with ``images``: some cannot be read."""
    return (1 - MOST_MISSING) * first <= images <= first
