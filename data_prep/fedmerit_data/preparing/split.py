"""Splits by patient: the same for the same seed, none empty that was asked for."""

from collections.abc import Sequence

import numpy as np

from fedmerit.errors import BadInput
from fedmerit.trainers.monai_trainer.data import SERVER_SPLIT, SPLITS


def split_patients(
    site: str, patients: Sequence[str], ratios: tuple[float, float, float], seed: int, server_share: float = 0.0
) -> dict[str, str]:
    """The split of every patient: shares as near to ``ratios`` as whole patients allow, at least one where positive.

    ``server_share`` of the training patients, at least one if it is positive, go to the server's split instead;
    the others stay where they are without it.

    Raises:
        BadInput: fewer patients than splits to fill, or one training patient of which the server wants a share.
    """
    names = sorted(set(patients))
    wanted = [int(ratio > 0) for ratio in ratios]
    if len(names) < sum(wanted):
        *first, last = (split for split, one in zip(SPLITS, wanted, strict=True) if one)
        raise BadInput(
            f"site {site}: {len(names)} patient(s), but {', '.join(first)} and {last} need one each; "
            "add patients or leave the site out (a site to test on alone takes the ratios 0,0,1)"
        )
    np.random.default_rng([seed, *site.encode()]).shuffle(names)
    counts = list(wanted)
    for _ in range(len(names) - sum(wanted)):
        short = [
            ratio * len(names) - count if ratio > 0 else -np.inf for ratio, count in zip(ratios, counts, strict=True)
        ]
        counts[int(np.argmax(short))] += 1
    training, *others = counts
    server = max(1, round(server_share * training)) if server_share > 0 and training else 0
    if server and server >= training:
        raise BadInput(
            f"site {site}: {training} training patient(s), of which the server share {server_share:g} takes {server}, "
            "but one has to be left; add patients, raise the training ratio or prepare with a server share of 0"
        )
    splits = np.repeat([SPLITS[0], SERVER_SPLIT, *SPLITS[1:]], [training - server, server, *others])
    return {name: str(split) for name, split in zip(names, splits, strict=True)}
