"""Checks of prepared site folders: ``fedmerit check``."""

from collections.abc import Sequence
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit.files import sha256
from fedmerit.schema.site_folder import SiteFolder
from fedmerit_data.checking import integrity
from fedmerit_data.checking.findings import Examination, Finding, LocatedCase, Severity, locate_cases, read_site_state
from fedmerit_data.checking.integrity import check_readings
from fedmerit_data.checking.plausibility import check_plausibility
from fedmerit_data.folders import OVERVIEW


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
    if not folders:
        message = "no site folders in it; make them with `fedmerit prepare`"
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
