"""Whether prepared site folders are whole and sound: ``fedmerit check``."""

from collections.abc import Sequence
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit.files import sha256
from fedmerit.trainers.monai_trainer.data import SiteFolder
from fedmerit_data.checking import integrity
from fedmerit_data.checking.examination import Examination, state_of
from fedmerit_data.checking.findings import Finding, Located, Severity, located
from fedmerit_data.checking.quality import plausibility
from fedmerit_data.folders import OVERVIEW


def check(sites: Path, *, max_empty: float = 0.1) -> list[Finding]:
    """Everything wrong with the site folders below ``sites``: the errors of `examine`; empty where nothing is."""
    return examine(sites, max_empty=max_empty).of(Severity.error)


def examine(sites: Path, *, max_empty: float = 0.1) -> Examination:
    """Everything wrong with the site folders below ``sites``, or worth a look.

    Args:
        sites: What `prepare` wrote, or a folder into which the site folders of several were gathered.
        max_empty: Share of a site's cases, 0 to 1, whose mask may lack a label altogether.
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
    """As `examine`, of these site folders alone, wherever they lie."""
    findings: list[Finding] = []
    opened: list[SiteFolder] = []
    for folder in folders:
        try:
            opened.append(SiteFolder(folder))
        except BadInput as error:
            message = str(error).removeprefix(f"{folder}: ")
            findings.append(Finding("unreadable site", folder.name, folder, message))
    cases = [case for site in opened for case in located(site)]
    checksums = {
        path: sha256(path) for case in cases for path in (case.case.image_file, case.case.label_file) if path.is_file()
    }
    sound: list[Located] = []
    states = []
    for site in opened:
        findings += integrity.alike(site, opened[0])
        findings += integrity.lists(site)
        changes = list(integrity.files(site, checksums))
        findings += changes
        findings += integrity.arrays(site, max_empty, sound)
        states.append(state_of(site, checksums, not changes))
    findings += integrity.patients(cases)
    findings += integrity.copies(cases, checksums)
    findings += plausibility(opened, sound, checksums)
    order = list(Severity)
    return Examination(tuple(states), tuple(sorted(findings, key=lambda finding: order.index(finding.severity))))
