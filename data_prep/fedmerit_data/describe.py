"""What `prepare` would read, before anything is written: ``fedmerit prepare --describe``."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedmerit.errors import BadInput
from fedmerit_data.preparation import Preparation
from fedmerit_data.preparing.lists import require_site_name, split_site
from fedmerit_data.preparing.patients import read_patients, with_patients
from fedmerit_data.raw import Decoded, RawCase, RawSite


@dataclass(frozen=True)
class Described:
    """One site, and the first of its cases."""

    site: RawSite
    patients: int
    first: RawCase
    decoded: Decoded | None  # None: it cannot be read, or not as asked
    faults: tuple[str, ...]  # why, and why its patients cannot be split

    def lines(self, labels: tuple[str, ...]) -> list[str]:
        """In words."""
        told = [
            f"site {self.site.name}: {len(self.site.cases)} cases of {self.patients} patients",
            f"  first image: {self.first.image}{''.join(f' + {path.name}' for path in self.first.channels)}",
            f"  first mask: {self.first.label}",
        ]
        if self.decoded is not None:
            slices, channels, height, width = self.decoded.image.shape
            low, high = float(self.decoded.image.min()), float(self.decoded.image.max())
            spacing = self.decoded.spacing
            known = f"{spacing[0]:.3g} x {spacing[1]:.3g} mm" if spacing else "mm not known"
            distance = self.decoded.slice_distance
            apart = f", slices {distance:.3g} mm apart" if distance else ""
            told.append(
                f"  read as {slices} slice(s) of {height} x {width} pixels, {channels} channel(s), {known}{apart}; "
                f"intensities {low:.5g} to {high:.5g}"
            )
            shares = self.decoded.label.mean(axis=(0, 2, 3), dtype=np.float64)
            told += [f"  label {name}: {share:.2%} of it" for name, share in zip(labels, shares, strict=True)]
            told += [f"  noted: {remark}" for remark in self.decoded.remarks]
        if self.site.left_out:
            name, reason = self.site.left_out[0]
            told.append(f"  left out: {len(self.site.left_out)} files, the first {name}: {reason}")
        return told + [f"  cannot be prepared so: {fault}" for fault in self.faults]


def describe(asked: Preparation) -> list[Described]:
    """Every site that would be prepared; writes nothing, and reads one case of each.

    Raises:
        BadInput: the kind generates its images, or no site is found.
    """
    if asked.source is None:
        raise BadInput(f"kind {asked.kind}: generates its images, so that there is nothing to describe before")
    source = Path(asked.source)
    sites = asked.layout.find_sites(source)
    if asked.patient_table is not None:
        sites = with_patients(sites, read_patients(asked.patient_table), asked.patient_table)
    return [_described(site, source, asked) for site in sites]


def _described(site: RawSite, source: Path, asked: Preparation) -> Described:
    faults, first, decoded = [], site.cases[0], None
    try:
        require_site_name(site.name, source)
        split_site(site, site.cases, asked)
    except BadInput as error:
        faults.append(str(error))
    try:
        decoded = asked.layout.decode(first)
    except Exception as error:  # what `prepare` would say of it
        faults.append(str(error) if isinstance(error, BadInput) else f"{first.image}: not readable ({error})")
    return Described(site, len({case.patient for case in site.cases}), first, decoded, tuple(faults))
