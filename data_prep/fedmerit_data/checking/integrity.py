"""Integrity of site folders: every file present and unchanged, every array valid, no patient twice, cases read well."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmerit.errors import BadInput
from fedmerit.schema.scores import SPLITS
from fedmerit.schema.site_folder import IF_STATED, SiteFolder, load_array, unlike
from fedmerit_data.checking.findings import Finding, LocatedCase, locate_cases
from fedmerit_data.readers.patients import similar_names
from fedmerit_data.spatial.readings import LITTLE, MUCH, MUCH_CUT, Reading, stated_readings

ALIKE = ("task", "labels", "channels", "image_size", "normalisation", "spacing", "folds")
Checksums = Mapping[Path, str]


def check_metadata(site: SiteFolder, first: SiteFolder) -> Iterator[Finding]:
    """Check the site's name, and the fields that sites that train together share."""
    file = site.path / "site.json"
    if site.name != site.path.name:
        message = f"names the site {site.name!r}, but its folder is {site.path.name!r}; rename the folder"
        yield Finding("site name", site.name, file, message)
    for field in ALIKE:
        ours, theirs = site.info.get(field), first.info.get(field)
        if ours != theirs:
            detail = f"{field} is {ours}, but site {first.name} has {theirs}"
            yield Finding("unlike sites", site.name, file, f"{detail}; prepare both alike", detail=detail)
    for field in IF_STATED:
        if detail := unlike(site, first, field):
            yield Finding("unlike sites", site.name, file, detail, detail=detail)


def check_lists(site: SiteFolder) -> Iterator[Finding]:
    """Check datalist.json: no empty split, no case twice, the counts of site.json."""
    file = site.path / "datalist.json"
    for split in SPLITS:
        if not site.cases(split) and site.info.get("ratios", {}) and site.info["ratios"][SPLITS.index(split)] == 0:
            message = f"split {split} is empty, as its ratio of 0 asks: the site can be evaluated on, not take part"
            yield Finding("no such split", site.name, file, message, split)
        elif not site.cases(split):
            message = f"split {split} is empty; add patients or prepare with other ratios"
            yield Finding("empty split", site.name, file, message, split)
    named = Counter(case.case.name for case in locate_cases(site))
    for name in sorted(name for name, times in named.items() if times > 1):
        yield Finding("repeated case", site.name, file, f"lists case {name} more than once")
    for split, stated in site.info.get("counts", {}).items():
        listed, counted = len(site.splits.get(split, ())), stated.get("cases")
        if counted != listed:
            detail = f"{listed} cases listed, {counted} counted"
            message = f"split {split} lists {listed} cases, site.json {counted}"
            yield Finding("count", site.name, file, message, split, detail=detail)


def check_folds(site: SiteFolder) -> Iterator[Finding]:
    """Check that every patient is in one fold, no fold is empty, and datalist.json lists the splits of fold 0."""
    patients, file = site.patients_by_fold(), site.path / "datalist.json"
    for patient, tested in sorted(patients.items()):
        if len(tested) > 1:
            message = f"patient {patient} is in the folds {', '.join(map(str, sorted(tested)))}; prepare the site again"
            yield Finding("folds", site.name, file, message, detail=f"a patient in {len(tested)} folds")
    if missing := sorted(set(range(site.folds)).difference(*patients.values())):
        detail = f"no patient in fold {', '.join(map(str, missing))}"
        yield Finding("folds", site.name, file, f"{detail}; prepare with fewer folds", detail=detail)
    elif site.folds:
        of_first = {split: {case.name for case in cases} for split, cases in site.in_fold(0).splits.items()}
        for split, cases in site.splits.items():
            if {case.name for case in cases} != of_first[split]:
                message = f"split {split} is not that of fold 0; prepare the site again"
                yield Finding("folds", site.name, file, message, split)


def check_files(site: SiteFolder, checksums: Checksums) -> Iterator[Finding]:
    """Check that checksums equal those in site.json, and that every file is in both lists."""
    stated: dict[str, str] = site.info.get("checksums", {})
    listed = {path: case for case in locate_cases(site) for path in (case.case.image_file, case.case.label_file)}
    for path in sorted(listed):
        name = path.relative_to(site.path).as_posix() if path.is_relative_to(site.path) else ""
        if path not in checksums:
            yield listed[path].finding("missing file", "file not found; prepare the site again", file=path)
        elif name not in stated:
            message = "site.json has no checksum of it; prepare the site again"
            yield listed[path].finding("no checksum", message, file=path)
        elif checksums[path] != stated[name]:
            message = "changed since it was prepared (its checksum differs); prepare it again"
            yield listed[path].finding("changed file", message, file=path)
    stored = {path for path in (site.path / "cases").glob("*") if not path.name.startswith(".")}
    for path in sorted(stored | {site.path / name for name in stated}):
        if path not in listed:
            message = "datalist.json does not list it; prepare the site again"
            yield Finding("unlisted file", site.name, path, message)


def check_arrays(site: SiteFolder, max_empty: float, sound: list[LocatedCase]) -> Iterator[Finding]:
    """Check that every pair is readable, of the stated shape, finite and labelled 0 and 1, and few masks are empty.

    Cases that pass are appended to ``sound``.
    """
    empty: dict[str, list[LocatedCase]] = {label: [] for label in site.labels}
    cases = locate_cases(site)
    for case in cases:
        files = (case.case.image_file, case.case.label_file)
        if not all(path.is_file() for path in files):
            continue  # `check_files` reports it
        arrays = []
        for path in files:
            try:
                arrays.append(load_array(path))
            except (BadInput, EOFError) as error:  # NumPy raises EOFError for a file of zero bytes
                message = str(error).removeprefix(f"{path}: ")
                yield case.finding("unreadable array", message, file=path)
                break
        if len(arrays) < len(files):
            continue
        image, label = arrays
        faults = list(_array_faults(case, image, label))
        yield from faults
        if not faults:
            sound.append(case)
            for position, name in enumerate(site.labels):
                if not label[:, position].any():
                    empty[name].append(case)
    for name, lacking in empty.items():
        if len(lacking) > max_empty * len(cases):
            share = f"{len(lacking)} of {len(cases)} cases, more than the {max_empty:.0%} allowed"
            for case in lacking:
                message = f"no {name} in this mask, as in {share}"
                yield case.finding("empty mask", message, file=case.case.label_file, detail=f"no {name} in {share}")


def _array_faults(where: LocatedCase, image: NDArray[Any], label: NDArray[Any]) -> Iterator[Finding]:
    site, case = where.site, where.case
    expected = {
        case.image_file: (image, np.float32, (len(image) if image.ndim else 0, site.channels, *site.image_size)),
        case.label_file: (label, np.uint8, (len(image) if image.ndim else 0, len(site.labels), *site.image_size)),
    }
    for path, (array, dtype, shape) in expected.items():
        if array.dtype != dtype or array.shape != shape or not array.size:
            message = f"{array.dtype} of shape {array.shape}; expected {np.dtype(dtype)} of shape {shape}"
            yield where.finding("array", message, file=path, detail=message)
            return
    if not np.isfinite(image).all():
        yield where.finding("not finite", "holds values that are not finite; prepare the site again")
    if label.max() > 1:
        message = f"holds the label {label.max()}; expected 0 and 1"
        yield where.finding("label value", message, file=case.label_file, detail=f"value {label.max()}")
    if case.slices is not None and not all(0 <= position < len(image) for position in case.slices):
        message = f"case {case.name} lists slices beyond its {len(image)}"
        yield where.finding("slices", message, file=site.path / "datalist.json", detail=f"{len(image)} slices")


def check_patients(cases: list[LocatedCase]) -> Iterator[Finding]:
    """Check patients by name: none is in two splits, none in two sites."""
    seen: dict[str, LocatedCase] = {}
    reported = set()
    for case in cases:
        patient, site = case.case.patient, case.site
        first = seen.setdefault(patient, case)
        place = (patient, site.name, case.split)
        if (first.site, first.split) == (site, case.split) or place in reported:
            continue
        reported.add(place)
        within = first.site is site
        elsewhere = first.split if within else f"site {first.site.name} ({first.split})"
        yield case.finding(
            "patient in two splits" if within else "patient in two sites",
            f"patient {patient} is in {case.split} and in {elsewhere}",
            file=site.path / "datalist.json",
            detail=f"also {first.shareable}",
        )


def check_similar_patients(site: SiteFolder) -> Iterator[Finding]:
    """Check for names of patients in several splits that may be one patient's."""
    splits = {case.patient: split for split, cases in site.splits.items() for case in cases}
    for group in similar_names(splits):
        apart = {splits[name] for name in group}
        if len(apart) > 1:
            message = (
                f"patients {', '.join(group)} are in {' and '.join(sorted(apart))}, and their names differ only by "
                "their ends, case or zeros; if they are one patient, prepare again with --patient-table"
            )
            yield Finding(
                "similar patients", site.name, site.path / "datalist.json", message, detail=f"{len(group)} names"
            )


OVERLAPS = {  # releases that hold the same patients: how many
    frozenset({"pi-cai", "prostatex"}): "328 cases of PI-CAI are PROSTATEx's",
    frozenset({"prostate-multisite", "promise12"}): "the multi-site release holds the training cases of PROMISE12",
    frozenset({"prostate-multisite", "nci-isbi-2013"}): "the multi-site release holds cases of NCI-ISBI 2013",
    frozenset({"prostate-multisite", "i2cvb"}): "the multi-site release holds cases of I2CVB",
}


def check_releases(sites: Sequence[SiteFolder]) -> Iterator[Finding]:
    """Check for sites of releases that hold the same patients."""
    by_release = {str(site.info.get("source")): site for site in sites}
    for releases, what in OVERLAPS.items():
        if releases <= by_release.keys():
            first, second = sorted(releases)
            message = f"is of {second}, and site {by_release[first].name} of {first}: {what}; leave one of the two out"
            file = by_release[second].path / "site.json"
            yield Finding("overlapping releases", by_release[second].name, file, message, detail=what)


def check_site_remarks(site: SiteFolder) -> Iterator[Finding]:
    """Check what the preparation noted on the whole site, such as statements on patients that do not count."""
    remarks = site.info.get("remarks")
    for entry in remarks if isinstance(remarks, list) else ():
        if isinstance(entry, dict) and not entry.get("case"):
            text = str(entry.get("remark"))
            yield Finding("site remark", site.name, site.path / "site.json", text)


def check_copies(cases: list[LocatedCase], checksums: Checksums) -> Iterator[Finding]:
    """Check patients by their images: one image under two names is one patient twice."""
    seen: dict[str, LocatedCase] = {}
    for case in cases:
        if case.case.image_file not in checksums:
            continue
        first = seen.setdefault(checksums[case.case.image_file], case)
        if first is not case:
            message = f"the same image as case {first.case.name} of site {first.site.name}: one patient under two names"
            yield case.finding("copy", message, detail=f"as {first.shareable}")


def check_readings(sites: Sequence[SiteFolder]) -> Iterator[Finding]:
    """Check what resizing and windows left, planes that differ, and files that were left out."""
    readings = {site.path: {one.case: one for one in stated_readings(site.info)} for site in sites}
    planes = Counter(one.plane for found in readings.values() for one in found.values() if one.plane)
    usual = planes.most_common(1)[0][0] if planes else None
    for site in sites:
        for where in locate_cases(site):
            if reading := readings[site.path].get(where.case.name):
                yield from _case(where, reading, usual)
        left_out = site.info.get("left_out")
        if isinstance(left_out, list) and left_out:
            detail = f"{len(left_out)} files"
            yield Finding("left out", site.name, site.path / "site.json", f"{detail} left out", detail=detail)


def _case(where: LocatedCase, reading: Reading, usual: str | None) -> Iterator[Finding]:
    mask = where.case.label_file
    for label, (lost, pieces) in reading.lost.items():
        if lost:
            detail = f"{lost} of {pieces} pieces of {label}"
            message = f"{detail} lost in resizing; prepare at a larger --size"
            yield where.finding("lost in resizing", message, file=mask, detail=detail)
    for label, share in reading.kept.items():
        if not LITTLE <= share <= MUCH:
            detail = f"{label} has {share:.0%} of the volume in its mask"
            message = f"{detail} after resizing; prepare at a larger --size"
            yield where.finding("volume changed", message, file=mask, detail=detail)
    if reading.cut is not None and reading.cut > MUCH_CUT:
        detail = f"{reading.cut:.0%} of its values"
        yield where.finding("values cut", f"{detail} beyond the window; name another --modality", detail=detail)
    if reading.plane and reading.plane != usual:
        detail = f"{reading.plane}, most are {usual}"
        yield where.finding("another plane", f"its slices are {detail}; train on one plane", detail=detail)
