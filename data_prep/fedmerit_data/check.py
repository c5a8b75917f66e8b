"""Checks of prepared site folders, ``fedmerit check``, and their files: a report to share, and a list that stays."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmerit.errors import BadInput
from fedmerit.files import sha256, write_json, write_text
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.version import package_version
from fedmerit_data.checking import integrity
from fedmerit_data.checking.findings import Examination, Finding, LocatedCase, Severity, locate_cases, read_site_state
from fedmerit_data.checking.integrity import check_readings
from fedmerit_data.checking.plausibility import check_plausibility
from fedmerit_data.folders import OVERVIEW
from fedmerit_data.pages import write_page
from fedmerit_data.tables import csv_text

COLUMNS = ("severity", "kind", "site", "split", "position", "detail", "meaning")
PRIVATE_COLUMNS = ("severity", "kind", "site", "split", "position", "file", "message")
SHARED = ("quality.json", "quality.html", "quality.csv")


def check(sites: Path, *, max_empty: float = 0.1) -> list[Finding]:
    """Return the errors that `examine` finds in the site folders below ``sites``."""
    return examine(sites, max_empty=max_empty).of(Severity.error)


def examine(sites: Path, *, max_empty: float = 0.1) -> Examination:
    """Check the site folders below ``sites`` and return errors, warnings and notes.

    Args:
        sites: A folder of site folders, of one or of several preparations.
        max_empty: Share of a site's cases, 0 to 1, whose mask may lack a label entirely.

    Raises:
        BadInput: ``max_empty`` is out of its range.
    """
    if not 0 <= max_empty <= 1:
        raise BadInput(f"max_empty {max_empty:g}: expected a share from 0 to 1")
    sites = Path(sites)
    folders = (
        [path for path in sorted(sites.iterdir()) if path.is_dir() and path.name[0] != "." and path.name != OVERVIEW]
        if sites.is_dir()
        else []
    )
    is_site = (sites / "site.json").is_file()
    if is_site or not folders:
        message = (
            "is one site's folder; name the folder that holds it"
            if is_site
            else "no site folders in it; make them with `fedmerit prepare`"
        )
        return Examination((), (Finding("no sites", "", sites, message),))
    return examine_folders(folders, max_empty)


def examine_folders(folders: Sequence[Path], max_empty: float = 0.1) -> Examination:
    """Check these site folders and return errors, warnings and notes, as `examine` does."""
    findings: list[Finding] = []
    opened: list[SiteFolder] = []
    for folder in folders:
        try:
            opened.append(SiteFolder(folder))
        except BadInput as error:
            message = str(error).removeprefix(f"{folder}: ")
            findings.append(Finding("unreadable site", folder.name, folder, message))
    cases = [case for site in opened for case in locate_cases(site)]
    checksums = {
        path: sha256(path) for case in cases for path in (case.case.image_file, case.case.label_file) if path.is_file()
    }
    sound: list[LocatedCase] = []
    states = []
    for site in opened:
        findings += integrity.check_metadata(site, opened[0])
        findings += integrity.check_lists(site)
        findings += integrity.check_folds(site)
        findings += integrity.check_similar_patients(site)
        findings += integrity.check_site_remarks(site)
        changes = list(integrity.check_files(site, checksums))
        findings += changes
        findings += integrity.check_arrays(site, max_empty, sound)
        states.append(read_site_state(site, checksums, not changes))
    findings += check_readings(opened)
    findings += integrity.check_releases(opened)
    findings += integrity.check_patients(cases)
    findings += integrity.check_copies(cases, checksums)
    findings += check_plausibility(opened, sound, checksums)
    order = list(Severity)
    return Examination(tuple(states), tuple(sorted(findings, key=lambda finding: order.index(finding.severity))))


def shareable_report(examination: Examination) -> dict[str, Any]:
    """Return the report to share: sites with counts and digests, findings without a name of a file, case or patient."""
    return {
        "fedmerit_version": package_version(),
        "sites": [
            {
                "name": site.name,
                "cases": dict(site.cases),
                "patients": dict(site.patients),
                "unchanged": site.unchanged,
                "digest": site.digest,
                "spoken": site.short_digest,
                **{
                    f"{severity}s": sum(finding.site == site.name for finding in examination.of(severity))
                    for severity in Severity
                },
            }
            for site in examination.sites
        ],
        "findings": [finding.shareable for finding in examination.findings],
    }


def write_shareable(examination: Examination, folder: Path) -> list[Path]:
    """Write quality.json, quality.html and quality.csv into ``folder``; existing ones are replaced."""
    report = shareable_report(examination)
    json, html, csv = (folder / name for name in SHARED)
    write_json(json, report)
    rows = _group_cases(report["findings"])
    write_page(html, "fedmerit_data", "quality.html.j2", **report | {"findings": rows})
    write_text(csv, _csv(report["findings"], COLUMNS))
    return [json, html, csv]


def _group_cases(findings: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Return findings as rows of the page: one for all cases of a site that have the same finding, with the cases."""
    rows: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for finding in findings:
        same = tuple(finding[name] for name in ("severity", "kind", "site", "detail", "meaning"))
        rows.setdefault(same, {}).setdefault(finding["split"], []).append(finding["position"])
    return [
        dict(zip(("severity", "kind", "site", "detail", "meaning"), same, strict=True))
        | {"cases": "; ".join(f"{split} {', '.join(positions)}".strip() for split, positions in splits.items())}
        for same, splits in rows.items()
    ]


def write_private(findings: Sequence[Finding], file: Path) -> None:
    """Write the findings with their files and messages, which name cases and patients, as CSV."""
    rows = [
        finding.shareable | {"file": str(finding.file.absolute()), "message": finding.message} for finding in findings
    ]
    write_text(file, _csv(rows, PRIVATE_COLUMNS))


def _csv(rows: Sequence[dict[str, str]], columns: Sequence[str]) -> str:
    import pandas as pd  # takes a second to import

    return csv_text(pd.DataFrame(rows, columns=list(columns)))
