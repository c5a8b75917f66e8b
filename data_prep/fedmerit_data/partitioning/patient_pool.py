"""The patients of prepared sites, and the class of each: what a partition splits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmerit.errors import BadInput
from fedmerit.files import read_json
from fedmerit.trainers.monai_trainer.data import Case, SiteFolder, load_array

QUANTILES = 4


@dataclass(frozen=True)
class PooledCase:
    """One prepared case, its source site, and its name in the partition."""

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

    @property
    def source(self) -> SiteFolder:
        """The site it comes from."""
        return self.cases[0].source


def pool_patients(sources: Sequence[SiteFolder], classes: str) -> list[Patient]:
    """Every patient of the sources, sorted by name.

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
    return [Patient(name, places[name][1], tuple(cases[name]), patient_class[name]) for name in sorted(cases)]


def _classify(patients: Mapping[str, Sequence[PooledCase]], classes: str) -> dict[str, str]:
    """The class of every patient: its source, or its quarter of all patients."""
    if classes == "source":
        return {name: cases[0].source.name for name, cases in patients.items()}
    measure = {"size": _size, "intensity": _intensity, "labels": _last_label_fraction}[classes]
    values = {name: float(np.mean([measure(case.case) for case in patients[name]])) for name in sorted(patients)}
    ordered = sorted(values, key=lambda name: values[name])
    return {name: f"{classes} {rank * QUANTILES // len(ordered) + 1}" for rank, name in enumerate(ordered)}


def _size(case: Case) -> float:
    """The largest cross-section of the labelled organ, as a share of the frame."""
    return float(load_array(case.label_file).any(axis=1).mean(axis=(1, 2)).max())


def _last_label_fraction(case: Case) -> float:
    """The fraction of labelled pixels that the last label covers, such as the cup in the disc; 0 without a label."""
    label = load_array(case.label_file)
    labelled = int(label.any(axis=1).sum())
    return float(label[:, -1].sum()) / labelled if labelled else 0.0


def _intensity(case: Case) -> float:
    """The mean intensity within the organ, in an image of mean 0 and standard deviation 1; 0 without a label."""
    organ = load_array(case.label_file).any(axis=1)
    return float(load_array(case.image_file).mean(axis=1, dtype=np.float64)[organ].mean()) if organ.any() else 0.0
