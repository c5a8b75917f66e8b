"""Raw data sets and synthetic sites to site folders, or a description of what would be read: ``fedmerit prepare``."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedmerit.errors import BadInput
from fedmerit.files import flush_files
from fedmerit_data.folders import OVERVIEW, is_occupied, new_folder, partial_folder, partial_path, require_free
from fedmerit_data.kinds import GENERIC
from fedmerit_data.preparation import Preparation
from fedmerit_data.preparing.cases import CaseTask, ProgressReport, prepare_cases
from fedmerit_data.preparing.resumption import is_published, keep_finished_cases, remove_leftovers, start_or_resume
from fedmerit_data.preparing.site_lists import find_sites, require_site_name, split_site, write_lists
from fedmerit_data.raw_cases import Decoded, RawCase, RawSite
from fedmerit_data.readers.generic import propose_pairs
from fedmerit_data.readers.label_map import ANY
from fedmerit_data.readers.lists import ROWS, pair_rows
from fedmerit_data.tables import write_csv


def prepare(asked: Preparation, out: Path, *, jobs: int = 1, progress: ProgressReport | None = None) -> list[Path]:
    """Write one site folder per site below ``out`` and return them, sorted by name; all of them or none.

    Cases are finished one by one in a hidden folder beside ``out``, which is kept after an interruption or a bad case:
    the same call then continues from there.

    Args:
        out: Folder to make; must be absent or empty.
        jobs: Number of processes; the files do not depend on it. A script that asks for more than one needs an
            ``if __name__ == "__main__"`` guard, since the processes import it.
        progress: Called with site, cases done and cases in all; default: bars on the terminal.

    Raises:
        BadInput: a raw file is unusable, or an interrupted call had other options.
    """
    if jobs < 1:
        raise BadInput(f"jobs {jobs}: expected 1 or more")
    out, layout = Path(out), asked.layout
    raw = asked.raw_folder(out)
    options = asked.array_options(raw)  # reads earlier site folders, before anything is made
    if layout.generate is not None:
        _require_apart(raw, out)
    if not partial_path(out).exists():
        require_free(out)
    with partial_folder(out) as folder:
        if not is_published(folder, out, asked):
            require_free(out)
            resumed = start_or_resume(folder, out, options)
            with keep_finished_cases(folder) as new:
                if layout.generate is not None and not (resumed and is_occupied(raw)):
                    _generate(asked, raw)
                    new.append(raw)
                sites = find_sites(asked, raw)
                for site in sites:
                    require_site_name(site.name, raw)
                _write_sites(asked, sites, raw, folder, jobs, progress)
            flush_files(path for path in (folder / "sites").rglob("*") if path.is_file())
            (folder / "sites").replace(out)
        shutil.rmtree(folder)
    return sorted(file.parent for file in out.glob("*/site.json"))


def _require_apart(raw: Path, out: Path) -> None:
    raw, out = raw.resolve(), out.resolve()
    if raw.is_relative_to(out) or out.is_relative_to(raw):
        raise BadInput(f"{raw}: raw files and site folders ({out}) need separate folders, neither within the other")


def _generate(asked: Preparation, raw: Path) -> None:
    """Write a synthetic kind's raw files, all of them or none."""
    assert asked.layout.generate is not None
    with new_folder(raw) as folder:
        asked.layout.generate(folder, asked.seed, asked.patients)


def _write_sites(
    asked: Preparation, sites: Sequence[RawSite], raw: Path, folder: Path, jobs: int, progress: ProgressReport | None
) -> None:
    """Decode, crop, resize and store every case, then split each site's patients and list its cases."""
    for site in sites:
        split_site(site, site.cases, asked)  # an error about too few patients comes now, not after hours
    apart = None if asked.data_plan is None else asked.data_plan.slice_distance
    tasks = [
        CaseTask(
            asked.layout, raw, site.name, case, folder, asked.size, asked.field_of_view, asked.crop_multiple, apart
        )
        for site in sites
        for case in site.cases
    ]
    outcomes = prepare_cases(tasks, jobs, asked.skip_unreadable, progress)
    remove_leftovers(folder / "sites", outcomes)
    for site in sites:
        write_lists(site, [step for step in outcomes if step[0].site == site.name], asked)
    if asked.pictures:
        from fedmerit_data.overview import draw  # imports matplotlib

        draw(folder / "sites", folder / "sites" / OVERVIEW)


@dataclass(frozen=True)
class SiteDescription:
    """A site, and the first of its cases."""

    site: RawSite
    patients: int
    first: RawCase
    decoded: Decoded | None  # None: it cannot be read with these options
    faults: tuple[str, ...]  # the reasons, and why its patients cannot be split

    def lines(self, labels: tuple[str, ...]) -> list[str]:
        """Return the description as text."""
        lines = [
            f"site {self.site.name}: {len(self.site.cases)} cases of {self.patients} patients",
            f"  first image: {self.first.image}{''.join(f' + {part.path.name}' for part in self.first.channels[1:])}",
            f"  first mask: {self.first.label}",
        ]
        if self.decoded is not None:
            slices, channels, height, width = self.decoded.image.shape
            low, high = float(self.decoded.image.min()), float(self.decoded.image.max())
            spacing = self.decoded.spacing
            known = f"{spacing[0]:.3g} x {spacing[1]:.3g} mm" if spacing else "mm not known"
            distance = self.decoded.slice_distance
            apart = f", slices {distance:.3g} mm apart" if distance else ""
            lines.append(
                f"  read as {slices} slice(s) of {height} x {width} pixels, {channels} channel(s), {known}{apart}; "
                f"intensities {low:.5g} to {high:.5g}"
            )
            shares = self.decoded.label.mean(axis=(0, 2, 3), dtype=np.float64)
            lines += [f"  label {name}: {share:.2%} of it" for name, share in zip(labels, shares, strict=True)]
            lines += [f"  remark: {remark}" for remark in self.decoded.remarks]
        lines += [f"  remark: {remark}" for remark in self.site.remarks]
        if self.site.left_out:
            name, reason = self.site.left_out[0]
            lines.append(f"  left out: {len(self.site.left_out)} files, the first {name}: {reason}")
        return lines + [f"  cannot be prepared: {fault}" for fault in self.faults]


def describe(asked: Preparation) -> list[SiteDescription]:
    """Return every site that would be prepared; writes nothing, and reads one case of each.

    Raises:
        BadInput: the kind generates its images, or no site is found.
    """
    if asked.source is None:
        raise BadInput(
            f"kind {asked.kind}: generates its images, so there is nothing to describe; leave out --describe"
        )
    source = Path(asked.source)
    sites = find_sites(asked, source)
    return [_describe_site(site, source, asked) for site in sites]


def write_pairs(asked: Preparation, file: Path) -> int:
    """Write the table of pairs of what would be read, to be corrected and given back, and return its rows.

    Raises:
        BadInput: the kind is not ``generic``, or ``file`` exists.
    """
    if asked.kind != GENERIC or asked.source is None:
        raise BadInput(f"kind {asked.kind}: has a fixed layout; a table of pairs belongs to kind {GENERIC}")
    if file.exists():
        raise BadInput(f"{file}: exists and is left unchanged; move it, or give it back with --pairs")
    source = Path(asked.source)
    try:
        found = find_sites(asked, source)
        rows = [row for site in found for case in site.cases for row in pair_rows(source, site.name, case)]
    except BadInput:  # what is found without images, masks or channels that are missing
        rows = propose_pairs(source, None if asked.site_lookup else asked.site, asked.labels or ANY)
    import pandas as pd  # takes a second to import

    write_csv(file, pd.DataFrame(rows, columns=list(ROWS)))
    return len(rows)


def _describe_site(site: RawSite, source: Path, asked: Preparation) -> SiteDescription:
    faults, first, decoded = [], site.cases[0], None
    try:
        require_site_name(site.name, source)
        split_site(site, site.cases, asked)
    except BadInput as error:
        faults.append(str(error))
    try:
        decoded = asked.layout.decode(first)
    except Exception as error:  # the error of `prepare`
        faults.append(str(error) if isinstance(error, BadInput) else f"{first.image}: not readable ({error})")
    return SiteDescription(site, len({case.patient for case in site.cases}), first, decoded, tuple(faults))
