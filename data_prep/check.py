"""Whether prepared site folders are whole and sound: ``fedmerit check``."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.findings import Finding, Located, Severity, located
from data_prep.prepare import OVERVIEW
from data_prep.quality import plausibility
from fedmerit.errors import BadInput
from fedmerit.files import sha256
from fedmerit.training.data import SPLITS, SiteFolder, load_array

ALIKE = ("task", "labels", "channels", "image_size", "spacing")
Checksums = Mapping[Path, str]


@dataclass(frozen=True)
class SiteState:
    """What a site holds, and whether that is what `prepare` left.

    ``unchanged`` says that exactly the arrays are there that site.json has checksums of, each with its own.
    ``digest`` is the SHA-256 over site.json, datalist.json and every array: two people who read out the same one
    hold the same site, and a site whose digest is the one noted after `prepare` did not change since.
    """

    name: str
    cases: Mapping[str, int]
    patients: Mapping[str, int]
    digest: str
    unchanged: bool

    @property
    def spoken(self) -> str:
        """The first 64 bits of the digest in groups of four, to compare by phone."""
        return " ".join(self.digest[start : start + 4] for start in range(0, 16, 4))


@dataclass(frozen=True)
class Examination:
    """All that was found, errors first, and the state of every site that could be opened."""

    sites: tuple[SiteState, ...]
    findings: tuple[Finding, ...]

    def of(self, severity: Severity) -> list[Finding]:
        """The findings of one severity."""
        return [finding for finding in self.findings if finding.severity is severity]


def check(sites: Path, *, max_empty: float = 0.1) -> list[Finding]:
    """Everything wrong with the site folders below ``sites``: the errors of `examine`; empty where nothing is."""
    return examine(sites, max_empty=max_empty).of(Severity.error)


def examine(sites: Path, *, max_empty: float = 0.1) -> Examination:
    """Everything wrong with the site folders below ``sites``, or worth a look.

    Args:
        sites: What `prepare` wrote, or a folder into which the site folders of several were gathered.
        max_empty: Share of a site's cases, 0 to 1, whose mask may lack a label altogether.
    """
    if not 0 <= max_empty <= 1:
        raise BadInput(f"max_empty {max_empty:g}: expected a share from 0 to 1")
    sites = Path(sites)
    folders = (
        [path for path in sorted(sites.iterdir()) if path.is_dir() and path.name[0] != "." and path.name != OVERVIEW]
        if sites.is_dir()
        else []
    )
    if not folders:
        message = "no site folders in it; make them with `fedmerit prepare`"
        return Examination((), (Finding("no sites", "", sites, message),))
    findings: list[Finding] = []
    opened: list[SiteFolder] = []
    for folder in folders:
        try:
            opened.append(SiteFolder(folder))
        except BadInput as error:
            message = str(error).removeprefix(f"{folder}: ")
            findings.append(Finding("unreadable site", folder.name, folder, message))
    cases = [case for site in opened for case in located(site)]
    checksums = {
        path: sha256(path) for case in cases for path in (case.case.image_file, case.case.label_file) if path.is_file()
    }
    sound: list[Located] = []
    states = []
    for site in opened:
        findings += _alike(site, opened[0])
        findings += _names(site)
        changes = list(_files(site, checksums))
        findings += changes
        findings += _arrays(site, max_empty, sound)
        states.append(_state(site, checksums, not changes))
    findings += _patients(cases)
    findings += _copies(cases, checksums)
    findings += plausibility(opened, sound, checksums)
    order = list(Severity)
    return Examination(tuple(states), tuple(sorted(findings, key=lambda finding: order.index(finding.severity))))


def _state(site: SiteFolder, checksums: Checksums, unchanged: bool) -> SiteState:
    files = {site.path / name: sha256(site.path / name) for name in ("site.json", "datalist.json")}
    files |= {path: known for path, known in checksums.items() if path.is_relative_to(site.path)}
    lines = sorted(f"{path.relative_to(site.path).as_posix()} {known}\n" for path, known in files.items())
    return SiteState(
        name=site.name,
        cases={split: len(cases) for split, cases in site.splits.items()},
        patients={split: len({case.patient for case in cases}) for split, cases in site.splits.items()},
        digest=hashlib.sha256("".join(lines).encode()).hexdigest(),
        unchanged=unchanged,
    )


def _alike(site: SiteFolder, first: SiteFolder) -> Iterator[Finding]:
    """The site's own name, and what sites that train together share."""
    file = site.path / "site.json"
    if site.name != site.path.name:
        message = f"names the site {site.name!r}, but its folder is {site.path.name!r}"
        yield Finding("site name", site.name, file, message)
    for field in ALIKE:
        ours, theirs = site.info.get(field), first.info.get(field)
        if ours != theirs:
            detail = f"{field} is {ours}, but site {first.name} has {theirs}"
            yield Finding("unlike sites", site.name, file, f"{detail}; prepare both alike", detail=detail)


def _names(site: SiteFolder) -> Iterator[Finding]:
    """datalist.json: no empty split, no case twice, the counts of site.json."""
    file = site.path / "datalist.json"
    for split in SPLITS:
        if not site.cases(split) and site.info.get("ratios", {}) and site.info["ratios"][SPLITS.index(split)] == 0:
            message = f"split {split} is empty, as its ratio of 0 asks: the site can be evaluated on, not take part"
            yield Finding("no such split", site.name, file, message, split)
        elif not site.cases(split):
            message = f"split {split} is empty; add patients or prepare with other ratios"
            yield Finding("empty split", site.name, file, message, split)
    names = [case.case.name for case in located(site)]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Finding("repeated case", site.name, file, f"case {name} stands in it more than once")
    for split, stated in site.info.get("counts", {}).items():
        listed, counted = len(site.splits.get(split, ())), stated.get("cases")
        if counted != listed:
            detail = f"{listed} cases listed, {counted} counted"
            message = f"split {split} lists {listed} cases, site.json {counted}"
            yield Finding("count", site.name, file, message, split, detail=detail)


def _files(site: SiteFolder, checksums: Checksums) -> Iterator[Finding]:
    """Checksums as site.json has them; no file that is listed in one place alone."""
    stated: dict[str, str] = site.info.get("checksums", {})
    listed = {path: case for case in located(site) for path in (case.case.image_file, case.case.label_file)}
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


def _arrays(site: SiteFolder, max_empty: float, sound: list[Located]) -> Iterator[Finding]:
    """Every pair readable, of the stated shape, finite, and labelled 0 and 1: those join ``sound``; few masks empty."""
    empty: dict[str, list[Located]] = {label: [] for label in site.labels}
    cases = located(site)
    for case in cases:
        files = (case.case.image_file, case.case.label_file)
        if not all(path.is_file() for path in files):
            continue  # `_files` names it
        arrays = []
        for path in files:
            try:
                arrays.append(load_array(path))
            except (BadInput, EOFError) as error:  # the latter is what NumPy says of a file of zero bytes
                message = str(error).removeprefix(f"{path}: ")
                yield case.finding("unreadable array", message, file=path)
                break
        if len(arrays) < len(files):
            continue
        image, label = arrays
        faults = list(_faults(case, image, label))
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


def _faults(where: Located, image: NDArray[Any], label: NDArray[Any]) -> Iterator[Finding]:
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
        message = f"holds the label {label.max()}; a plane of a label holds 0 and 1"
        yield where.finding("label value", message, file=case.label_file, detail=f"value {label.max()}")
    if case.slices is not None and not all(0 <= position < len(image) for position in case.slices):
        message = f"case {case.name} lists slices beyond its {len(image)}"
        yield where.finding("slices", message, file=site.path / "datalist.json", detail=f"{len(image)} slices")


def _patients(cases: list[Located]) -> Iterator[Finding]:
    """Patients by name: none in two splits, none in two sites."""
    seen: dict[str, Located] = {}
    told = set()
    for case in cases:
        patient, site = case.case.patient, case.site
        first = seen.setdefault(patient, case)
        place = (patient, site.name, case.split)
        if (first.site, first.split) == (site, case.split) or place in told:
            continue
        told.add(place)
        within = first.site is site
        elsewhere = first.split if within else f"site {first.site.name} ({first.split})"
        yield case.finding(
            "patient in two splits" if within else "patient in two sites",
            f"patient {patient} stands in {case.split} and in {elsewhere}",
            file=site.path / "datalist.json",
            detail=f"also {first.shareable}",
        )


def _copies(cases: list[Located], checksums: Checksums) -> Iterator[Finding]:
    """Patients by what was imaged: one image under two names is one patient twice."""
    seen: dict[str, Located] = {}
    for case in cases:
        if case.case.image_file not in checksums:
            continue
        first = seen.setdefault(checksums[case.case.image_file], case)
        if first is not case:
            message = f"the same image as case {first.case.name} of site {first.site.name}: one patient under two names"
            yield case.finding("copy", message, detail=f"as {first.shareable}")
