"""The lists of a site folder, datalist.json and site.json: patients from a table, splits by patient, and both files."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fedmerit.errors import BadInput
from fedmerit.files import write_json
from fedmerit.schema.scores import SERVER_SPLIT, SPLITS
from fedmerit.schema.site_folder import require_name
from fedmerit_data.folders import OVERVIEW
from fedmerit_data.preparation import Preparation
from fedmerit_data.preparing.cases import CaseOutcome, CaseTask, PreparedCase, UnusableCase, raw_files
from fedmerit_data.raw_cases import RawCase, RawSite
from fedmerit_data.tables import read_table

COLUMNS = ("site", "case", "patient")
Patients = Mapping[tuple[str, str], str]  # by site and case
FIRST_FOLD = {0: "testing", 1: "validation"}  # splits of these folds in datalist.json
MAX_NAMED = 10  # unreadable cases in one error
MAX_NAME_BYTES = 200  # of a site or a case: file names add endings


def read_patients(file: Path) -> Patients:
    """Return the table of a CSV file with the columns ``site,case,patient``.

    Patients get the names that readers give them, ``SITE-PATIENT``, also if the file has only ``PATIENT``: hospitals
    that number their patients 1, 2, 3 have none in common.

    Raises:
        BadInput: the file cannot be read, lacks a column or a value, or names a case twice.
    """
    patients: dict[tuple[str, str], str] = {}
    for line, row in read_table(file, COLUMNS):
        site, case, patient = (row[name] for name in COLUMNS)
        if not (site and case and patient):
            raise BadInput(f"{file}: line {line}: expected a value in each of the columns {', '.join(COLUMNS)}")
        if (site, case) in patients:
            raise BadInput(f"{file}: line {line}: case {case} of site {site} is listed twice; keep one line")
        patients[site, case] = patient if patient.startswith(f"{site}-") else f"{site}-{patient}"
    return patients


def with_patients(sites: Sequence[RawSite], patients: Patients, file: Path) -> list[RawSite]:
    """Return the sites with the patients of the table; cases that it does not name are unchanged.

    Raises:
        BadInput: the table names a case that does not exist.
    """
    there = {(site.name, case.name) for site in sites for case in site.cases}
    if unknown := sorted(set(patients) - there):
        site, case = unknown[0]
        others = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise BadInput(f"{file}: site {site} has no case {case}{others}; name cases as datalist.json of a site does")
    return [
        replace(
            site,
            cases=tuple(
                replace(case, patient=patients.get((site.name, case.name), case.patient)) for case in site.cases
            ),
        )
        for site in sites
    ]


def split_patients(
    site: str, patients: Sequence[str], ratios: tuple[float, float, float], seed: int, server_share: float = 0.0
) -> dict[str, str]:
    """Return the split of every patient, the same for the same seed.

    Shares as near to ``ratios`` as whole patients allow.

    A positive ratio gets at least one patient. ``server_share`` of the training patients, at least one if it is
    positive, go to the server's split instead; it moves no other patient.

    Raises:
        BadInput: fewer patients than splits to fill, or no training patient left beside the server's share.
    """
    names = sorted(set(patients))
    wanted = [int(ratio > 0) for ratio in ratios]
    if len(names) < sum(wanted):
        *first, last = (split for split, one in zip(SPLITS, wanted, strict=True) if one)
        raise BadInput(
            f"site {site}: {len(names)} patient(s), but {', '.join(first)} and {last} need one each; "
            "add patients or leave the site out (for a site that only tests, use the ratios 0,0,1)"
        )
    np.random.default_rng([seed, *site.encode()]).shuffle(names)
    counts = list(wanted)
    for _ in range(len(names) - sum(wanted)):
        short = [
            ratio * len(names) - count if ratio > 0 else -np.inf for ratio, count in zip(ratios, counts, strict=True)
        ]
        counts[int(np.argmax(short))] += 1
    training, *others = counts
    server = max(1, round(server_share * training)) if server_share > 0 and training else 0
    if server and server >= training:
        raise BadInput(
            f"site {site}: {training} training patient(s), and the server share {server_share:g} takes {server}, but "
            "one has to remain; add patients, raise the training ratio or prepare with a server share of 0"
        )
    splits = np.repeat([SPLITS[0], SERVER_SPLIT, *SPLITS[1:]], [training - server, server, *others])
    return {name: str(split) for name, split in zip(names, splits, strict=True)}


def assign_folds(site: str, volumes: Mapping[str, Sequence[float]], folds: int, seed: int) -> dict[str, int]:
    """Return the fold that tests each patient, the same for the same seed; folds differ by one patient at most.

    Patients are ordered by the mean of their cases' ``volumes``; of every ``folds`` neighbours each gets another fold,
    so each fold has small and large organs.

    Raises:
        BadInput: there are fewer patients than folds.
    """
    if len(volumes) < folds:
        raise BadInput(
            f"site {site}: {len(volumes)} patient(s), but {folds} folds need one each; prepare with fewer folds, add "
            "patients or leave the site out"
        )
    random = np.random.default_rng([seed, *site.encode(), *b"folds"])
    ordered = sorted(volumes, key=lambda patient: (np.mean(volumes[patient]), patient))
    drawn = [random.permutation(folds) for _ in range(0, len(ordered), folds)]
    return {patient: int(drawn[place // folds][place % folds]) for place, patient in enumerate(ordered)}


def require_site_name(name: str, raw: Path) -> None:
    """Raise `BadInput` if a site of ``raw`` cannot have this name, or the folder of pictures beside site folders has
    it.
    """
    require_name(name, raw)
    if name == OVERVIEW:
        raise BadInput(f"{raw}: a site is named {OVERVIEW!r}, as the folder of pictures beside site folders; rename it")


def split_site(site: RawSite, cases: Sequence[RawCase], asked: Preparation) -> dict[str, str]:
    """Return the split of every patient of a site's ``cases``; with folds, only their number is checked.

    Raises:
        BadInput: a name is too long or names two cases, or there are too few patients.
    """
    names = Counter(case.name for case in cases)
    if long := [name for name in (site.name, *names) if len(name.encode()) > MAX_NAME_BYTES]:
        raise BadInput(f"site {site.name}: the name {long[0]} is too long for its files; rename the site or the case")
    if twice := [name for name, count in names.items() if count > 1]:
        count = names[twice[0]]
        raise BadInput(
            f"site {site.name}: {count} cases have the name {twice[0]}; keep one of their files, or rename one"
        )
    if asked.folds:
        assign_folds(site.name, {case.patient: [0.0] for case in cases}, asked.folds, asked.seed)
        return {}
    patients = [case.patient for case in cases]
    return split_patients(site.name, patients, asked.ratios, asked.seed, asked.server_share)


def write_lists(site: RawSite, outcomes: Sequence[CaseOutcome], asked: Preparation) -> None:
    """Write datalist.json and site.json of one site from the ``outcomes`` of its cases.

    Raises:
        BadInput: too few patients are left, or no slice to train on.
    """
    usable = [(task, outcome) for task, outcome in outcomes if isinstance(outcome, PreparedCase)]
    unusable = [(task, outcome) for task, outcome in outcomes if isinstance(outcome, UnusableCase)]
    try:
        entries, counts = _datalist(site, usable, asked)
    except BadInput as error:
        reasons = _list_reasons([outcome.reason for _, outcome in unusable], len(outcomes))
        raise BadInput(*str(error).split("\n\t"), *reasons) from error
    folder = outcomes[0][0].array("")
    write_json(folder / "datalist.json", entries)
    left_out = [*site.left_out]
    for task, outcome in unusable:
        reason = outcome.reason.replace(f"{task.source}/", "")
        left_out += [(path.as_posix(), f"unreadable case: {reason}") for path in raw_files(task)]
    spacing = None if asked.field_of_view is None else [asked.field_of_view / asked.size] * 2
    write_json(
        folder / "site.json",
        {
            "name": site.name,
            **asked.meaning(),
            "image_size": [asked.size, asked.size],
            "spacing": spacing,
            **asked.record(),
            "licence": asked.layout.licence,
            "citation": asked.layout.citation,
            "counts": counts,
            "used": {"cases": len(usable), "files": len({path for _, finished in usable for path in finished.raw})},
            "unreadable_cases": len(unusable),
            "left_out": [{"file": name, "reason": reason} for name, reason in left_out],
            "remarks": [{"case": task.case.name, "remark": text} for task, done in usable for text in done.remarks],
            "readings": [finished.reading for _, finished in usable],
            "checksums": {name: known for _, finished in usable for name, known in finished.checksums.items()},
            "fedmerit_version": version("fedmerit"),
        },
    )


def _list_reasons(reasons: Sequence[str], cases: int) -> list[str]:
    """Return lines that say why some of a site's ``cases`` are left out."""
    if not reasons:
        return []
    more = [f"and {len(reasons) - MAX_NAMED} more"] if len(reasons) > MAX_NAMED else []
    return [f"{len(reasons)} of its {cases} cases are left out as unreadable:", *reasons[:MAX_NAMED], *more]


def _datalist(
    site: RawSite, usable: Sequence[tuple[CaseTask, PreparedCase]], asked: Preparation
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, dict[str, int]]]:
    """Return the entries of every split, and its numbers of cases, patients and slices."""
    splits = split_site(site, [task.case for task, _ in usable], asked)
    folds: dict[str, int] = {}
    if asked.folds:
        volumes = defaultdict[str, list[float]](list)
        for task, finished in usable:
            volumes[task.case.patient].append(finished.volume)
        folds = assign_folds(site.name, volumes, asked.folds, asked.seed)
        splits = {patient: FIRST_FOLD.get(fold, "training") for patient, fold in folds.items()}
    entries: dict[str, list[dict[str, Any]]] = {split: [] for split in (*SPLITS, SERVER_SPLIT)}
    counts = {split: {"cases": 0, "patients": 0, "slices": 0} for split in entries}
    for split in splits.values():
        counts[split]["patients"] += 1
    for task, finished in usable:
        split = splits[task.case.patient]
        entry: dict[str, Any] = {
            "case": task.case.name,
            "patient": task.case.patient,
            **task.arrays,
            "crop": finished.crop,
            "spacing": finished.spacing,
        }
        if folds:
            entry["fold"] = folds[task.case.patient]
        used = finished.slices
        if asked.slices == "organ" and (folds or split == "training"):
            entry["slices"] = finished.organ
            used = len(finished.organ) if split == "training" else used
        entries[split].append(entry)
        counts[split]["cases"] += 1
        counts[split]["slices"] += used
    if counts["training"]["cases"] and not counts["training"]["slices"]:
        raise BadInput(f"site {site.name}: no training slice shows the organ; prepare with slices=all or add cases")
    return entries, counts
