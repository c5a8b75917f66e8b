"""What `check` finds of site folders: their state and everything wrong with them."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedmerit.files import sha256
from fedmerit.trainers.monai_trainer.data import SiteFolder
from fedmerit_data.checking.findings import Finding, Severity


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


def state_of(site: SiteFolder, checksums: Mapping[Path, str], unchanged: bool) -> SiteState:
    """That of a site; ``checksums`` are those of all arrays, ``unchanged`` whether its own are as prepared."""
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
