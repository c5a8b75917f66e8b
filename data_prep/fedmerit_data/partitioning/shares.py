"""Which patients each site of a partition gets."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedmerit.errors import BadInput
from fedmerit.trainers.monai_trainer.data import SERVER_SPLIT, SPLITS
from fedmerit_data.dealing import Scheme, deal
from fedmerit_data.partitioning.patient_pool import Patient

LOCAL = ("training", "validation")  # what a site owns: dealt by the scheme
COMMON = ("testing", SERVER_SPLIT)  # what all are judged on: dealt evenly, the same patients in every partition


@dataclass(frozen=True)
class Share:
    """What a site of the partition gets, and of which it is a twin or a half."""

    patients: list[Patient] = field(default_factory=list)
    copy_of: str | None = None
    half_of: str | None = None


def deal_all(
    sites: Path, patients: Sequence[Patient], scheme: Scheme, duplicate: Sequence[str], split_site: Sequence[str]
) -> dict[str, Share]:
    """What every site gets, by its name."""
    names = [f"site-{number:0{len(str(scheme.into))}d}" for number in range(1, scheme.into + 1)]
    require_sites("duplicate", duplicate, names)
    require_sites("split site", split_site, names)
    number = scheme.into + len(duplicate) + len(split_site)
    _require_enough(sites, patients, dict.fromkeys(LOCAL, scheme.into) | dict.fromkeys(COMMON, number))
    classes = sorted({patient.of_class for patient in patients})
    if scheme.by not in ("banded", "variety"):  # neighbours are alike there
        np.random.default_rng([scheme.seed, *b"classes"]).shuffle(classes)  # in every split the same row of classes
    shares = scheme.shares_of(classes)

    def of(split: str) -> list[Patient]:
        chosen = [patient for patient in patients if patient.split == split]
        np.random.default_rng([scheme.seed, *split.encode()]).shuffle(chosen)
        return sorted(chosen, key=lambda patient: classes.index(patient.of_class))

    dealt = {name: Share() for name in names}
    others = names[:-1] if scheme.alone else names
    shares = {name: share[: len(others)] for name, share in shares.items() if name not in scheme.alone}
    for split in LOCAL:
        outliers = [patient for patient in of(split) if patient.of_class in scheme.alone]
        rest = [patient for patient in of(split) if patient.of_class not in scheme.alone]
        if scheme.alone and (not outliers or len(rest) < len(others)):
            raise BadInput(
                f"{sites}: {len(outliers)} {split} patients of {', '.join(scheme.alone)} for one site and {len(rest)} "
                f"others for {len(others)}; expected one for each site: choose fewer sites, or another class"
            )
        dealt[names[-1]].patients.extend(outliers)
        for patient, site in _deal(rest, shares, others):
            dealt[site].patients.append(patient)
    for site in duplicate:
        dealt[f"{site}-copy"] = Share([*dealt[site].patients], copy_of=site)
    for site in split_site:
        whole = dealt.pop(site)
        halves = [f"{site}-a", f"{site}-b"]
        dealt |= {half: Share(half_of=site) for half in halves}
        for split in LOCAL:
            own = [patient for patient in whole.patients if patient.split == split]
            if len(own) < 2:
                raise BadInput(f"split site {site}: {len(own)} {split} patient, but its halves need 2; choose another")
            for patient, half in _deal(own, dict.fromkeys(classes, np.full(2, 0.5)), halves):
                dealt[half].patients.append(patient)
    everyone = sorted(dealt)
    for split in COMMON:
        if common := of(split):
            for patient, site in _deal(common, dict.fromkeys(classes, np.full(number, 1 / number)), everyone):
                dealt[site].patients.append(patient)
    return dealt


def _deal(
    patients: Sequence[Patient], shares: Mapping[str, NDArray[np.float64]], sites: Sequence[str]
) -> Iterator[tuple[Patient, str]]:
    """`deal` for named classes and sites; ``shares`` of each class are (sites,)."""
    rows = {name: row for row, name in enumerate(shares)}
    classes = np.array([rows[patient.of_class] for patient in patients])
    for patient, site in zip(patients, deal(classes, np.stack([*shares.values()])), strict=True):
        yield patient, sites[site]


def require_sites(what: str, asked: Iterable[str], known: Iterable[str]) -> None:
    """`BadInput` unless the sites ``asked`` for are known, each named once; ``what`` says for what."""
    for site, times in Counter(asked).items():
        if site not in known or times > 1:
            problem = "named twice" if times > 1 else "no such site"
            raise BadInput(f"{what} {site}: {problem}; there are {', '.join(sorted(known))}")


def _require_enough(sites: Path, patients: Sequence[Patient], needed: Mapping[str, int]) -> None:
    """A patient of each split for every site; of the server's split only where there is one."""
    there = Counter(patient.split for patient in patients)
    for split, number in needed.items():
        if there[split] < number and (there[split] or split in SPLITS):
            raise BadInput(
                f"{sites}: {there[split]} {split} patients, but the sites need {number}, one each; deal into fewer "
                "sites, add patients or prepare with other ratios"
            )
