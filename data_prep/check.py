"""Whether prepared site folders are whole and sound: ``fedmerit check``."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmerit.data import SPLITS, Case, SiteFolder, load_array
from fedmerit.errors import BadInput
from fedmerit.files import sha256

ALIKE = ("task", "labels", "channels", "image_size", "spacing")


@dataclass(frozen=True)
class Problem:
    """One thing wrong, and the file (or folder) to look at."""

    site: str
    file: Path
    message: str

    def __str__(self) -> str:
        return f"{self.file}: {self.message}"


def check(sites: Path, *, max_empty: float = 0.1) -> list[Problem]:
    """Everything wrong with the site folders below ``sites``; an empty list where nothing is.

    Args:
        sites: What `prepare` wrote, or a folder into which the site folders of several were gathered.
        max_empty: Share of a site's cases, 0 to 1, whose mask may lack a label altogether.
    """
    if not 0 <= max_empty <= 1:
        raise BadInput(f"max_empty {max_empty:g}: expected a share from 0 to 1")
    sites = Path(sites)
    folders = (
        [path for path in sorted(sites.iterdir()) if path.is_dir() and path.name[0] != "."] if sites.is_dir() else []
    )
    if not folders:
        return [Problem("", sites, "no site folders in it; make them with `fedmerit prepare`")]
    problems: list[Problem] = []
    opened: list[SiteFolder] = []
    for folder in folders:
        try:
            opened.append(SiteFolder(folder))
        except BadInput as error:
            problems.append(Problem(folder.name, folder, str(error).removeprefix(f"{folder}: ")))
    for site in opened:
        problems += _alike(site, opened[0])
        problems += _names(site)
        problems += _files(site)
        problems += _arrays(site, max_empty)
    return problems + list(_patients(opened)) + list(_copies(opened))


def _alike(site: SiteFolder, first: SiteFolder) -> Iterator[Problem]:
    """The site's own name, and what sites that train together share."""
    file = site.path / "site.json"
    if site.name != site.path.name:
        yield Problem(site.name, file, f"names the site {site.name!r}, but its folder is {site.path.name!r}")
    for field in ALIKE:
        ours, theirs = site.info.get(field), first.info.get(field)
        if ours != theirs:
            yield Problem(site.name, file, f"{field} is {ours}, but site {first.name} has {theirs}; prepare both alike")


def _cases(site: SiteFolder) -> Iterator[tuple[str, Case]]:
    return ((split, case) for split, cases in site.splits.items() for case in cases)


def _names(site: SiteFolder) -> Iterator[Problem]:
    """datalist.json: no empty split, no case twice, the counts of site.json."""
    file = site.path / "datalist.json"
    for split in SPLITS:
        if not site.cases(split):
            yield Problem(site.name, file, f"split {split} is empty; add patients or prepare with other ratios")
    names = [case.name for _, case in _cases(site)]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem(site.name, file, f"case {name} stands in it more than once")
    for split, stated in site.info.get("counts", {}).items():
        cases = site.splits.get(split, ())
        if stated.get("cases") != len(cases):
            yield Problem(site.name, file, f"split {split} lists {len(cases)} cases, site.json {stated.get('cases')}")


def _files(site: SiteFolder) -> Iterator[Problem]:
    """Checksums as site.json has them; no file that is listed in one place alone."""
    checksums: dict[str, str] = site.info.get("checksums", {})
    listed = {path for _, case in _cases(site) for path in (case.image_file, case.label_file)}
    for path in sorted(listed):
        name = path.relative_to(site.path).as_posix() if path.is_relative_to(site.path) else ""
        if not path.is_file():
            yield Problem(site.name, path, "file not found; prepare the site again")
        elif name not in checksums:
            yield Problem(site.name, path, "site.json has no checksum of it; prepare the site again")
        elif sha256(path) != checksums[name]:
            yield Problem(site.name, path, "changed since it was prepared (its checksum differs); prepare it again")
    stored = {path for path in (site.path / "cases").glob("*") if not path.name.startswith(".")}
    for path in sorted(stored | {site.path / name for name in checksums}):
        if path not in listed:
            yield Problem(site.name, path, "datalist.json does not list it; prepare the site again")


def _arrays(site: SiteFolder, max_empty: float) -> Iterator[Problem]:
    """Every pair readable, of the stated shape, finite, and labelled 0 and 1; not too many masks empty."""
    empty: dict[str, list[Case]] = {label: [] for label in site.labels}
    cases = [case for _, case in _cases(site)]
    for case in cases:
        if not (case.image_file.is_file() and case.label_file.is_file()):
            continue  # `_files` names it
        try:
            image, label = load_array(case.image_file), load_array(case.label_file)
        except BadInput as error:
            path, _, message = str(error).partition(": ")
            yield Problem(site.name, Path(path), message)
            continue
        faults = list(_faults(site, case, image, label))
        yield from faults
        if not faults:
            for position, name in enumerate(site.labels):
                if not label[:, position].any():
                    empty[name].append(case)
    for name, lacking in empty.items():
        if len(lacking) > max_empty * len(cases):
            share = f"{len(lacking)} of {len(cases)} cases, more than the {max_empty:.0%} allowed"
            for case in lacking:
                yield Problem(site.name, case.label_file, f"no {name} in this mask, as in {share}")


def _faults(site: SiteFolder, case: Case, image: NDArray[Any], label: NDArray[Any]) -> Iterator[Problem]:
    expected = {
        case.image_file: (image, np.float32, (len(image) if image.ndim else 0, site.channels, *site.image_size)),
        case.label_file: (label, np.uint8, (len(image) if image.ndim else 0, len(site.labels), *site.image_size)),
    }
    for path, (array, dtype, shape) in expected.items():
        if array.dtype != dtype or array.shape != shape or not array.size:
            yield Problem(
                site.name,
                path,
                f"{array.dtype} of shape {array.shape}; expected {np.dtype(dtype)} of shape {shape}",
            )
            return
    if not np.isfinite(image).all():
        yield Problem(site.name, case.image_file, "holds values that are not finite; prepare the site again")
    if label.max() > 1:
        yield Problem(site.name, case.label_file, f"holds the label {label.max()}; a plane of a label holds 0 and 1")
    if case.slices is not None and not all(0 <= position < len(image) for position in case.slices):
        file = site.path / "datalist.json"
        yield Problem(site.name, file, f"case {case.name} lists slices beyond its {len(image)}")


def _patients(sites: list[SiteFolder]) -> Iterator[Problem]:
    """Patients by name: none in two splits, none in two sites."""
    seen: dict[str, tuple[SiteFolder, str]] = {}
    told = set()
    for site in sites:
        for split, case in _cases(site):
            first, first_split = seen.setdefault(case.patient, (site, split))
            if (first, first_split) == (site, split) or (case.patient, site.name, split) in told:
                continue
            told.add((case.patient, site.name, split))
            elsewhere = first_split if first is site else f"site {first.name} ({first_split})"
            file = site.path / "datalist.json"
            yield Problem(site.name, file, f"patient {case.patient} stands in {split} and in {elsewhere}")


def _copies(sites: list[SiteFolder]) -> Iterator[Problem]:
    """Patients by what was imaged: one image under two names is one patient twice."""
    seen: dict[str, tuple[str, Case]] = {}
    for site in sites:
        for _, case in _cases(site):
            if not case.image_file.is_file():
                continue
            first, other = seen.setdefault(sha256(case.image_file), (site.name, case))
            if other is not case:
                message = f"the same image as case {other.name} of site {first}: one patient under two names"
                yield Problem(site.name, case.image_file, message)
