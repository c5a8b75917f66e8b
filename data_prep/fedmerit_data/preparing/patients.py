"""Whose images they are, where file names do not tell: a table by the data's owner."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit_data.csv_tables import read_table
from fedmerit_data.raw import RawSite

COLUMNS = ("site", "case", "patient")
Patients = Mapping[tuple[str, str], str]  # by site and case


def read_patients(file: Path) -> Patients:
    """The table of a CSV file with the columns ``site,case,patient``.

    A patient is named as readers name them, ``SITE-PATIENT``, be it so in the file or not: hospitals that each number
    theirs 1, 2, 3 share none.

    Raises:
        BadInput: the file cannot be read, lacks a column or a value, or names a case twice.
    """
    patients: dict[tuple[str, str], str] = {}
    for line, row in read_table(file, COLUMNS):
        site, case, patient = (row[name] for name in COLUMNS)
        if not (site and case and patient):
            raise BadInput(f"{file}: line {line}: expected a value in each of the columns {', '.join(COLUMNS)}")
        if (site, case) in patients:
            raise BadInput(f"{file}: line {line}: case {case} of site {site} stands in it twice; keep one line")
        patients[site, case] = patient if patient.startswith(f"{site}-") else f"{site}-{patient}"
    return patients


def with_patients(sites: Sequence[RawSite], patients: Patients, file: Path) -> list[RawSite]:
    """The sites, each case that the table names with its patient there; the others keep theirs.

    Raises:
        BadInput: the table names a case that is not there.
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
