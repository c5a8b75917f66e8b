"""Which folders are checked, and the order of findings."""

import shutil

import pytest
from site_folders import edit

from fedmerit.errors import BadInput
from fedmerit.schema.site_folder import open_sites
from fedmerit_data.check import check, examine, examine_folders
from fedmerit_data.checking.findings import Severity


@pytest.fixture
def sites(two_hospitals, tmp_path):
    return shutil.copytree(two_hospitals, tmp_path / "sites")


def test_nothing_wrong(two_hospitals):
    assert check(two_hospitals) == []


def test_site_json_missing_or_broken(sites):
    (sites / "HK" / "site.json").unlink()
    (sites / "UCL" / "site.json").write_text("{")
    first, second = (str(finding).removeprefix(f"{sites}/") for finding in check(sites))
    assert first.startswith("HK: ")
    assert "site.json: file not found" in first
    assert "not readable as JSON" in second


def test_the_folder_of_one_site_is_named_as_such(sites):
    for folder in sites.iterdir():
        (finding,) = examine(folder).findings
        assert finding.message == "is one site's folder; name the folder that holds it"
        with pytest.raises(BadInput, match="is one site's folder; name the folder that holds it"):
            open_sites(folder)


def test_pictures_and_hidden_folders_are_no_sites(two_hospitals, sites):
    for name in ("overview", ".partial"):
        (sites / name).mkdir()
    (sites / "notes.txt").write_text("")
    assert examine(sites).sites == examine(two_hospitals).sites
    (sites / "BMC").mkdir()
    (finding,) = check(sites)
    assert (finding.kind, finding.site, finding.file) == ("unreadable site", "BMC", sites / "BMC")


def test_some_folders_only(sites):
    """What lies beside them is not looked at, and may be anything."""
    (sites / "UCL" / "site.json").unlink()
    (state,) = examine_folders([sites / "HK"]).sites
    assert state in examine(sites).sites
    assert not examine_folders([sites / "HK"]).of(Severity.error)
    (finding,) = examine_folders([sites / "BMC"]).findings
    assert (finding.kind, finding.file) == ("unreadable site", sites / "BMC")
    assert "no such site folder" in finding.message


def test_errors_are_reported_before_warnings_and_notes(sites):
    """A split that the first site was to have empty is reported after a file of the last site that is missing."""
    edit(sites / "HK" / "site.json", lambda info: info.update(ratios=[0.5, 0.0, 0.5]))
    edit(sites / "HK" / "datalist.json", lambda lists: lists.update(validation=[]))
    (sites / "UCL" / "cases" / "Case01_image.npy").unlink()
    severities = [finding.severity for finding in examine(sites).findings]
    assert severities == sorted(severities, key=list(Severity).index)
    assert {Severity.error, Severity.note} <= set(severities)
    assert [str(finding) for finding in check(sites)] == [
        str(finding) for finding in examine(sites).findings if finding.severity is Severity.error
    ]
