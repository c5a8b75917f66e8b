"""The guard's rules of enrolments: which sites hold each other's cases, and how many images a site has committed to."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

SHARED_CASES = 0.5  # of the training cases of either site
MOST_MISSING = 0.1  # share of a site's first training images that may be missing later


def find_shared_cases(fingerprints: Sequence[frozenset[str]]) -> list[list[bool]]:
    """Return (n, n) whether two sites hold at least `SHARED_CASES` of each other's cases.

    The larger site counts, too: copies divide equally, and one case of a hospital must not earn half of its reward.
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
