"""What ``fedmerit check`` can find: kinds of findings with their severity, and the state of a site.

A finding has a private part for the hospital itself and a part without names that may be shared.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from fedmerit.files import sha256
from fedmerit.schema.site_folder import Case, SiteFolder


class Severity(StrEnum):
    """A finding's severity: correct an error, look at a warning, know a note."""

    error = "error"
    warning = "warning"
    note = "note"


# Others read only the kind, these words and the numbers of a finding, never its message.
KINDS: Mapping[str, tuple[Severity, str]] = {
    "no sites": (Severity.error, "no site folder found"),
    "unreadable site": (Severity.error, "site.json or datalist.json is missing, unreadable or lacks a field"),
    "site name": (Severity.error, "the folder and site.json name the site differently"),
    "unlike sites": (Severity.error, "sites that train together were not prepared alike"),
    "empty split": (Severity.error, "a split has no cases"),
    "no such split": (Severity.note, "a split was left empty on purpose: the site can be evaluated on, not take part"),
    "folds": (Severity.error, "the folds are not as prepared: a patient is in two, one is empty, or lists differ"),
    "repeated case": (Severity.error, "a case is listed more than once"),
    "count": (Severity.error, "datalist.json and site.json count the cases differently"),
    "missing file": (Severity.error, "a listed file is missing"),
    "no checksum": (Severity.error, "site.json has no checksum of a listed file"),
    "changed file": (Severity.error, "a file changed since it was prepared"),
    "unlisted file": (Severity.error, "a file exists or has a checksum, but is not listed"),
    "unreadable array": (Severity.error, "a file is not a readable array"),
    "array": (Severity.error, "an array has another type or shape than site.json says"),
    "not finite": (Severity.error, "an image holds values that are not finite"),
    "label value": (Severity.error, "a mask holds other values than 0 and 1"),
    "slices": (Severity.error, "slices are listed that the volume does not have"),
    "empty mask": (Severity.error, "more masks lack a label entirely than is allowed"),
    "patient in two splits": (Severity.error, "one patient's images are in two splits: test results would be too good"),
    "patient in two sites": (Severity.error, "one patient is named in two sites"),
    "similar patients": (
        Severity.warning,
        "names in two splits differ only by their ends: perhaps one patient's visits",
    ),
    "overlapping releases": (Severity.error, "two public releases hold the same patients under other names"),
    "copy": (Severity.error, "two cases have the same image"),
    "leak": (Severity.error, "two splits or sites hold nearly the same image: test results would be too good"),
    "near-duplicate": (Severity.warning, "two cases of one split show nearly the same image"),
    "not compared": (Severity.note, "images of so few pixels that nearly the same ones are not looked for"),
    "label convention": (Severity.error, "the site's labels seem to mean something else than agreed, or are swapped"),
    "label order": (Severity.warning, "one label should be within another, and is not in this case"),
    "implausible size": (Severity.warning, "the label is larger or smaller than the organ can be"),
    "implausible volume": (Severity.warning, "the organ's volume in ml is outside the known range"),
    "unknown volume": (Severity.note, "volumes in ml are not checked: slice distances are not stated"),
    "unusual size": (Severity.warning, "the label is far larger or smaller than in the cases of all sites"),
    "mask at border": (Severity.warning, "the mask touches the border of the frame: the organ may be cut off"),
    "mask at end": (Severity.note, "the mask reaches the first or the last slice: the organ may be cut off"),
    "flipped": (Severity.warning, "the image looks more like the site's others when it is flipped"),
    "flat image": (Severity.error, "all pixels of the image have one value"),
    "mostly flat image": (Severity.warning, "90 % of the pixels of the image or more have one value"),
    "unusual intensities": (Severity.warning, "the intensities are far from those of the site's other cases"),
    "lost in resizing": (Severity.warning, "pieces of a label are gone at this size: prepare at a larger one"),
    "volume changed": (Severity.warning, "resizing changed the volume of a label by more than a tenth"),
    "values cut": (Severity.warning, "most values are beyond the window: another --modality, or no Hounsfield units"),
    "another plane": (Severity.warning, "the slices are in another plane than most of all sites"),
    "site remark": (Severity.note, "the preparation noted something on patients or lists; site.json has it"),
    "left out": (Severity.note, "files of the source were left out; site.json has the reasons"),
    "few patients": (Severity.warning, "a split has so few patients that its results say little"),
}


@dataclass(frozen=True)
class Finding:
    """A finding. ``file`` and ``message`` are for the hospital itself, everything else may be shared.

    ``split`` and ``position`` (within the split, from 0, as results.csv numbers cases) are empty if the finding
    is not about a single case; ``detail`` has numbers, labels, splits and sites, no name of a file, case or patient.
    """

    kind: str
    site: str
    file: Path
    message: str
    split: str = ""
    position: str = ""
    detail: str = ""

    @property
    def severity(self) -> Severity:
        """The severity of the finding's kind."""
        return KINDS[self.kind][0]

    def __str__(self) -> str:
        return f"{self.file}: {self.message}"

    @property
    def shareable(self) -> dict[str, str]:
        """The part that may be shared, one row of the report."""
        return {
            "severity": self.severity.value,
            "kind": self.kind,
            "site": self.site,
            "split": self.split,
            "position": self.position,
            "detail": self.detail,
            "meaning": KINDS[self.kind][1],
        }


@dataclass(frozen=True)
class LocatedCase:
    """A case with its site, split and position."""

    site: SiteFolder
    split: str
    position: int
    case: Case

    def __str__(self) -> str:
        return f"case {self.case.name} of site {self.site.name} ({self.split})"

    @property
    def shareable(self) -> str:
        """The site, split and position, without its name."""
        return f"{self.site.name} {self.split} {self.position:03d}"

    def finding(self, kind: str, message: str, *, file: Path | None = None, detail: str = "") -> Finding:
        """Return a finding about this case; ``file`` is its image by default."""
        return Finding(
            kind, self.site.name, file or self.case.image_file, message, self.split, f"{self.position:03d}", detail
        )


def locate_cases(site: SiteFolder) -> list[LocatedCase]:
    """Return every case of a site, split by split, in the order of datalist.json."""
    return [
        LocatedCase(site, split, position, case)
        for split, cases in site.splits.items()
        for position, case in enumerate(cases)
    ]


@dataclass(frozen=True)
class SiteState:
    """A site's content, and whether it is as prepared.

    ``unchanged`` means that the arrays are exactly those of which site.json has checksums, with equal checksums.
    ``digest`` is the SHA-256 over site.json, datalist.json and every array: equal digests mean equal sites, byte for
    byte, so a site whose digest equals the one noted after the preparation did not change since.
    """

    name: str
    cases: Mapping[str, int]
    patients: Mapping[str, int]
    digest: str
    unchanged: bool

    @property
    def short_digest(self) -> str:
        """The first 64 bits of the digest in groups of four, to compare by phone."""
        return " ".join(self.digest[start : start + 4] for start in range(0, 16, 4))


@dataclass(frozen=True)
class Examination:
    """An examination's findings, errors first, and the state of every site that could be opened."""

    sites: tuple[SiteState, ...]
    findings: tuple[Finding, ...]

    def of(self, severity: Severity) -> list[Finding]:
        """Return the findings of one severity."""
        return [finding for finding in self.findings if finding.severity is severity]


def read_site_state(site: SiteFolder, checksums: Mapping[Path, str], unchanged: bool) -> SiteState:
    """Return the state of a site.

    ``checksums`` are those of all arrays; ``unchanged`` says whether the site's arrays are as prepared.
    """
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
