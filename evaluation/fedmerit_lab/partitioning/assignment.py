"""The patients of prepared sites with the class of each, and which of them each site of a partition gets."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmerit.errors import BadInput
from fedmerit.files import read_json
from fedmerit.schema.scores import SERVER_SPLIT
from fedmerit.schema.site_folder import Case, SiteFolder, load_array
from fedmerit_lab.partitioning.scheme import Scheme

QUANTILES = 4
FITTING_STEPS = 500  # more than enough for `_variety` to converge


@dataclass(frozen=True)
class PooledCase:
    """A prepared case, its source site, and its name in the partition."""

    name: str
    source: SiteFolder
    case: Case
    entry: Mapping[str, Any]  # of the source's datalist.json


@dataclass(frozen=True)
class Patient:
    """A patient of the pool. ``split`` is that in its source."""

    name: str
    split: str
    cases: tuple[PooledCase, ...]
    patient_class: str
    fold: int | None = None  # that tests it, if folds are kept

    @property
    def group(self) -> str:
        """The patients with whom it is assigned: of its split, or of its fold."""
        return self.split if self.fold is None else f"fold {self.fold}"

    @property
    def source(self) -> SiteFolder:
        """The site it comes from."""
        return self.cases[0].source


def pool_patients(sources: Sequence[SiteFolder], classes: str, folds: bool = False) -> list[Patient]:
    """Return every patient of the sources, sorted by name, with its fold if ``folds`` are kept.

    Raises:
        BadInput: a patient is in two splits or sites, two cases would get one name, or classes are by ``labels`` and
            there is only one.
    """
    if classes == "labels" and len(sources[0].labels) < 2:
        raise BadInput(f"classes labels: there is one label, {sources[0].labels[0]}; take size or intensity")
    cases: dict[str, list[PooledCase]] = {}
    places: dict[str, tuple[str, str]] = {}
    names: set[str] = set()
    for source in sources:
        lists = read_json(source.path / "datalist.json")
        for split, listed in source.splits.items():
            for case, entry in zip(listed, lists.get(split, []), strict=True):
                home, there = places.setdefault(case.patient, (source.name, split))
                if (home, there) != (source.name, split):
                    raise BadInput(
                        f"{source.path}: patient {case.patient} is in {split} and in {there} of site {home}; "
                        "expected one split of one site: run `fedmerit check`, then prepare the sites again"
                    )
                name = f"{source.name}-{case.name}"
                if name in names:
                    raise BadInput(f"{source.path}: two cases would be named {name}; rename the site or one case")
                names.add(name)
                cases.setdefault(case.patient, []).append(PooledCase(name, source, case, entry))
    patient_class = _classify(cases, classes)
    return [
        Patient(name, places[name][1], tuple(own), patient_class[name], int(own[0].entry["fold"]) if folds else None)
        for name, own in sorted(cases.items())
    ]


def _classify(patients: Mapping[str, Sequence[PooledCase]], classes: str) -> dict[str, str]:
    """Return the class of every patient: its source, or its quarter of all patients."""
    if classes == "source":
        return {name: cases[0].source.name for name, cases in patients.items()}
    measure = {"size": _size, "intensity": _intensity, "labels": _last_label_fraction}[classes]
    values = {name: float(np.mean([measure(case.case) for case in patients[name]])) for name in sorted(patients)}
    ordered = sorted(values, key=lambda name: values[name])
    return {name: f"{classes} {rank * QUANTILES // len(ordered) + 1}" for rank, name in enumerate(ordered)}


def _size(case: Case) -> float:
    """Return the largest cross-section of the labelled organ, as a share of the frame."""
    return float(load_array(case.label_file).any(axis=1).mean(axis=(1, 2)).max())


def _last_label_fraction(case: Case) -> float:
    """Return the fraction of labelled pixels that the last label covers, as the cup in the disc; 0 without a label."""
    label = load_array(case.label_file)
    labelled = int(label.any(axis=1).sum())
    return float(label[:, -1].sum()) / labelled if labelled else 0.0


def _intensity(case: Case) -> float:
    """Return the mean intensity within the organ, in an image of mean 0 and standard deviation 1; 0 without a label."""
    organ = load_array(case.label_file).any(axis=1)
    return float(load_array(case.image_file).mean(axis=1, dtype=np.float64)[organ].mean()) if organ.any() else 0.0


LOCAL_SPLITS = ("training", "validation")  # what a site owns: split by the scheme
COMMON_SPLITS = ("testing", SERVER_SPLIT)  # what evaluates all: split evenly, the same patients in every partition


def class_shares(scheme: Scheme, classes: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """Return `split_classes` by the names of the classes; the classes in ``scheme.outlier`` go to the last site.

    Raises:
        BadInput: no patient is of a class of ``outlier``, or all are.
    """
    if not scheme.outlier:
        return dict(zip(classes, split_classes(scheme, len(classes)), strict=True))
    known = ", ".join(sorted(classes))
    for name in scheme.outlier:
        if name not in classes:
            raise BadInput(f"outlier {name}: no such class of patients; there are {known}")
    others = [name for name in classes if name not in scheme.outlier]
    if not others:
        raise BadInput(f"outlier {', '.join(scheme.outlier)}: nothing is left for the others; there are {known}")
    rest = split_classes(replace(scheme, into=scheme.into - 1, outlier=()), len(others))
    last = np.eye(scheme.into)[-1]
    return {**dict(zip(others, np.pad(rest, ((0, 0), (0, 1))), strict=True)), **dict.fromkeys(scheme.outlier, last)}


def split_classes(scheme: Scheme, classes: int) -> NDArray[np.float64]:
    """Return (classes, sites) float64: the share of each class that each site gets; rows sum to 1."""
    sites = scheme.into
    if scheme.by == "banded":
        ends, cuts = np.linspace(0, 1, classes + 1), np.linspace(0, 1, sites + 1)
        overlap = np.minimum(ends[1:, None], cuts[1:]) - np.maximum(ends[:-1, None], cuts[:-1])
        return np.asarray(overlap.clip(min=0) * classes)
    if scheme.by == "dirichlet":
        rng = np.random.default_rng([scheme.seed, *b"shares"])
        return rng.dirichlet(np.full(sites, scheme.parameters["alpha"]), size=classes)
    if scheme.by == "variety":
        return _variety(classes, sites)
    if scheme.by == "imbalanced":
        kappa, holders = scheme.imbalance
        others = np.full(sites, (1 - kappa * holders) / (sites - holders))
        return np.tile(np.where(np.arange(sites) < holders, kappa, others), (classes, 1))
    sizes = np.arange(1, sites + 1, dtype=np.float64) ** scheme.parameters.get("exponent", 0)
    return np.tile(sizes / sizes.sum(), (classes, 1))


def _variety(classes: int, sites: int) -> NDArray[np.float64]:
    """Return (classes, sites) shares of sites of equal size, from the fewest possible classes to all, in a ring.

    Each site's classes begin where those of the one before end; proportional fitting makes sites and classes even.
    """
    widths = np.floor(np.linspace(np.ceil(classes / sites), classes, sites) + 1e-9)
    starts = np.cumsum(widths) - widths
    seen = (np.arange(classes)[:, None] - starts) % classes < widths
    shares: NDArray[np.float64] = seen.astype(np.float64)
    for _ in range(FITTING_STEPS):
        shares *= classes / sites / shares.sum(axis=0)
        shares /= shares.sum(axis=1, keepdims=True)
    return shares


def apportion(total: int, shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return ``total`` patients to sites in proportion to ``shares`` (sites,), at least one each: largest remainders.

    Sites whose proportional part is below one get one, and the others share what is left in proportion; equal
    remainders (to nine digits, as sums of shares are rounded) go to the first. ``total`` is at least the number of
    sites.
    """
    quotas = np.ones(len(shares))
    small = np.zeros(len(shares), dtype=bool)
    while not small.all():
        quotas[~small] = (total - small.sum()) * shares[~small] / shares[~small].sum()
        below = ~small & (quotas < 1)
        if not below.any():
            break
        quotas[below] = 1
        small |= below
    counts = np.floor(quotas + 1e-9).astype(np.int64)
    order = np.argsort(-np.round(quotas - counts, 9), kind="stable")
    counts[order[: total - counts.sum()]] += 1
    return counts


def assign_sites(classes: NDArray[np.int64], shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the site of each patient, given their ``classes`` (patients,), equal ones adjacent, and `split_classes`.

    The size of each site is `apportion` of its expectation. Its patients are those at which the expectation,
    accumulated along the row of patients, passes halves: every class is split as its shares say, as near as whole
    patients allow.
    """
    expected = np.cumsum(shares[classes], axis=0)
    counts = apportion(len(classes), expected[-1])
    row = np.arange(len(classes) + 1)
    places = [
        np.interp((np.arange(count) + 0.5) / count * summed[-1], [0, *summed], row)
        for count, summed in zip(counts, expected.T, strict=True)
    ]
    return np.repeat(np.arange(len(counts)), counts)[np.argsort(np.concatenate(places), kind="stable")]


@dataclass(frozen=True)
class Share:
    """The patients of a site of the partition, and the site that it is a twin of."""

    patients: list[Patient] = field(default_factory=list)
    copy_of: str | None = None


def assign_patients(
    sites: Path, patients: Sequence[Patient], scheme: Scheme, duplicate: Sequence[str]
) -> dict[str, Share]:
    """Return the patients of every site, by its name; patients with a fold by the scheme, fold by fold."""
    folds = sorted({patient.group for patient in patients if patient.fold is not None})
    local, common = (folds, []) if folds else (LOCAL_SPLITS, COMMON_SPLITS)
    names = [f"site-{number:0{len(str(scheme.into))}d}" for number in range(1, scheme.into + 1)]
    require_sites("duplicate", duplicate, names)
    number = scheme.into + len(duplicate)
    _require_enough(sites, patients, dict.fromkeys(local, scheme.into) | dict.fromkeys(common, number))
    classes = sorted({patient.patient_class for patient in patients})
    if scheme.by not in ("banded", "variety"):  # their classes are in an order that counts
        np.random.default_rng([scheme.seed, *b"classes"]).shuffle(classes)  # the same order in every split
    shares = class_shares(scheme, classes)

    def patients_in(split: str) -> list[Patient]:
        chosen = [patient for patient in patients if patient.group == split]
        np.random.default_rng([scheme.seed, *split.encode()]).shuffle(chosen)
        return sorted(chosen, key=lambda patient: classes.index(patient.patient_class))

    assigned = {name: Share() for name in names}
    others = names[:-1] if scheme.outlier else names
    shares = {name: share[: len(others)] for name, share in shares.items() if name not in scheme.outlier}
    for split in local:
        outliers = [patient for patient in patients_in(split) if patient.patient_class in scheme.outlier]
        rest = [patient for patient in patients_in(split) if patient.patient_class not in scheme.outlier]
        if scheme.outlier and (not outliers or len(rest) < len(others)):
            raise BadInput(
                f"{sites}: {len(outliers)} {split} patients of {', '.join(scheme.outlier)} for one site and "
                f"{len(rest)} others for {len(others)}; expected one for each site: choose fewer sites or another class"
            )
        assigned[names[-1]].patients.extend(outliers)
        for patient, site in _assign(rest, shares, others):
            assigned[site].patients.append(patient)
    for site in duplicate:
        assigned[f"{site}-copy"] = Share([*assigned[site].patients], copy_of=site)
    everyone = sorted(assigned)
    for split in common:
        if tested := patients_in(split):
            for patient, site in _assign(tested, dict.fromkeys(classes, np.full(number, 1 / number)), everyone):
                assigned[site].patients.append(patient)
    return assigned


def _assign(
    patients: Sequence[Patient], shares: Mapping[str, NDArray[np.float64]], sites: Sequence[str]
) -> Iterator[tuple[Patient, str]]:
    """Return `assign_sites` for named classes and sites; ``shares`` of each class are (sites,)."""
    rows = {name: row for row, name in enumerate(shares)}
    classes = np.array([rows[patient.patient_class] for patient in patients])
    for patient, site in zip(patients, assign_sites(classes, np.stack([*shares.values()])), strict=True):
        yield patient, sites[site]


def require_sites(what: str, asked: Iterable[str], known: Iterable[str]) -> None:
    """Raise `BadInput` unless all sites ``asked`` for are known and named once; ``what`` is the option's name."""
    for site, times in Counter(asked).items():
        if site not in known or times > 1:
            problem = "named twice" if times > 1 else "no such site"
            raise BadInput(f"{what} {site}: {problem}; there are {', '.join(sorted(known))}")


def _require_enough(sites: Path, patients: Sequence[Patient], needed: Mapping[str, int]) -> None:
    """Raise `BadInput` unless there is a patient of each group for every site; the server's split may be empty."""
    there = Counter(patient.group for patient in patients)
    for split, number in needed.items():
        if there[split] < number and (there[split] or split != SERVER_SPLIT):
            raise BadInput(
                f"{sites}: {there[split]} {split} patients, but the sites need {number}, one each; partition "
                "into fewer sites, add patients or prepare with other ratios or fewer folds"
            )
