"""Patients whom a run trained on or chose its model by, as keyed hashes that stay at the site.

`fedmerit evaluate` looks them up, so that nobody is tested on patients that the model has seen. The key is the digest
of the run's plan: hashes of two runs do not show that they have patients in common.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel

from fedmerit.errors import BadInput
from fedmerit.files import read_json, write_json
from fedmerit.schema.declarations import read
from fedmerit.schema.scores import SERVER_SPLIT
from fedmerit.schema.site_folder import Case, SiteFolder

FILE = "seen_patients.json"
USES = {"training": "training", "validation": "validation", SERVER_SPLIT: "validation"}  # by split


class SeenPatients(BaseModel):
    """The patients and images that a site's part of a run used, by `USES`, as hashes with ``key``."""

    key: str
    patients: Mapping[str, tuple[str, ...]]
    images: Mapping[str, tuple[str, ...]]

    def use_of(self, site: SiteFolder, case: Case, same_site: bool) -> str:
        """Return what a case's patient or image was used for, "" if for nothing.

        Patients are compared by name if it is the ``same_site``, images always.
        """
        digest = image_digest(site, case)
        for use in ("training", "validation"):
            if same_site and _hash(self.key, _name(site, case)) in self.patients.get(use, ()):
                return use
            if digest and _hash(self.key, digest) in self.images.get(use, ()):
                return use
        return ""


def note_patients(folder: Path, site: SiteFolder, key: str) -> None:
    """Add the patients and images of a site's splits to those that a run has seen, in the site's folder of the run."""
    before = read_seen(folder)
    patients, images = (
        {use: set(stated.get(use, ())) for use in ("training", "validation")}
        for stated in ((before.patients, before.images) if before else ({}, {}))
    )
    for split, use in USES.items():
        for case in site.splits[split]:
            patients[use].add(_hash(key, _name(site, case)))
            if digest := image_digest(site, case):
                images[use].add(_hash(key, digest))
    both = {"patients": patients, "images": images}
    plain = {what: {use: sorted(hashes) for use, hashes in by_use.items()} for what, by_use in both.items()}
    noted = {"key": key, **plain}
    if before is None or before.model_dump(mode="json") != noted:
        write_json(folder / FILE, noted)


def read_seen(folder: Path) -> SeenPatients | None:
    """Return the patients that a site's part of a run has seen, None if they were not noted.

    Raises:
        BadInput: the file holds something else.
    """
    file = folder / FILE
    return read(SeenPatients, read_json(file), file) if file.is_file() else None


def drop_seen(run: Path, site: SiteFolder, cases: Sequence[Case]) -> tuple[list[Case], str]:
    """Return the cases of patients that a run has not seen, and a sentence on the others, "" if there are none.

    Raises:
        BadInput: the run has seen all of them.
    """
    noted = {folder.name: read_seen(folder) for folder in sorted((run / "sites").glob("*")) if folder.is_dir()}
    used: dict[str, list[Case]] = {"training": [], "validation": []}
    left: list[Case] = []
    for case in cases:
        uses = {seen.use_of(site, case, name == site.name) for name, seen in noted.items() if seen}
        use = next((use for use in used if use in uses), "")
        (used[use] if use else left).append(case)
    if len(left) == len(cases):
        return left, ""
    seen = "; ".join(
        f"{'trained on' if use == 'training' else 'chosen by'}: {', '.join(case.name for case in of_use)}"
        for use, of_use in used.items()
        if of_use
    )
    way = "prepare with --like and the folders that the run was trained on, so patients keep their splits"
    if not left:
        raise BadInput(f"site {site.name}: {run} has seen the patients of all {len(cases)} cases ({seen}); {way}")
    return left, (
        f"site {site.name}: {len(cases) - len(left)} of {len(cases)} cases are not scored, since {run} has seen their "
        f"patients ({seen}); {way}"
    )


def image_digest(site: SiteFolder, case: Case) -> str:
    """Return the checksum of a case's image in site.json, "" if it has none."""
    name = case.image_file.relative_to(site.path).as_posix() if case.image_file.is_relative_to(site.path) else ""
    return str(site.info.get("checksums", {}).get(name, ""))


def _name(site: SiteFolder, case: Case) -> str:
    return case.patient.removeprefix(f"{site.name}-")


def _hash(key: str, name: str) -> str:
    return hmac.digest(key.encode(), name.encode(), hashlib.sha256).hex()
