"""Raw public data sets and generated sites to site folders: ``fedmerit prepare``."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit_data.folders import OVERVIEW, holds_something, new_folder, partial_folder, partial_of, require_free
from fedmerit_data.preparation import Preparation
from fedmerit_data.preparing.all_cases import Report, prepare_cases
from fedmerit_data.preparing.cases import Work
from fedmerit_data.preparing.interruption import begin, is_published, keeping_finished, sweep
from fedmerit_data.preparing.lists import require_site_name, split_site, write_lists
from fedmerit_data.preparing.patients import read_patients, with_patients
from fedmerit_data.raw import RawSite


def prepare(asked: Preparation, out: Path, *, jobs: int = 1, progress: Report | None = None) -> list[Path]:
    """Write one site folder per site below ``out`` and return them, sorted by name; all of them or none.

    Cases are finished one by one in a hidden folder beside ``out``, which outlives an interruption or a bad case:
    the same call then goes on from there.

    Args:
        asked: What of which raw data.
        out: Folder to make; must be absent or empty.
        jobs: Processes to share the cases among; what is written does not depend on it. A script that asks for more
            than one has to guard its own start by ``if __name__ == "__main__"``, since they import it.
        progress: Called with site, cases done and cases in all; bars on the terminal where not given.

    Raises:
        BadInput: a raw file is unusable, or an interrupted call had other options.
    """
    if jobs < 1:
        raise BadInput(f"jobs {jobs}: expected 1 or more")
    out, layout = Path(out), asked.layout
    patients = {} if asked.patient_table is None else read_patients(asked.patient_table)
    raw = asked.raw_folder(out)
    if layout.generate is not None:
        _require_apart(raw, out)
    if not partial_of(out).exists():
        require_free(out)
    with partial_folder(out) as folder:
        if not is_published(folder, out, asked):
            require_free(out)
            resumed = begin(folder, out, asked.options_of_arrays(raw))
            with keeping_finished(folder) as new:
                if layout.generate is not None and not (resumed and holds_something(raw)):
                    _generate(asked, raw)
                    new.append(raw)
                sites = layout.find_sites(raw)
                for site in sites:
                    require_site_name(site.name, raw)
                if asked.patient_table is not None:
                    sites = with_patients(sites, patients, asked.patient_table)
                _write_sites(asked, sites, raw, folder, jobs, progress)
            (folder / "sites").replace(out)
        shutil.rmtree(folder)
    return sorted(file.parent for file in out.glob("*/site.json"))


def _require_apart(raw: Path, out: Path) -> None:
    raw, out = raw.resolve(), out.resolve()
    if raw.is_relative_to(out) or out.is_relative_to(raw):
        raise BadInput(f"{raw}: raw files and site folders ({out}) need folders apart, neither within the other")


def _generate(asked: Preparation, raw: Path) -> None:
    """Write a synthetic kind's raw files, all of them or none."""
    assert asked.layout.generate is not None
    with new_folder(raw) as folder:
        asked.layout.generate(folder, asked.seed, asked.patients)


def _write_sites(
    asked: Preparation, sites: Sequence[RawSite], raw: Path, folder: Path, jobs: int, progress: Report | None
) -> None:
    """Decode, crop, resize and store every case, then split each site's patients and list its cases."""
    for site in sites:
        split_site(site, site.cases, asked)  # too few patients: better told now than after hours
    works = [
        Work(asked.layout, raw, site.name, case, folder, asked.size, asked.field_of_view, asked.crop_multiple)
        for site in sites
        for case in site.cases
    ]
    outcomes = prepare_cases(works, jobs, asked.skip_unreadable, progress)
    sweep(folder / "sites", outcomes)
    for site in sites:
        write_lists(site, [step for step in outcomes if step[0].site == site.name], asked)
    if asked.pictures:
        from fedmerit_data.pictures import draw  # imports matplotlib

        draw(folder / "sites", folder / "sites" / OVERVIEW)
