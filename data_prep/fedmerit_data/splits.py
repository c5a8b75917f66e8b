"""Splits and folds by a keyed hash of the patient: patients that were there before stay where they were.

A patient's place, in [0, 1), follows from the seed and the patient's name at the hospital, and from nothing else.
Places from the lowest up are tested, then validated on, then trained on, each split over a range as long as its share.
"""

import hashlib
import hmac
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fedmerit.errors import BadInput
from fedmerit.schema.scores import SERVER_SPLIT, SPLITS
from fedmerit.schema.site_folder import SiteFolder, open_sites

BY_PLACE = ("testing", "validation", "training")  # from the lowest place up: training and testing have no border

Part = TypeVar("Part")


@dataclass(frozen=True)
class Earlier:
    """The splits and folds of a site's earlier preparation, by patient and by case."""

    splits: Mapping[str, str]
    folds: Mapping[str, int]
    patients: Mapping[str, str]  # by case

    def known(self, patient: str, cases: Sequence[str]) -> set[str]:
        """Return the earlier names of a patient: the same, or those of the patient's cases."""
        named = {patient} & self.splits.keys()
        return named or {self.patients[case] for case in cases if case in self.patients}

    def split(self, patient: str, cases: Sequence[str]) -> str | None:
        """Return the split of a patient, None of a new one; of several, the one that was trained on most."""
        order = ("training", SERVER_SPLIT, "validation", "testing")
        return min((self.splits[name] for name in self.known(patient, cases)), key=order.index, default=None)

    def fold(self, patient: str, cases: Sequence[str]) -> int | None:
        """Return the fold that tests a patient, None of a new one; of several, the lowest."""
        return min((self.folds[name] for name in self.known(patient, cases) if name in self.folds), default=None)


def read_earlier(sites: Path, folds: int | None) -> dict[str, Earlier]:
    """Read the splits of earlier site folders, by site.

    Raises:
        BadInput: there are none, or they have another number of folds.
    """
    opened = {site.name: site for site in open_sites(sites)}
    for site in opened.values():
        if site.folds != (folds or 0):
            raise BadInput(
                f"--like {sites}: site {site.name} has {site.folds or 'no'} folds, this preparation has "
                f"{folds or 'none'}; name folders with the same number, or leave --like out"
            )
    return {name: _earlier(site) for name, site in opened.items()}


def _earlier(site: SiteFolder) -> Earlier:
    cases = [(case, split) for split, of_split in site.splits.items() for case in of_split]
    folds = {patient: min(tested) for patient, tested in site.patients_by_fold().items()}
    return Earlier(
        {case.patient: split for case, split in cases}, folds, {case.name: case.patient for case, _ in cases}
    )


def place(site: str, patient: str, seed: int) -> float:
    """Return the place of a patient in [0, 1): HMAC-SHA-256 of the name without the site's, with the seed as key.

    A patient of two hospitals under one name has one place.
    """
    name = patient.removeprefix(f"{site}-")
    digest = hmac.digest(f"fedmerit {seed}".encode(), name.encode(), hashlib.sha256)
    return int.from_bytes(digest[:7], "big") / 2**56


def split_patients(
    site: str,
    patients: Mapping[str, Sequence[str]],
    ratios: tuple[float, float, float],
    seed: int,
    server_share: float = 0.0,
    earlier: Earlier | None = None,
) -> dict[str, str]:
    """Return the split of every patient.

    Args:
        patients: The names of each patient's cases, by patient.
        ratios: Shares of `SPLITS`. A positive one gets at least one patient.
        seed: Key of the hash, the same at all sites.
        server_share: Share of the training patients, at least one if it is positive, that goes to the server's split
            instead; it moves no other patient.
        earlier: An earlier preparation, whose patients keep their splits; new patients then go where most are missing.

    Raises:
        BadInput: fewer patients than splits to fill, or no training patient left beside the server's share.
    """
    shares = dict(zip(SPLITS, ratios, strict=True))
    wanted = [split for split in SPLITS if shares[split] > 0]
    if len(patients) < len(wanted):
        *first, last = wanted
        raise BadInput(
            f"site {site}: {len(patients)} patient(s), but {', '.join(first)} and {last} need one each; "
            "add patients or leave the site out (for a site that only tests, use the ratios 0,0,1)"
        )
    before = (
        {} if earlier is None else _drop_none({name: earlier.split(name, cases) for name, cases in patients.items()})
    )
    if before:
        taken = {name: "training" if split == SERVER_SPLIT else split for name, split in before.items()}
        ordered = [name for _, name in order_patients(site, patients, seed)]
        splits = dict(zip(ordered, fill([taken.get(name) for name in ordered], shares), strict=True))
    else:
        splits = _split_by_place(order_patients(site, patients, seed), {split: shares[split] for split in BY_PLACE})
    training = [name for name, split in splits.items() if split == "training"]  # in the order of places
    server = max(1, round(server_share * len(training))) if server_share > 0 and training else 0
    if server and server >= len(training):
        raise BadInput(
            f"site {site}: {len(training)} training patient(s), and the server share {server_share:g} takes {server}, "
            "but one has to remain; add patients, raise the training ratio or prepare with a server share of 0"
        )
    kept = [name for name, split in before.items() if split == SERVER_SPLIT]
    new = [name for name in training[::-1] if name not in before]
    return splits | dict.fromkeys([*kept, *new][: max(server, len(kept))], SERVER_SPLIT)


def assign_folds(
    site: str, patients: Mapping[str, Sequence[str]], folds: int, seed: int, earlier: Earlier | None = None
) -> dict[str, int]:
    """Return the fold that tests each patient; folds differ by one patient at most, without an earlier preparation.

    Neighbours by place are in one fold, so one patient more moves at most one patient over each border of two folds.

    Raises:
        BadInput: there are fewer patients than folds.
    """
    if len(patients) < folds:
        raise BadInput(
            f"site {site}: {len(patients)} patient(s), but {folds} folds need one each; prepare with fewer folds, add "
            "patients or leave the site out"
        )
    ordered = [name for _, name in order_patients(site, patients, seed)]
    before = {} if earlier is None else _drop_none({name: earlier.fold(name, patients[name]) for name in ordered})
    if before:
        filled = fill([before.get(name) for name in ordered], dict.fromkeys(range(folds), 1 / folds))
        return dict(zip(ordered, filled, strict=True))
    return {name: rank * folds // len(ordered) for rank, name in enumerate(ordered)}


def order_patients(site: str, patients: Iterable[str], seed: int) -> list[tuple[float, str]]:
    """Return the places and names of patients, from the lowest place up."""
    return sorted((place(site, patient, seed), patient) for patient in patients)


def _split_by_place(ordered: Sequence[tuple[float, str]], shares: Mapping[str, float]) -> dict[str, str]:
    """Return splits by ranges of places, of which no split's number of patients is off its share by more than `slack`.

    Borders of the ranges are the same for any number of patients, unless a split would have too few or too many.
    """
    number, left, below, splits = len(ordered), len(ordered), 0.0, dict[str, str]()
    counts = apportion(number, shares)
    fewest = {split: max(int(share > 0), counts[split] - slack(number, share)) for split, share in shares.items()}
    most = {split: counts[split] + slack(number, share) for split, share in shares.items()}
    following = list(shares)
    for split, share in shares.items():
        following.remove(split)
        below += share
        there = sum(at < below for at, _ in ordered) - (number - left) if following else left
        low = max(fewest[split], left - sum(most[name] for name in following))
        high = min(most[split], left - sum(fewest[name] for name in following))
        count = min(max(there, low), high)
        start = number - left
        splits |= {name: split for _, name in ordered[start : start + count]}
        left -= count
    return splits


def slack(number: int, share: float) -> int:
    """Return how many patients a split may be off its share of ``number``.

    Two standard deviations of a random draw, less one patient: none of 5 patients, 1 of 8, 2 of 20, 7 of 100 at 0.25.
    """
    return max(0, int(2 * math.sqrt(number * share * (1 - share)) - 1))


def apportion(number: int, shares: Mapping[Part, float]) -> dict[Part, int]:
    """Return whole numbers with the sum ``number``, as near to the shares as can be, at least 1 of a positive share."""
    counts = Counter(fill([None] * number, shares))
    return {part: counts[part] for part in shares}


def fill(parts: Sequence[Part | None], shares: Mapping[Part, float]) -> list[Part]:
    """Return ``parts`` with each None replaced, in order, by the part that is empty or lacks most to its share."""
    counts, filled = Counter(part for part in parts if part is not None), list[Part]()
    positive = [part for part in shares if shares[part] > 0]
    for part in parts:
        if part is None:
            part = max(positive, key=lambda one: (not counts[one], shares[one] * len(parts) - counts[one]))
            counts[part] += 1
        filled.append(part)
    return filled


def _drop_none(found: Mapping[str, Part | None]) -> dict[str, Part]:
    return {name: value for name, value in found.items() if value is not None}
