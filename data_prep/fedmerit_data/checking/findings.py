"""What ``fedmerit check`` can find, and how each finding is told: to the hospital itself, and to others."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from fedmerit.trainers.monai_trainer.data import Case, SiteFolder


class Severity(StrEnum):
    """How much a finding matters: an error has to be put right, a warning looked at, a note known."""

    error = "error"
    warning = "warning"
    note = "note"


# What is told to others has to be true of every finding of a kind: these words and numbers, never a message.
KINDS: Mapping[str, tuple[Severity, str]] = {
    "no sites": (Severity.error, "there is no site folder to look into"),
    "unreadable site": (Severity.error, "site.json or datalist.json is missing, unreadable or lacks a field"),
    "site name": (Severity.error, "the folder and site.json name the site differently"),
    "unlike sites": (Severity.error, "sites that train together were not prepared alike"),
    "empty split": (Severity.error, "a split has no case"),
    "no such split": (Severity.note, "a split was left empty on purpose: the site can be evaluated on, not take part"),
    "repeated case": (Severity.error, "a case is listed more than once"),
    "count": (Severity.error, "datalist.json and site.json count the cases differently"),
    "missing file": (Severity.error, "a listed file is not there"),
    "no checksum": (Severity.error, "site.json has no checksum of a listed file"),
    "changed file": (Severity.error, "a file is not what it was when it was prepared"),
    "unlisted file": (Severity.error, "a file is there or has a checksum, but is not listed"),
    "unreadable array": (Severity.error, "a file does not hold a readable array"),
    "array": (Severity.error, "an array has another type or shape than site.json says"),
    "not finite": (Severity.error, "an image holds values that are not finite"),
    "label value": (Severity.error, "a mask holds other values than 0 and 1"),
    "slices": (Severity.error, "slices are listed that the volume does not have"),
    "empty mask": (Severity.error, "more masks lack a label altogether than is allowed"),
    "patient in two splits": (Severity.error, "one patient's images are in two splits: test results would be too good"),
    "patient in two sites": (Severity.error, "one patient is named in two sites"),
    "copy": (Severity.error, "one and the same image stands for two cases"),
    "leak": (Severity.error, "two splits or sites hold nearly the same image: test results would be too good"),
    "near-duplicate": (Severity.warning, "two cases of one split show nearly the same image"),
    "label convention": (Severity.error, "the site's labels seem to mean something else than agreed, or are swapped"),
    "label order": (Severity.warning, "one label should lie within another, and does not in this case"),
    "implausible size": (Severity.warning, "the label is larger or smaller than the organ can be"),
    "implausible volume": (Severity.warning, "the organ measures more or less millilitres than is known of any"),
    "unknown volume": (Severity.note, "volumes in ml are not checked: slice distances are not stated, or nominal"),
    "unusual size": (Severity.warning, "the label is far larger or smaller than in the cases of all sites"),
    "mask at border": (Severity.warning, "the mask touches the border of the frame: the organ may be cut off"),
    "mask at end": (Severity.note, "the mask reaches the first or the last slice: the organ may be cut off"),
    "flipped": (Severity.warning, "the image looks more like the site's others when it is flipped"),
    "flat image": (Severity.error, "the image holds a single value"),
    "unusual intensities": (Severity.warning, "the intensities are far from those of the site's other cases"),
    "few patients": (Severity.warning, "a split has so few patients that its results say little"),
}


@dataclass(frozen=True)
class Finding:
    """One finding. ``file`` and ``message`` are for the hospital itself, everything else may be shared.

    ``split`` and ``position`` (within the split, from 0, as results.csv numbers cases) are empty where the finding
    is about no single case; ``detail`` holds numbers, labels, splits and sites, no name of a file, case or patient.
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
        """That of its kind."""
        return KINDS[self.kind][0]

    def __str__(self) -> str:
        return f"{self.file}: {self.message}"

    @property
    def shareable(self) -> dict[str, str]:
        """What others may be told, one row of the report."""
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
class Located:
    """A case and where it stands."""

    site: SiteFolder
    split: str
    position: int
    case: Case

    def __str__(self) -> str:
        return f"case {self.case.name} of site {self.site.name} ({self.split})"

    @property
    def shareable(self) -> str:
        """Where it stands, without its name."""
        return f"{self.site.name} {self.split} {self.position:03d}"

    def finding(self, kind: str, message: str, *, file: Path | None = None, detail: str = "") -> Finding:
        """One about this case; its image is the file to look at unless another is named."""
        return Finding(
            kind, self.site.name, file or self.case.image_file, message, self.split, f"{self.position:03d}", detail
        )


def located(site: SiteFolder) -> list[Located]:
    """Every case of a site, split by split, in the order of datalist.json."""
    return [
        Located(site, split, position, case)
        for split, cases in site.splits.items()
        for position, case in enumerate(cases)
    ]
