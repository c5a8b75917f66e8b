"""Which sites hold each other's cases, by fingerprints."""

from collections.abc import Sequence

SHARED_CASES = 0.5  # of the training cases of either site


def find_shared_cases(fingerprints: Sequence[frozenset[str]]) -> list[list[bool]]:
    """(n, n): which sites hold at least `SHARED_CASES` of each other's cases.

    Also of the larger one: copies divide equally, and one case of a hospital must not earn half of its reward.
    """
    return [
        [
            one is not other and (larger := max(len(one), len(other))) > 0 and len(one & other) >= SHARED_CASES * larger
            for other in fingerprints
        ]
        for one in fingerprints
    ]
