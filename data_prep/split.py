"""Splits by patient: the same for the same seed, never empty."""

from collections.abc import Sequence

import numpy as np

from fedmerit.data import SPLITS
from fedmerit.errors import BadInput


def split_patients(site: str, patients: Sequence[str], ratios: tuple[float, float, float], seed: int) -> dict[str, str]:
    """The split of every patient: shares as near to ``ratios`` as whole patients allow, at least one in each.

    Raises:
        BadInput: fewer patients than splits.
    """
    names = sorted(set(patients))
    if len(names) < len(SPLITS):
        raise BadInput(
            f"site {site}: {len(names)} patient(s), but training, validation and testing need one each; "
            "add patients or leave the site out"
        )
    np.random.default_rng([seed, *site.encode()]).shuffle(names)
    counts = [1] * len(SPLITS)
    for _ in range(len(names) - len(SPLITS)):
        short = [ratio * len(names) - count for ratio, count in zip(ratios, counts, strict=True)]
        counts[int(np.argmax(short))] += 1
    splits = np.repeat(SPLITS, counts)
    return {name: str(split) for name, split in zip(names, splits, strict=True)}
