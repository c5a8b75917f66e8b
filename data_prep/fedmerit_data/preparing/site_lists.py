"""The lists of a site folder, datalist.json and site.json: patients from a table, splits by patient, and both files."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmerit.errors import BadInput
from fedmerit.files import write_json
from fedmerit.schema.scores import SERVER_SPLIT, SPLITS
from fedmerit.schema.site_folder import require_name
from fedmerit.version import package_version
from fedmerit_data.folders import OVERVIEW
from fedmerit_data.kinds import GENERIC
from fedmerit_data.preparation import Preparation
from fedmerit_data.preparing.cases import CaseOutcome, CaseTask, PreparedCase, UnusableCase, raw_files
from fedmerit_data.preparing.sources import write_sources
from fedmerit_data.raw_cases import Origin, RawCase, RawSite
from fedmerit_data.readers.channel_names import canonical, modality_of
from fedmerit_data.readers.kind import Kind
from fedmerit_data.readers.patients import (
    Lookup,
    Patients,
    assign_sites,
    identify_patients,
    note_shared_patients,
    read_groups,
    read_lookup,
)
from fedmerit_data.splits import assign_folds, split_patients
from fedmerit_data.tables import read_table

COLUMNS = ("site", "case", "patient")
FIRST_FOLD = {0: "testing", 1: "validation"}  # splits of these folds in datalist.json
MAX_NAMED = 10  # unreadable cases in one error
MAX_NAME_BYTES = 200  # of a site or a case: file names add endings


def read_patients(file: Path) -> Patients:
    """Return the table of a CSV file with the columns ``site,case,patient``.

    Patients get the names that readers give them, ``SITE-PATIENT``, also if the file has only ``PATIENT``: hospitals
    that number their patients 1, 2, 3 have none in common.

    Raises:
        BadInput: the file cannot be read, lacks a column or a value, names a case twice, or names none.
    """
    patients: dict[tuple[str, str], str] = {}
    for line, row in read_table(file, COLUMNS):
        site, case, patient = (row[name] for name in COLUMNS)
        if not (site and case and patient):
            raise BadInput(f"{file}: line {line}: expected a value in each of the columns {', '.join(COLUMNS)}")
        if (site, case) in patients:
            raise BadInput(f"{file}: line {line}: case {case} of site {site} is listed twice; keep one line")
        patients[site, case] = patient if patient.startswith(f"{site}-") else f"{site}-{patient}"
    if not patients:
        raise BadInput(f"{file}: names no case; expected a line for each case with its {', '.join(COLUMNS)}")
    return patients


def find_sites(asked: Preparation, source: Path) -> list[RawSite]:
    """Return the sites of a source, with the site, patient, channels and modality of each case.

    Raises:
        BadInput: the source does not fit its layout, a table names no such case, images of a site are of several
            modalities, or no patient has an earlier split that is to be kept.
    """
    sites = asked.layout.find_sites(source)
    table = None if asked.patient_table is None else str(asked.patient_table)
    if asked.site_lookup:
        sites = assign_sites(sites, asked.site_lookup)
    patient_of = None if table is None else read_lookup(table, "patient")
    listed = {} if table is None or patient_of else read_patients(Path(table))
    if listed:
        sites = _compare_with_table(sites, listed, table)
    if asked.kind == GENERIC:
        sites = note_shared_patients([identify_patients(site, listed, patient_of, source) for site in sites])
    else:
        sites = [_of_layout(site, asked.layout, listed, patient_of) for site in sites]
    earlier = asked.earlier
    cases = [(earlier[site.name], case) for site in sites for case in site.cases if site.name in earlier]
    if asked.like is not None and not any(before.known(case.patient, [case.name]) for before, case in cases):
        raise BadInput(
            f"--like {asked.like}: holds the sites {', '.join(earlier)}, but no patient of "
            f"{', '.join(site.name for site in sites)}; name sites and patients as before, or leave --like out"
        )
    modality = asked.layout.modality
    sites = [replace(site, cases=tuple(_with_modality(case, modality) for case in site.cases)) for site in sites]
    return sites if asked.groups is None else [_with_groups(site, asked.groups, asked.patient_table) for site in sites]


def _with_groups(site: RawSite, asked: str, table: Path | None) -> RawSite:
    """Return a site whose cases have the groups of their patients, and remarks on those that are not stated."""
    groups_of = read_groups(asked, table)
    cases = tuple(replace(case, groups=groups_of(site.name, case)) for case in site.cases)
    missing = {
        name: sum(name not in dict(case.groups) for case in cases) for name in asked.rpartition(":")[2].split(",")
    }
    texts = (f"no {name} of {count} of {len(cases)} cases is stated" for name, count in missing.items() if count)
    return replace(site, cases=cases, remarks=(*site.remarks, *texts))


def _with_modality(case: RawCase, modality: str) -> RawCase:
    """Return a case of the modality that the options imply, if nothing in its source states one."""
    unknown = modality and not case.modality
    return replace(case, modality=modality, modality_from=Origin.OPTION) if unknown else case


def _of_layout(site: RawSite, kind: Kind, table: Patients, patient_of: Lookup | None) -> RawSite:
    """Return a site of a public release: patients as its layout or a table names them, channels of its kind."""
    cases = []
    for case in site.cases:
        stated = f"{site.name}-{patient_of(case)}" if patient_of else table.get((site.name, case.name))
        parts = tuple(canonical(part.name) for part in case.channels if part.name)
        names = parts if len(parts) == kind.channels else kind.channel_names
        modality = kind.modality or modality_of(names)
        cases.append(
            replace(
                case,
                patient=stated or case.patient,
                patient_from=Origin.TABLE if stated else Origin.LAYOUT,
                channel_names=names,
                channels_from=Origin.LAYOUT if names else "",
                modality=modality,
                modality_from=Origin.LAYOUT if modality else "",
            )
        )
    notes = tuple(text for name, text in kind.notes.items() if name in ("", site.name))
    return replace(site, cases=tuple(cases), remarks=(*site.remarks, *notes))


def _compare_with_table(sites: Sequence[RawSite], patients: Patients, file: str | None) -> list[RawSite]:
    """Return the sites, with a remark on those of whose cases a table does not name all.

    Raises:
        BadInput: the table names a case that does not exist.
    """
    there = {(site.name, case.name) for site in sites for case in site.cases}
    if unknown := sorted(set(patients) - there):
        first, case = unknown[0]
        others = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        known = min(there, key=lambda names: (names[0] != first, names))
        raise BadInput(
            f"{file}: site {first} has no case {case}{others}; expected names such as site {known[0]}, case {known[1]}"
        )
    noted = []
    for site in sites:
        missing = sum((site.name, case.name) not in patients for case in site.cases)
        text = (
            f"the patient table lacks {missing} of {len(site.cases)} cases, whose patients are taken from files and "
            "folders: complete it if one of these patients has several cases"
        )
        noted.append(replace(site, remarks=(*site.remarks, *[text] * bool(missing))))
    return noted


def require_site_name(name: str, raw: Path) -> None:
    """Raise `BadInput` if a site of ``raw`` cannot have this name, or the folder of pictures beside site folders has
    it.
    """
    require_name(name, raw)
    if name == OVERVIEW:
        raise BadInput(f"{raw}: a site is named {OVERVIEW!r}, as the folder of pictures beside site folders; rename it")


def split_site(site: RawSite, cases: Sequence[RawCase], asked: Preparation) -> tuple[dict[str, str], dict[str, int]]:
    """Return the split and, with folds, the fold of every patient of a site's ``cases``.

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
    patients = defaultdict[str, list[str]](list)
    for case in cases:
        patients[case.patient].append(case.name)
    before = asked.earlier.get(site.name)
    try:
        if asked.folds:
            folds = assign_folds(site.name, patients, asked.folds, asked.seed, before)
            return {patient: FIRST_FOLD.get(fold, "training") for patient, fold in folds.items()}, folds
        return split_patients(site.name, patients, asked.ratios, asked.seed, asked.server_share, before), {}
    except BadInput as error:  # too few patients: how patients are identified may be why
        raise BadInput(*str(error).split("\n\t"), *site.remarks) from error


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
    write_json(folder / "datalist.json", entries, flush=False)
    write_sources(folder, {task.case.name: {"case": one.source, "files": one.raw} for task, one in usable}, flush=False)
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
            **_identity([task.case for task, _ in outcomes]),
            **asked.record(),
            "licence": asked.layout.licence,
            "citation": asked.layout.citation,
            "counts": counts,
            "used": {"cases": len(usable), "files": len({path for _, finished in usable for path in finished.raw})},
            "unreadable_cases": len(unusable),
            "left_out": [{"file": name, "reason": reason} for name, reason in left_out],
            "remarks": [
                *({"case": "", "remark": text} for text in site.remarks),
                *({"case": task.case.name, "remark": text} for task, done in usable for text in done.remarks),
            ],
            "readings": [finished.reading for _, finished in usable],
            "checksums": {name: known for _, finished in usable for name, known in finished.checksums.items()},
            "fedmerit_version": package_version(),
        },
        flush=False,
    )


def _identity(cases: Sequence[RawCase]) -> dict[str, Any]:
    """Return the fields of site.json on channels and modality, and how many cases state what where."""
    first = cases[0]
    stated = {
        what: dict(sorted(Counter(origin for case in cases if (origin := str(getattr(case, what)))).items()))
        for what in ("patient_from", "channels_from", "modality_from")
    }
    modality = next((case.modality for case in cases if case.modality), None)
    return {"channel_names": list(first.channel_names) or None, "modality": modality, **stated}


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
    splits, folds = split_site(site, [task.case for task, _ in usable], asked)
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
        if task.case.groups:
            entry["groups"] = dict(task.case.groups)
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
