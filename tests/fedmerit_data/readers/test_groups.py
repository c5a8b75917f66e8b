"""Groups of patients by columns of a table, from `prepare` to the site folder."""

import json

import pytest
from layouts import box, prepare, save_nifti, volume

from fedmerit.errors import BadInput
from fedmerit.schema.site_folder import open_sites
from fedmerit_data.readers.groups import band

TABLE = "site,case,patient,sex,age,scanner\nA,p0,p0,F,63,x\nA,p1,p1,M,063Y,\nA,p2,p2,F,97,x\nB,p0,p0,M,8,y\n"


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("age", "63", "60 to 69"),
        ("PatientAge", "063Y", "60 to 69"),
        ("Age (years)", "63", "60 to 69"),
        ("age_years", "63.5", "60 to 69"),
        ("age", "9", "0 to 9"),
        ("age", "101", "90 and older"),
        ("age", "n/a", ""),
        ("sex", "F", "F"),
        ("stage", "3", "3"),
        ("sex", "unknown", ""),
    ],
)
def test_band_of_ages_is_of_ten_years(column, value, expected):
    assert band(column, value) == expected


@pytest.fixture
def source(tmp_path):
    for site in ("A", "B"):
        for number in range(3):
            save_nifti(tmp_path / "raw" / site / "images" / f"p{number}.nii.gz", volume(number))
            save_nifti(tmp_path / "raw" / site / "masks" / f"p{number}.nii.gz", box())
    (tmp_path / "table.csv").write_text(TABLE)
    (tmp_path / "participants.tsv").write_text("participant_id\tsex\np0\tF\np1\tM\np2\tF\n")
    return tmp_path / "raw"


def groups(sites, site="A"):
    (folder,) = (one for one in open_sites(sites) if one.name == site)
    cases = [case for split in folder.splits.values() for case in split]
    return {case.name: dict(case.groups) for case in cases}, folder.info


@pytest.mark.parametrize("by", ["patient table", "table of its own"])
def test_prepare_groups_are_columns_of_a_table(tmp_path, source, by):
    table = tmp_path / "table.csv"
    options = {"groups": f"{table}:sex,age,scanner"}
    if by == "patient table":
        options = {"groups": "sex,age,scanner", "patient_table": table}
    prepare("generic", tmp_path / "sites", source=source, channels=1, size=16, **options)
    found, info = groups(tmp_path / "sites")
    assert found["p0"] == {"sex": "F", "age": "60 to 69", "scanner": "x"}
    assert found["p1"] == {"sex": "M", "age": "60 to 69"}
    assert found["p2"]["age"] == "90 and older"
    assert groups(tmp_path / "sites", "B")[0]["p0"] == {"sex": "M", "age": "0 to 9", "scanner": "y"}
    assert info["groups"] == ["sex", "age", "scanner"]
    assert "no scanner of 1 of 3 cases is stated" in [one["remark"] for one in info["remarks"]]
    assert "063Y" not in json.dumps(info)


def test_prepare_groups_of_a_table_with_tabs_and_without_sites(tmp_path, source):
    options = {"groups": f"{tmp_path / 'participants.tsv'}:sex"}
    prepare("generic", tmp_path / "sites", source=source, channels=1, size=16, **options)
    assert groups(tmp_path / "sites", "B")[0] == {"p0": {"sex": "F"}, "p1": {"sex": "M"}, "p2": {"sex": "F"}}


@pytest.mark.parametrize(("asked", "message"), [("sex", "names no table"), ("{table}:size", "has no column size")])
def test_prepare_groups_without_a_table_or_column_raise(tmp_path, source, asked, message):
    asked = asked.format(table=tmp_path / "table.csv")
    with pytest.raises(BadInput, match=message):
        prepare("generic", tmp_path / "sites", source=source, channels=1, size=16, groups=asked)
