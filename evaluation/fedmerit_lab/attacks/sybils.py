"""Sybil attacks: site folders in which one site takes part under two names."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from fedmerit.errors import BadInput
from fedmerit.files import read_json, write_json
from fedmerit.schema.site_folder import SiteFolder, open_sites
from fedmerit.trainers.monai.samples import Slices
from fedmerit_lab.partitioning.site_writer import link_or_copy

Keep = Callable[[str, str], bool]  # of a split and a patient


def duplicate(sites: Path, site: str, out: Path, fold: int | None = None) -> list[str]:
    """Return all sites, and ``site`` a second time as ``<site>-copy``; the names of both.

    Arrays are hard links to those of ``sites`` if the file system has them, else copies.

    Args:
        sites: folder of site folders.
        site: to duplicate.
        out: folder to write them into; new.
        fold: for which they are written; None: for the splits of datalist.json.

    Raises:
        BadInput: there is no such site, or one of that name already.
    """
    chosen = _others(sites, site, [copy := f"{site}-copy"], out, fold)
    _link(chosen, out / site, lambda split, patient: True)
    _link(chosen, out / copy, lambda split, patient: True, copy_of=site)
    return [site, copy]


def split(sites: Path, site: str, out: Path, fold: int | None = None) -> list[str]:
    """Return all sites, with ``site`` replaced by ``<site>-a`` and ``<site>-b``; their names.

    Each trains on every other of its training patients. Both have all validation, test and server images, so a site
    of few patients can be split.

    Args, links and errors are those of `duplicate`; also `BadInput` if there is only one training patient.
    """
    halves = [f"{site}-a", f"{site}-b"]
    chosen = _others(sites, site, halves, out, fold)
    patients = sorted({case.patient for case in chosen.cases("training")})
    if len(patients) < 2:
        raise BadInput(f"site {site}: has one training patient, its halves need one each; choose another site")
    for number, name in enumerate(halves):
        _link(chosen, out / name, _every_other(patients[number::2]), half_of=site)
    return halves


def _every_other(own: Collection[str]) -> Keep:
    return lambda split, patient: split != "training" or patient in own


SYBILS: Mapping[str, Callable[[Path, str, Path, int | None], list[str]]] = {"duplicate": duplicate, "split": split}


def _others(sites: Path, site: str, names: list[str], out: Path, fold: int | None) -> SiteFolder:
    """Return the site, after all others are linked to below ``out``."""
    folders = {folder.name: folder for folder in open_sites(sites, fold=fold)}
    if site not in folders:
        raise BadInput(f"site {site}: {sites} holds none of that name; there are {', '.join(folders)}")
    if taken := [name for name in names if name in folders]:
        raise BadInput(f"{sites}: holds a site {taken[0]} already; rename it, or choose another site")
    for name, folder in folders.items():
        if name != site:
            _link(folder, out / name, lambda split, patient: True)
    return folders[site]


def _link(source: SiteFolder, folder: Path, keep: Keep, **about: Any) -> None:
    """Return one site folder, with what ``keep`` is true of."""
    stored = read_json(source.path / "datalist.json")
    by_case = {entry["case"]: entry for entries in stored.values() for entry in entries}
    lists = {
        split: [by_case[case.name] for case in source.splits[split] if keep(split, case.patient)] for split in stored
    }
    for entry in (entry for entries in lists.values() for entry in entries):
        for kind in ("image", "label"):
            link_or_copy(source.path / entry[kind], folder / entry[kind])
    write_json(folder / "datalist.json", lists)
    write_json(folder / "site.json", {**source.info, **about, "name": folder.name})
    made = SiteFolder(folder)
    counts = {
        split: {
            "cases": len(entries),
            "patients": len({entry["patient"] for entry in entries}),
            "slices": len(Slices(made.cases(split))),
        }
        for split, entries in lists.items()
    }
    write_json(folder / "site.json", {**made.info, "counts": counts})
