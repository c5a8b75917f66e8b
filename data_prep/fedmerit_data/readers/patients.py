"""Patients of cases, their sites and groups: by DICOM headers, BIDS entities, tables and names."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PureWindowsPath
from typing import NamedTuple

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import Origin, RawCase, RawSite, list_visible
from fedmerit_data.readers.channel_names import SYNONYMS, canonical
from fedmerit_data.readers.image_files import name_and_suffix
from fedmerit_data.spatial.heads import Head, read_head
from fedmerit_data.tables import read_table

SUBJECT = re.compile(r"(?:^|[_/])sub-([A-Za-z0-9]+)(?=[_/.]|$)")  # of BIDS
NOBODY = ("", "anon", "anonym", "anonymous", "anonymized", "anonymised", "unknown", "none", "patient")
# DICOM's codes of one modality; "OT" and what converters leave say nothing.
MODALITIES = {"CR": "XR", "DX": "XR", "DR": "XR", "RG": "XR"}
SILENT_MODALITIES = ("", "OT", "SC")
PATTERN = re.compile(r"[()]")  # a pattern has a group, no name has
TABLE_COLUMN = re.compile(r"(?P<file>.+\.(?:csv|tsv|txt|xlsx?)):(?P<column>.+)", re.IGNORECASE)
UNUSUAL = re.compile(r"[^A-Za-z0-9_-]+")
VISIT = re.compile(  # ends of names that tell visits, sides or eyes of one patient
    r"(?:[_. -]?(?:ses|visit|timepoint|tp|scan|study|exam|baseline|followup|follow-up|pre|post|left|right|od|os)"
    r"[_. -]?\d{0,4}|[_. -][vt]\d{1,2}|[_. -][lr]|(?<=\d)[a-e]|[_. -](?:19|20)\d\d[_. -]?\d\d[_. -]?\d\d)$"
)
LAST_WORD = re.compile(r"(.+)[_. -]([a-z0-9]+)")
SLICE = re.compile(r"[_. -]?(?:slice|slc|sl|frame|z)[_. -]?\d+$", re.IGNORECASE)  # of a patient's scan or video
COUNTED = re.compile(r"(.*\d)[_. -]\d{1,3}")  # a number after that of a patient: of a visit or slice
DENSE = 0.5  # share of the numbers from the lowest to the highest above which they only count patients
OFTEN = 0.9  # share of the beginnings of names that have the most frequent end, if ends tell visits
MOST_VISITS = 6  # names that continue another; more are of patients whose names begin alike
MAX_NAMED = 3  # groups of names in a remark
Patients = Mapping[tuple[str, str], str]  # by site and case
Lookup = Callable[[RawCase], str]
Row = Mapping[str, str]  # of a table, by column
Groups = tuple[tuple[str, str], ...]  # by column, in the order of the columns; a value that is not stated is left out
AGE = re.compile(r"(?:patient|subject)? ?age(?: (?:in )?(?:years?|yrs?|y)| at .+)?")  # words in lower case
YEARS = re.compile(r"0*(\d{1,3})(?:[.,]\d+)?\s*Y?", re.IGNORECASE)  # 63, 63.5, DICOM's 063Y
BAND = 10  # years
OLDEST = 90  # and older: one band, as ages beyond may identify a person
NOT_STATED = ("", "na", "n/a", "nan", "none", "null", "unknown", "-", "?")
LONGEST = 40  # characters of a value


def read_lookup(text: str, what: str) -> Lookup | None:
    """Return a function from a case to its ``what``, by ``FILE.csv:COLUMN`` or a pattern of names with a group.

    A row belongs to a case if a value in it, of the one column that names most cases, is the case, its patient, or the
    beginning of its name up to a separator. None if ``text`` is neither a table nor a pattern.

    Raises:
        BadInput: the table lacks the column or cannot be read, or the pattern is no regular expression with one group.
    """
    if match := TABLE_COLUMN.fullmatch(text):
        return _by_table(Path(match["file"]), match["column"], what)
    if not PATTERN.search(text):
        return None
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise BadInput(f"{text}: not a pattern ({error}); expected one such as 'TCGA_(..)_'") from None
    if pattern.groups != 1:
        raise BadInput(f"{text}: a pattern with {pattern.groups} groups; expected one, that of the {what}")

    def find(case: RawCase) -> str:
        if not (match := pattern.search(case.name)) or not match[1]:
            raise BadInput(f"{case.image}: the name {case.name} has no {what} by the pattern {text}; correct either")
        return match[1]

    return find


class _NamedRows:
    """The rows of a table, by the names of cases that cells hold: not those of ``columns``, nor of the one ``without``.

    Raises:
        BadInput: the table cannot be read, lacks one of the ``columns``, or has no rows.
    """

    def __init__(self, file: Path, columns: Sequence[str], without: str = ""):
        rows = [row for _, row in read_table(file, columns)]
        if not rows:
            raise BadInput(f"{file}: names no case; expected a line for each case with its {', '.join(columns)}")
        names = [name for name in rows[0] if name not in columns and name.casefold() not in ("", without)]
        self.by_column: dict[str, dict[str, list[Row]]] = {name: defaultdict(list) for name in names}
        for row in rows:
            for name, of_value in self.by_column.items():
                for key in {row[name], name_and_suffix(PureWindowsPath(row[name]))[0]}:  # images/x1.nii.gz is x1, too
                    of_value[key].append(row)

    def find(self, case: RawCase) -> Iterator[list[list[Row]]]:
        """Yield the rows in which each column names a case, by the longest of its names first."""
        for key in case_keys(case):
            if found := [of_value[key] for of_value in self.by_column.values() if key in of_value]:
                yield found


def _by_table(file: Path, column: str, what: str) -> Lookup:
    table = _NamedRows(file, [column])

    def find(case: RawCase) -> str:
        found = next(table.find(case), None)
        if found is None:
            keys = case_keys(case)
            plain = {_without_zeros(key) for key in keys}
            near = [value for values in table.by_column.values() for value in values if _without_zeros(value) in plain]
            dropped = f"; {near[0]} differs only by zeros, which spreadsheets drop: write {keys[0]}" if near else ""
            raise BadInput(
                f"{file}: no row names case {case.name} ({case.image}); expected {' or '.join(keys[:2])} in one of the "
                f"columns {', '.join(table.by_column)}{dropped}"
            )
        values = min(({row[column] for row in rows} for rows in found), key=len) - {""}
        if len(values) != 1:
            raise BadInput(f"{file}: case {case.name} has {len(values)} values of {column}; expected one {what}")
        return next(iter(values))

    return find


def read_groups(text: str, table: Path | None) -> Callable[[str, RawCase], Groups]:
    """Return a function from a site and a case to its groups, by ``FILE.csv:COLUMN,COLUMN`` or columns of ``table``.

    A row belongs to a case as of `read_lookup`; with a column ``site`` only to one of that site. Ages are put into
    bands of ten years. Reports show groups of five patients or more; the values are in the site folder.

    Args:
        table: The table of patients, or FILE:COLUMN of it; None: there is none.

    Raises:
        BadInput: no table is named, or it lacks a column or cannot be read.
    """
    stated = TABLE_COLUMN.fullmatch(str(table))
    match = TABLE_COLUMN.fullmatch(text) or TABLE_COLUMN.fullmatch(f"{stated['file'] if stated else table}:{text}")
    if match is None:
        raise BadInput(f"--groups {text}: names no table; expected FILE.csv:COLUMN,COLUMN, or --patient-table FILE.csv")
    columns = tuple(filter(None, (name.strip() for name in match["column"].split(","))))
    named_rows = _NamedRows(Path(match["file"]), columns, without="site")

    def find(site: str, case: RawCase) -> Groups:
        for found in named_rows.find(case):
            of_site = ([row for row in rows if _site_of(row) in ("", site)] for rows in found)
            if nearest := min(filter(None, of_site), key=len, default=None):
                values = ((name, {band(name, row[name]) for row in nearest} - {""}) for name in columns)
                return tuple((name, common.pop()) for name, common in values if len(common) == 1)
        return ()

    return find


def _site_of(row: Row) -> str:
    return next((value for name, value in row.items() if name.casefold() == "site"), "")


def band(column: str, value: str) -> str:
    """Return the group of a value: of an age its band of ten years, else the value; "" if it states none."""
    if value.casefold() in NOT_STATED:
        return ""
    words = re.sub("[^a-z]+", " ", column.casefold()).strip()
    if AGE.fullmatch(words) and (years := YEARS.fullmatch(value)):
        first = int(years[1]) // BAND * BAND
        return f"{OLDEST} and older" if first >= OLDEST else f"{first} to {first + BAND - 1}"
    return value[:LONGEST]


def _without_zeros(name: str) -> str:
    """Return a name in small letters without zeros before its numbers."""
    return re.sub(r"(?<!\d)0+(?=\d)", "", name.casefold())


def case_keys(case: RawCase) -> list[str]:
    """Return what a table may call a case, the longest name first."""
    names = [case.name, case.patient, *(case.patient[at.end() :] for at in re.finditer("-", case.patient))]
    starts = [name[: at.start()] for name in (case.name,) for at in reversed(list(re.finditer(r"[_.-]", name)))]
    return list(dict.fromkeys(name for name in (*names, *starts) if name))


def assign_sites(sites: Sequence[RawSite], site_of: Lookup) -> list[RawSite]:
    """Return the cases of all sites at the site that ``site_of`` finds; the first lists what is left out.

    Raises:
        BadInput: the site of a case is not stated.
    """
    cases: dict[str, list[RawCase]] = defaultdict(list)
    for site in sites:
        for case in site.cases:
            name = UNUSUAL.sub("-", site_of(case)).strip("-")
            patient = case.patient.removeprefix(f"{site.name}-")
            cases[name].append(replace(case, patient=f"{name}-{patient}"))
    left_out = tuple(one for site in sites for one in site.left_out)
    names = sorted(cases)
    return [
        RawSite(name, tuple(sorted(cases[name], key=lambda case: case.name)), left_out if name == names[0] else ())
        for name in names
    ]


def identify_patients(site: RawSite, table: Patients, patient_of: Lookup | None, source: Path) -> RawSite:
    """Return a site with the patient of each case, and remarks.

    A case's patient is what the DICOM header, the BIDS entity or a table states, named by the first of these that
    does; two cases are of one patient if any of them says so. Only without these it is what the layout or a file name
    says. A PatientID that all cases share, as anonymisation leaves it, is nobody's. Each statement that does not count
    gets a remark.

    Raises:
        BadInput: images of the site are of several modalities.
    """
    heads = [_read_head(case) for case in site.cases]
    own = [_own(site, case) for case in site.cases]
    stated: list[dict[Origin, str]] = []
    for case, head, name in zip(site.cases, heads, own, strict=True):
        relative = case.image.relative_to(source) if case.image.is_relative_to(source) else case.image
        subject = SUBJECT.search(relative.as_posix())
        listed = table.get((site.name, case.name), "").removeprefix(f"{site.name}-")
        stated.append(
            {
                Origin.DICOM: head.patient,
                Origin.BIDS: f"sub-{subject[1]}" if subject else "",
                Origin.TABLE: patient_of(case) if patient_of else listed,
                Origin.LIST: name if case.patient_from == Origin.LIST else "",
            }
        )
    stated, remarks = _drop_nobody(stated)
    remarks += _other_patients(site.cases, heads)
    groups = _join([{(origin, name) for origin, name in one.items() if name} for one in stated])
    remarks += _contradictions(groups)
    cases = []
    for case, one, group, head, name in zip(site.cases, stated, groups, heads, own, strict=True):
        names = {origin: min((n for o, n in group if o == origin), default="") for origin in one}
        origin = next((origin for origin in names if names[origin]), None)
        fallback = Origin.FILE if name == case.name else Origin.LAYOUT
        cases.append(
            replace(
                case,
                patient=f"{site.name}-{names[origin] if origin else SLICE.sub('', name) or name}",
                patient_from=origin or case.patient_from or fallback,
                modality=head.modality or case.modality,
                modality_from=Origin.DICOM if head.modality else case.modality_from,
            )
        )
    modalities = Counter(case.modality for case in cases if case.modality)
    if len(modalities) > 1:
        counts = ", ".join(f"{name} of {count} cases" for name, count in modalities.most_common())
        raise BadInput(f"site {site.name}: images of several modalities ({counts}); prepare each apart")
    of_mask = defaultdict[Path, list[RawCase]](list)
    for case in cases:
        of_mask[case.label].append(case)
    twice = [of_one for of_one in of_mask.values() if len({case.patient for case in of_one}) > 1]
    if twice:
        named = ", ".join(case.name for case in twice[0][:MAX_NAMED])
        remarks.append(
            f"{len(twice)} mask(s) are of several patients, such as {twice[0][0].label.name} of {named}: are the masks "
            "right, or is it one patient?"
        )
    patients = sorted({_own(site, case) for case in cases})
    if similar := similar_names(patients):
        few = "; ".join(", ".join(group[:4]) for group in similar[:MAX_NAMED])
        remarks.append(
            f"names of patients differ only by their ends, case or zeros ({len(similar)} groups: {few}"
            f"{'; ...' if len(similar) > MAX_NAMED else ''}): name patients with --patient-table if a group is one"
        )
    return replace(site, cases=tuple(cases), remarks=(*site.remarks, *remarks))


def note_shared_patients(sites: Sequence[RawSite]) -> list[RawSite]:
    """Return the sites with a remark on PatientIDs of DICOM headers that several of them have."""
    ids = {site.name: {_own(site, case) for case in site.cases if case.patient_from == Origin.DICOM} for site in sites}
    noted = []
    for site in sites:
        shared = {name for other, names in ids.items() if other != site.name for name in names & ids[site.name]}
        few = ", ".join(sorted(shared)[:MAX_NAMED])
        others = ", ".join(other for other, names in ids.items() if other != site.name and names & shared)
        text = (
            f"{len(shared)} PatientID(s) are also at {others}, such as {few}: if they are the same people, keep each "
            "at one site"
        )
        noted.append(replace(site, remarks=(*site.remarks, *[text] * bool(shared))))
    return noted


def _own(site: RawSite, case: RawCase) -> str:
    return case.patient.removeprefix(f"{site.name}-")


def _drop_nobody(stated: Sequence[dict[Origin, str]]) -> tuple[list[dict[Origin, str]], list[str]]:
    """Return what is stated of each case without PatientIDs that name nobody, and remarks on these."""
    headers = [one[Origin.DICOM] for one in stated]
    shared = len(set(headers)) == 1 and len(headers) > 1
    dropped = [name if shared or name.casefold() in NOBODY else "" for name in headers]
    if not any(dropped):
        return [*stated], []
    kept = [one | {Origin.DICOM: "" if name else one[Origin.DICOM]} for one, name in zip(stated, dropped, strict=True)]
    count = sum(map(bool, dropped))
    names = sorted({name for name in dropped if name})
    others = Counter(
        next((origin for origin in one if one[origin]), Origin.FILE)
        for one, name in zip(kept, dropped, strict=True)
        if name
    )
    instead = ", ".join(f"{origin} ({times})" for origin, times in others.most_common())
    return kept, [
        f"{'all' if count == len(stated) else f'{count} of'} {len(stated)} cases state PatientID "
        f"{', '.join(names[:MAX_NAMED])}{', ...' if len(names) > MAX_NAMED else ''}, which counts as nobody's: their "
        f"patients are taken from the {instead}; if several cases show one patient, name patients with --patient-table"
    ]


def _other_patients(cases: Sequence[RawCase], heads: Sequence["_Head"]) -> list[str]:
    """Return a remark on cases of which a channel or mask states another PatientID than the image."""
    found = [(case, head) for case, head in zip(cases, heads, strict=True) if head.others]
    if not found:
        return []
    case, head = found[0]
    return [
        f"files of {len(found)} case(s) state several PatientIDs, such as {', '.join((head.patient, *head.others))} of "
        f"{case.name}: the image's counts; are these files of one patient?"
    ]


def _contradictions(groups: Sequence[set[tuple[Origin, str]]]) -> list[str]:
    """Return a remark for each kind of name of which several are one patient's, as other statements say."""
    found: dict[Origin, list[list[str]]] = defaultdict(list)
    for group in {frozenset(group) for group in groups}:
        names = defaultdict[Origin, list[str]](list)
        for origin, name in sorted(group):
            names[origin].append(name)
        for origin, several in names.items():
            if len(several) > 1:
                found[origin].append(several)
    return [
        f"{len(of_origin)} patient(s) have several names by the {origin}, such as {', '.join(min(of_origin)[:4])}: "
        "another statement says that they are one"
        for origin, of_origin in sorted(found.items())
    ]


class _Head(NamedTuple):
    """The PatientID and modality of an image in DICOM, "" if it states none, and the PatientIDs of its other files."""

    patient: str = ""
    modality: str = ""
    others: tuple[str, ...] = ()


def _read_head(case: RawCase) -> _Head:
    """Return what the headers of the first files of a case's channels and masks state, if they are DICOM."""
    folders = [part.files or (part.path,) for part in case.parts]
    image, *others = [_read_tags(paths[0]) for paths in (*folders, *((mask,) for mask in (case.label, *case.more)))]
    patient, modality = image
    known = "" if modality in SILENT_MODALITIES else MODALITIES.get(modality, modality)
    differing = {name for name, _ in others if name.casefold() not in NOBODY and patient} - {patient}
    return _Head(patient, known, tuple(sorted(differing)))


def _read_tags(path: Path) -> tuple[str, str]:
    """Return PatientID and Modality of a file, or of the first DICOM file in a folder; "" of what is not stated."""
    heads = map(read_head, list_visible(path) if path.is_dir() else [path])
    head = next((head for head in heads if head is not None), Head())
    return head.patient, head.modality


def _join(stated: Sequence[set[tuple[Origin, str]]]) -> list[set[tuple[Origin, str]]]:
    """Return for each case all that is stated of cases of the same patient."""
    groups: list[set[tuple[Origin, str]]] = []
    for names in stated:
        same = [group for group in groups if group & names]
        groups = [group for group in groups if not group & names]
        groups.append(set().union(names, *same))
    return [next((group for group in groups if group & names), set()) for names in stated]


def similar_names(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return groups of names that may be of one patient: they differ by case, zeros, or what ends them.

    An end is a word for a visit, side or channel, such as ``_v2``, ``_L`` or ``_adc``; what follows another name (p3b
    after p3); a number after that of a patient, as in 01-000 and 01-001; or one of a few digits that end most names, as
    in genius_0800 and genius_0801. Plain counts of patients have no such ends.
    """
    every = sorted(set(names))
    by: dict[str, dict[str, set[str]]] = {kind: defaultdict(set) for kind in ("plain", "visit", "counted")}
    for name in every:
        plain = _without_zeros(name)
        by["plain"][plain].add(name)
        match = LAST_WORD.fullmatch(plain)
        of_channel = match is not None and canonical(match[2]) in SYNONYMS
        by["visit"][match[1] if match and of_channel else VISIT.sub("", plain) or plain].add(name)
    known, continued = set(every), defaultdict[str, set[str]](set)
    for name in every:  # p3 of p3b, P1 of P1_post: a beginning that does not cut a number
        for end in range(1, len(name)):
            if name[:end] in known and not (name[end].isdigit() and name[end - 1].isdigit()):
                continued[name[:end]] |= {name[:end], name}
    for name in every:  # 01-000 and 01-001, 02-000 and 02-001
        if match := COUNTED.fullmatch(name):
            by["counted"][match[1]].add(name)
    if sum(len(group) > 1 for group in by["counted"].values()) < 2:
        del by["counted"]
    by["continued"] = {name: group for name, group in continued.items() if len(group) <= MOST_VISITS}
    found = [group for groups in by.values() for group in groups.values() if len(group) > 1]
    return sorted({tuple(sorted(group)) for group in (*found, *_by_digits(every))})


def _by_digits(names: Sequence[str]) -> list[set[str]]:
    """Return groups of names that differ by the last digits, if the digits tell visits, not patients."""
    numbered = [match for name in names if (match := re.fullmatch(r"(.*?)(\d{2,})", name))]
    by_beginning: dict[tuple[str, int], list[re.Match[str]]] = defaultdict(list)
    for match in numbered:
        by_beginning[match[1], len(match[2])].append(match)
    found = []
    for matches in by_beginning.values():
        numbers = sorted(int(match[2]) for match in matches)
        if len(numbers) < 3 or len(numbers) > DENSE * (numbers[-1] - numbers[0] + 1):
            continue
        for cut in range(1, min(3, len(matches[0][2]))):
            ends = defaultdict[str, set[str]](set)
            for match in matches:
                ends[match[0][:-cut]].add(match[0][-cut:])
            (_, times), *_ = Counter(end for of_one in ends.values() for end in of_one).most_common(1)
            kinds = len({end for of_one in ends.values() for end in of_one})
            if 1 < kinds < len(ends) and times >= OFTEN * len(ends):
                found += [{start + end for end in of_one} for start, of_one in ends.items() if len(of_one) > 1]
                break
    return found
