"""A site's answer to a survey: one pass over all its images, nothing trained."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fedmerit.schema import survey
from fedmerit.schema.egress_list import Withheld, clear_answer
from fedmerit.schema.messages import Failure
from fedmerit.schema.site_folder import Case, SiteFolder, read_spacing

Counts = NDArray[np.int64]
ACQUIRED = "pixel_spacing"  # as acquired if the folder says it, else as prepared


def survey_site(folder: SiteFolder, question: survey.Question) -> survey.Surveyed | Failure:
    """A site's counts over all its cases of all splits; a `Failure` if it has too few patients."""
    cases = [case for split in folder.splits for case in folder.cases(split)]
    patients = {name: place for place, name in enumerate(dict.fromkeys(case.patient for case in cases))}
    if len(patients) < question.floor:
        return Failure(survey.TOO_FEW)
    tables: dict[str, Counts] = {}
    slices, readings = 0, _readings(folder)
    for case in cases:
        slices += len(case.image)
        for name, counts in _counts(case, folder.labels, readings.get(case.name, {})):
            table = tables.setdefault(name, np.zeros((len(patients), len(counts)), np.int64))
            table[patients[case.patient]] += counts
    tallies = {
        name: survey.mask_small_bins(table, question.floor, survey.is_intensity(name))
        for name, table in sorted(tables.items())
    }
    return survey.Surveyed(len(patients), slices, tallies, question.floor)


def local_survey(folders: Sequence[SiteFolder], question: survey.Question) -> survey.Survey:
    """The answers of sites on this machine, each checked against the list of what may leave."""
    sites: dict[str, survey.Surveyed] = {}
    refused: dict[str, str] = {}
    for folder in folders:
        answer = survey_site(folder, question)
        if isinstance(answer, Failure):
            refused[folder.name] = answer.reason
            continue
        try:
            _, passed = clear_answer({}, {"survey": answer.to_dict()}, least=question.floor)
        except Withheld as error:
            refused[folder.name] = str(error)
        else:
            sites[folder.name] = survey.Surveyed.from_dict(passed["survey"])
    return survey.Survey(question.floor, sites, refused)


def _readings(folder: SiteFolder) -> dict[str, dict[str, float]]:
    """By case, as far as `prepare` says: plane and spacing of pixels as acquired, % of values beyond the window."""
    stated = folder.info.get("readings")
    found: dict[str, dict[str, float]] = {}
    for one in stated if isinstance(stated, list) else ():
        if isinstance(one, dict) and isinstance(one.get("case"), str):
            plane, cut = one.get("plane") or survey.PLANES[0], one.get("cut")
            said = {survey.PLANE: float(survey.PLANES.index(plane))} if plane in survey.PLANES else {}
            if spacing := read_spacing(one.get("spacing")):
                said[ACQUIRED] = spacing[1]
            if isinstance(cut, int | float) and 0 <= cut <= 1:
                said[survey.VALUES_CUT] = 100.0 * cut
            found[one["case"]] = said
    return found


def _counts(case: Case, labels: tuple[str, ...], reading: dict[str, float]) -> Iterator[tuple[str, Counts]]:
    """By quantity, the case's count in each bin: one in all, or one a voxel."""
    image, label = np.asarray(case.image), np.asarray(case.label)
    for channel in range(image.shape[1]):
        name = survey.INTENSITY if image.shape[1] == 1 else f"{survey.INTENSITY} {channel}"
        yield name, _voxels(image[:, channel])
    measured = {"slices": float(len(image))} | {name: one for name, one in reading.items() if name != ACQUIRED}
    voxels = label.sum(axis=(0, 2, 3), dtype=np.int64)
    if case.spacing is not None:
        between, row, _ = case.spacing
        measured |= {"slice_spacing": between, "field_of_view": row * image.shape[2]}
        measured[ACQUIRED] = reading.get(ACQUIRED, row)
        millilitres = voxels * np.prod(case.spacing) / 1000
        measured |= {f"{survey.VOLUME} {name}": float(one) for name, one in zip(labels, millilitres, strict=True)}
    else:
        largest = 100 * label.mean(axis=(2, 3)).max(axis=0)
        measured |= {f"{survey.AREA} {name}": float(one) for name, one in zip(labels, largest, strict=True)}
    for name, value in measured.items():
        quantity = survey.find_quantity(name)
        once = np.zeros(quantity.bins, np.int64)
        once[np.searchsorted(quantity.edges, value, side="right")] = 1
        yield name, once


def _voxels(values: NDArray[np.float32]) -> Counts:
    """How many intensities are in each bin; the bins are equally wide, which is fast."""
    edges = survey.QUANTITIES[survey.INTENSITY].edges
    finite = values[np.isfinite(values)].astype(np.float64)
    places = np.clip(np.floor((finite - edges[0]) / (edges[1] - edges[0])) + 1, 0, len(edges))
    return np.bincount(places.astype(np.int64), minlength=len(edges) + 1)
