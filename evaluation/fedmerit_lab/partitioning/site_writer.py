"""One site folder of a partition: arrays, datalist.json, site.json."""

import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fedmerit.errors import BadInput
from fedmerit.files import sha256, write_atomically, write_json
from fedmerit.schema.scores import SERVER_SPLIT, SPLITS
from fedmerit.schema.site_folder import SiteFolder, load_array
from fedmerit_data.preparing.sources import copy_sources
from fedmerit_lab.partitioning.assignment import Patient, PooledCase
from fedmerit_lab.partitioning.label_noise import Disturbed

# Fields of site.json that describe one site; all others describe its cases and are merged from the sources.
CREDITS = {"licence", "citation", "source"}
SITE_FIELDS = {
    *("name", "folds", "counts", "used", "unreadable_cases", "left_out", "remarks", "readings", "checksums"),
    *("partition", "fedmerit_version"),
}


def write_site(
    folder: Path,
    patients: Sequence[Patient],
    wrong: Mapping[str, Disturbed],
    about: Mapping[str, Any],
    inverted: Sequence[str] = (),
) -> None:
    """Write the folder of a site with these patients.

    Args:
        folder: Absent.
        patients: Their cases are stored.
        wrong: By case, masks to store instead of its own.
        about: The field ``partition`` of site.json.
        inverted: Sources whose images are stored with bright and dark exchanged.

    Raises:
        BadInput: an array is missing, or site.json has no checksum of it.
    """
    entries: dict[str, list[dict[str, Any]]] = {split: [] for split in (*SPLITS, SERVER_SPLIT)}
    counts = {split: {"cases": 0, "patients": 0, "slices": 0} for split in entries}
    checksums: dict[str, str] = {}
    said: dict[str, list[dict[str, Any]]] = {"remarks": [], "readings": []}
    for patient in sorted(patients, key=lambda patient: patient.name):
        counts[patient.split]["patients"] += 1
        for item in patient.cases:
            used = item.case.slices
            counts[patient.split]["cases"] += 1
            counts[patient.split]["slices"] += len(load_array(item.case.image_file)) if used is None else len(used)
            stored = _write_case(folder, item, wrong.get(item.name), item.source.name in inverted)
            checksums |= dict(stored.values())
            files = {key: name for key, (name, _) in stored.items()}
            entry = {name: value for name, value in item.entry.items() if name != "fold" or patient.fold is not None}
            entries[patient.split].append({**entry, "case": item.name, "origin": item.source.name, **files})
            for key, of_all in said.items():
                stated = item.source.info.get(key, ())
                of_all += [{**one, "case": item.name} for one in stated if one["case"] == item.case.name]
    copy_sources(folder, [(item.name, item.source, item.case.name) for patient in patients for item in patient.cases])
    sources = {patient.source.name: patient.source for patient in patients}
    write_json(folder / "datalist.json", entries)
    write_json(
        folder / "site.json",
        {
            "name": folder.name,
            **_merge_infos([sources[name].info for name in sorted(sources)]),
            **({"folds": patients[0].source.folds} if patients[0].fold is not None else {}),
            "counts": counts,
            "used": {"cases": sum(count["cases"] for count in counts.values()), "files": len(checksums)},
            "unreadable_cases": 0,
            "left_out": [],
            **said,
            "partition": {**about, "origin": _origin(patients, sources)},
            "checksums": checksums,
            "fedmerit_version": version("fedmerit"),
        },
    )


def _write_case(folder: Path, item: PooledCase, wrong: Disturbed | None, inverted: bool) -> dict[str, tuple[str, str]]:
    """Store image and label of a case in a site's folder; returns file name and checksum by key."""
    files = {"image": item.case.image_file, "label": item.case.label_file}
    for file in files.values():
        load_array(file)  # BadInput if it is missing, before anything is written
    stored = {}
    for key, file in files.items():
        name, changed = f"cases/{item.name}_{key}.npy", None
        if key == "label" and wrong is not None:
            changed = wrong.label
        elif key == "image" and inverted:
            changed = np.negative(load_array(file))  # 0 is the middle in every normalisation
        if changed is None:
            link_or_copy(file, folder / name)
            stored[key] = name, _stated_checksum(item.source, file)
        else:
            write_atomically(folder / name, partial(np.save, arr=changed))
            stored[key] = name, sha256(folder / name)
    return stored


def link_or_copy(source: Path, target: Path) -> None:
    """Make ``target`` a hard link to ``source``, or a copy if the file system has no links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def _origin(patients: Sequence[Patient], sources: Mapping[str, SiteFolder]) -> list[dict[str, Any]]:
    """Return how many patients of each split come from which site."""
    there = Counter((patient.source.name, patient.split) for patient in patients)
    return [
        {
            "site": name,
            "site_json": sha256(sources[name].path / "site.json"),
            "patients": {split: there[name, split] for split in (*SPLITS, SERVER_SPLIT)},
        }
        for name in sorted(sources)
    ]


def _stated_checksum(source: SiteFolder, file: Path) -> str:
    """Return the checksum that site.json has of an array, so ``fedmerit check`` finds later changes."""
    name = file.relative_to(source.path).as_posix()
    try:
        return str(source.info["checksums"][name])
    except KeyError:
        raise BadInput(f"{source.path / 'site.json'}: has no checksum of {name}; prepare the site again") from None


def _merge_infos(infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields that the sources share: None if they differ; `CREDITS` are listed one after the other."""
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for info in infos for name in info if name not in SITE_FIELDS):
        values: list[Any] = []
        for value in (info.get(name) for info in infos):
            if value not in values:
                values.append(value)
        listed = "; ".join(str(value) for value in values if value) if name in CREDITS else None
        merged[name] = values[0] if len(values) == 1 else listed
    return merged
