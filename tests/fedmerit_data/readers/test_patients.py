"""Whose images a case shows: headers, BIDS, tables, similar names; sites and patients by a column or a pattern."""

import json
from dataclasses import replace

import numpy as np
import pytest
from layouts import box, prepare, save_nifti, save_png, volume
from pydicom import Dataset
from pydicom.dataset import FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

from fedmerit.errors import BadInput
from fedmerit.schema.site_folder import open_sites
from fedmerit_data.check import examine
from fedmerit_data.raw_cases import Origin, RawCase, RawSite
from fedmerit_data.readers.patients import (
    assign_sites,
    band,
    identify_patients,
    note_shared_patients,
    read_lookup,
    similar_names,
)


def dicom(path, patient, modality="MR"):
    """A slice of which only the head is read."""
    head, meta = Dataset(), FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = CTImageStorage, generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    head.file_meta, head.PatientID, head.Modality = meta, patient, modality
    path.parent.mkdir(parents=True, exist_ok=True)
    head.save_as(path, enforce_file_format=True)


def site(tmp_path, patients, modality="MR", names=None):
    """Site A of DICOM series acc0, acc1, ... of these patients."""
    cases = []
    for number, patient in enumerate(patients):
        name = names[number] if names else f"acc{number}"
        if patient is not None:
            dicom(tmp_path / name / "1.2.840.1", patient, modality)
        image = tmp_path / name if patient is not None else tmp_path / f"{name}.nii.gz"
        cases.append(RawCase(name, f"A-{name}", image, tmp_path / f"{name}_seg.nii.gz"))
    return RawSite("A", tuple(cases))


def found(raw, tmp_path, table=None, patient_of=None):
    named = {("A", case): patient for case, patient in (table or {}).items()}
    known = identify_patients(raw, named, patient_of, tmp_path)
    return [case.patient for case in known.cases], [str(case.patient_from) for case in known.cases], known.remarks


def test_identify_patients_dicom_states_patient_and_modality(tmp_path):
    raw = site(tmp_path, ["PAT0", "PAT0", "PAT1", "anonymous"])
    patients, origins, (remark,) = found(raw, tmp_path)
    assert patients == ["A-PAT0", "A-PAT0", "A-PAT1", "A-acc3"]
    assert origins == ["DICOM header"] * 3 + ["file name"]
    assert remark.startswith("1 of 4 cases state PatientID anonymous, which counts as nobody's")
    assert "taken from the file name (1)" in remark
    known = identify_patients(raw, {}, None, tmp_path).cases
    assert {(case.modality, case.modality_from) for case in known} == {("MR", Origin.DICOM)}


def test_identify_patients_other_id_in_the_mask_is_reported(tmp_path):
    raw = site(tmp_path, ["PAT0", "PAT1"])
    dicom(tmp_path / "seg.dcm", "PAT1", "SEG")
    cases = tuple(replace(case, label=tmp_path / "seg.dcm") for case in raw.cases)
    patients, _, (remark, of_mask) = found(replace(raw, cases=cases), tmp_path)
    assert patients == ["A-PAT0", "A-PAT1"]
    assert remark.startswith("files of 1 case(s) state several PatientIDs, such as PAT0, PAT1 of acc0")
    assert of_mask.startswith("1 mask(s) are of several patients, such as seg.dcm of acc0, acc1: ")


def test_identify_patients_bids_subject_joins_sessions(tmp_path):
    names = ["sub-01_ses-1_T2w", "sub-01_ses-2_T2w", "sub-02_ses-1_T2w"]
    patients, origins, _ = found(site(tmp_path, [None] * 3, names=names), tmp_path)
    assert patients == ["A-sub-01", "A-sub-01", "A-sub-02"]
    assert set(origins) == {"BIDS entity"}


def test_identify_patients_in_any_source_they_are_one(tmp_path):
    raw = site(tmp_path, ["PAT0", "PAT1", "PAT1", None])
    patients, origins, remarks = found(raw, tmp_path, {"acc0": "x", "acc1": "x", "acc2": "z", "acc3": "y"})
    assert patients == ["A-PAT0", "A-PAT0", "A-PAT0", "A-y"]  # headers join acc1 and acc2, the table acc0 and acc1
    assert origins == ["DICOM header"] * 3 + ["table"]
    assert remarks[:2] == (
        "1 patient(s) have several names by the DICOM header, such as PAT0, PAT1: another statement says that they are "
        "one",
        "1 patient(s) have several names by the table, such as x, z: another statement says that they are one",
    )


def test_identify_patients_one_id_for_all_is_nobodys_and_reported(tmp_path):
    raw = site(tmp_path, ["STUDY7"] * 3)
    patients, origins, (remark,) = found(raw, tmp_path, {"acc0": "x", "acc1": "x", "acc2": "y"})
    assert patients == ["A-x", "A-x", "A-y"]
    assert set(origins) == {"table"}
    assert remark.startswith("all 3 cases state PatientID STUDY7, which counts as nobody's: their patients are taken")
    assert "from the table (3)" in remark
    patients, _, (remark,) = found(raw, tmp_path)
    assert patients == ["A-acc0", "A-acc1", "A-acc2"]
    assert "if several cases show one patient, name patients with --patient-table" in remark


def test_identify_patients_of_several_modalities_raise(tmp_path):
    raw = site(tmp_path, ["PAT0", "PAT1"])
    dicom(tmp_path / "acc1" / "1.2.840.1", "PAT1", "CT")
    with pytest.raises(BadInput, match=r"site A: images of several modalities \(MR of 1 cases, CT of 1 cases\)"):
        found(raw, tmp_path)


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        ([f"genius_{patient:02d}{visit:02d}" for patient in range(6) for visit in range(2)], 6),
        ([f"genius_{patient:02d}00" for patient in range(9)] + ["genius_0301"], 1),
        ([f"p{number}" for number in range(8)] + ["p3b"], 1),
        (["P01", "p1"], 1),
        (["P1_pre", "P1_post", "P2_pre"], 1),
        (["anna_L", "anna_R", "eva_L"], 1),
        (["x-v1", "x-v2", "y-v1"], 1),
        (["p0_t2", "p0_adc", "p1_t2", "p1_adc", "p2_adc"], 2),
        (["anna_20200101", "anna_20210305", "bert_20200101"], 1),
        ([f"BraTS-GLI-{patient:05d}-{visit:03d}" for patient in range(4) for visit in range(2)], 4),
        ([f"case{patient:02d}_{slice_:03d}" for patient in range(3) for slice_ in range(20)], 3),
        ([f"UPENN-GBM-{patient:05d}_11" for patient in range(9)], 0),
        ([f"Prostate3T-01-{patient:04d}" for patient in range(9)], 0),
        ([f"Case{number:02d}" for number in range(50) if number not in (3, 17)], 0),
        ([f"p{number}" for number in range(120)], 0),
        (["01", *(str(number) for number in range(26, 38))], 0),
        (["TCGA_CS_4941", "TCGA_CS_4942", "TCGA_CS_4943", "TCGA_CS_5393", "TCGA_CS_5395"], 0),
        ([f"exam{number}" for number in (100, 102, 104, 118, 131)], 0),
        ([f"p-{number}" for number in np.random.default_rng(0).integers(10000, 99999, 40)], 0),
    ],
)
def test_similar_names_visits_are_reported_and_counts_are_not(names, groups):
    assert len(similar_names(names)) == groups


def case(name, patient=None, site="all"):
    return RawCase(name, f"{site}-{patient or name}", None, None)


TABLES = {
    "FeTS": ("Partition_ID,Subject_ID\n1,FeTS2022_00000\n18,FeTS2022_00002\n", "Partition_ID", "FeTS2022_00002", "18"),
    "order": ("Subject_ID,Partition_ID\nFeTS2022_00002,18\n", "Partition_ID", "FeTS2022_00002", "18"),
    "PI-CAI": (
        "patient_id,study_id,center\n10000,1000000,ZGT\n10001,1000001,PCNN\n",
        "center",
        "10001_1000001",
        "PCNN",
    ),
    "KiTS": ("case_ids,site_ids,train_test_split\ncase_00001,3,train\n", "site_ids", "case_00001", "3"),
    "files": ("filename,pid\nimages/x0a.nii.gz,P0\nimages/x0b.nii.gz,P0\n", "pid", "x0a", "P0"),
    "files on Windows": ("file;pid\nC:\\study\\x0a.nii.gz;P0\n", "pid", "x0a", "P0"),
    "M&Ms": ("External code;Centre;Vendor\nA0S9V9;1;A\nA1D0Q7;2;B\n", "Centre", "A1D0Q7_sa", "2"),
}


@pytest.mark.parametrize("key", TABLES)
def test_read_lookup_column_is_found_by_the_names_of_cases(tmp_path, key):
    text, column, name, expected = TABLES[key]
    (tmp_path / "sheet.csv").write_text(text)
    lookup = read_lookup(f"{tmp_path / 'sheet.csv'}:{column}", "site")
    assert lookup(case(name)) == expected
    with pytest.raises(BadInput, match=r"sheet.csv: no row names case other .* in one of the columns"):
        lookup(RawCase("other", "all-other", tmp_path, tmp_path))


def test_read_lookup_of_no_column_two_values_or_a_bad_pattern_raises(tmp_path):
    (tmp_path / "sheet.csv").write_text("id,site\na,1\na,2\n")
    with pytest.raises(BadInput, match="has no column centre"):
        read_lookup(f"{tmp_path / 'sheet.csv'}:centre", "site")
    with pytest.raises(BadInput, match="case a has 2 values of site; expected one site"):
        read_lookup(f"{tmp_path / 'sheet.csv'}:site", "site")(case("a"))
    assert read_lookup("UCL", "site") is None
    for pattern, message in (("a(b", "not a pattern"), ("(a)(b)", "2 groups; expected one, that of the site")):
        with pytest.raises(BadInput, match=message):
            read_lookup(pattern, "site")
    with pytest.raises(BadInput, match=r"the name b has no site by the pattern \(a\)"):
        read_lookup("(a)", "site")(case("b"))


def test_assign_sites_renames_patients_and_keeps_what_is_left_out():
    whole = RawSite("all", (case("TCGA_DU_2"), case("TCGA_CS_1"), case("TCGA_DU_1")), (("x", "why"),))
    one, two = assign_sites([whole], read_lookup("TCGA_(..)_", "site"))
    assert (one.name, [case.patient for case in one.cases], one.left_out) == ("CS", ["CS-TCGA_CS_1"], (("x", "why"),))
    assert (two.name, [case.name for case in two.cases], two.left_out) == ("DU", ["TCGA_DU_1", "TCGA_DU_2"], ())


def test_prepare_site_and_patient_by_pattern_split_groups_together(tmp_path):
    for site_name in ("CS", "DU"):
        for patient in range(4):
            for slice_ in range(2):
                name = f"TCGA_{site_name}_{4000 + 17 * patient}_{slice_}.png"
                grey = np.random.default_rng([patient, slice_]).integers(0, 256, (20, 20), np.uint8)
                save_png(tmp_path / "raw" / "images" / name, grey)
                save_png(tmp_path / "raw" / "masks" / name, (255 * box()[:20, :20, 1]).astype(np.uint8))
    prepare(
        "generic", tmp_path / "sites", source=tmp_path / "raw", site="TCGA_(..)_", size=16, channels=1,
        patient_table=r"(TCGA_.._\d+)_", labels={"tumour": (255,)},
    )  # fmt: skip
    sites = open_sites(tmp_path / "sites")
    assert [one.name for one in sites] == ["CS", "DU"]
    for one in sites:
        split_of = {}
        for split, cases in one.splits.items():
            for each in cases:
                assert split_of.setdefault(each.patient, split) == split
        assert len(split_of) == 4
        assert one.info["patient_from"] == {"table": 8}


def test_prepare_visits_by_name_are_reported_and_checked(tmp_path):
    for patient in range(6):
        for visit in range(2):
            name = f"genius_{patient:02d}{visit:02d}.nii.gz"
            save_nifti(tmp_path / "raw" / "A" / "images" / name, volume([patient, visit]))
            save_nifti(tmp_path / "raw" / "A" / "masks" / name, box())
    prepare("generic", tmp_path / "sites", source=tmp_path / "raw", size=16, channels=1)
    (one,) = open_sites(tmp_path / "sites")
    remark = one.info["remarks"][0]["remark"]
    assert remark.startswith("names of patients differ only by their ends, case or zeros (6 groups: genius_0000,")
    split_of = {each.patient: split for split, cases in one.splits.items() for each in cases}
    apart = sum(split_of[f"A-genius_{p:02d}00"] != split_of[f"A-genius_{p:02d}01"] for p in range(6))
    reported = [finding for finding in examine(tmp_path / "sites").findings if finding.kind == "similar patients"]
    assert len(reported) == apart
    assert all("genius" not in str(finding.shareable) for finding in reported)


def test_read_lookup_case_whose_zeros_a_spreadsheet_dropped_is_named(tmp_path):
    (tmp_path / "sheet.csv").write_text("case;patient\n7;K1\n")
    lookup = read_lookup(f"{tmp_path / 'sheet.csv'}:patient", "patient")
    with pytest.raises(BadInput, match=r"no row names case 007.*; 7 differs only by zeros.*: write 007$"):
        lookup(case("007"))


@pytest.mark.parametrize("end", ["_slice{:02d}", "-slice-{}", "_z{:03d}", "_frame{}"])
def test_pictures_numbered_as_slices_or_frames_are_of_the_patient_that_their_names_begin_with(tmp_path, end):
    names = [f"P{patient}{end.format(place)}" for patient in (1, 2) for place in (0, 11)]
    cases = tuple(RawCase(name, f"A-{name}", tmp_path / f"{name}.png", tmp_path / name) for name in names)
    known = identify_patients(RawSite("A", cases), {}, None, tmp_path)
    assert [case.patient for case in known.cases] == ["A-P1", "A-P1", "A-P2", "A-P2"]


def test_patient_ids_of_several_sites_get_a_remark(tmp_path):
    cases = {name: RawCase("p", f"{name}-{who}", None, None, patient_from=Origin.DICOM) for name, who in IDS.items()}
    north, south, west = note_shared_patients([RawSite(name, (case,)) for name, case in cases.items()])
    assert north.remarks == (
        "1 PatientID(s) are also at south, such as 4711: if they are the same people, keep each at one site",
    )
    assert "also at north" in south.remarks[0]
    assert west.remarks == ()


IDS = {"north": "4711", "south": "4711", "west": "4712"}


GROUPS_TABLE = "site,case,patient,sex,age,scanner\nA,p0,p0,F,63,x\nA,p1,p1,M,063Y,\nA,p2,p2,F,97,x\nB,p0,p0,M,8,y\n"


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
def grouped(tmp_path):
    for site in ("A", "B"):
        for number in range(3):
            save_nifti(tmp_path / "raw" / site / "images" / f"p{number}.nii.gz", volume(number))
            save_nifti(tmp_path / "raw" / site / "masks" / f"p{number}.nii.gz", box())
    (tmp_path / "table.csv").write_text(GROUPS_TABLE)
    (tmp_path / "participants.tsv").write_text("participant_id\tsex\np0\tF\np1\tM\np2\tF\n")
    return tmp_path / "raw"


def groups_of(sites, site="A"):
    (folder,) = (one for one in open_sites(sites) if one.name == site)
    cases = [case for split in folder.splits.values() for case in split]
    return {case.name: dict(case.groups) for case in cases}, folder.info


@pytest.mark.parametrize("by", ["patient table", "table of its own"])
def test_prepare_groups_are_columns_of_a_table(tmp_path, grouped, by):
    table = tmp_path / "table.csv"
    options = {"groups": f"{table}:sex,age,scanner"}
    if by == "patient table":
        options = {"groups": "sex,age,scanner", "patient_table": table}
    prepare("generic", tmp_path / "sites", source=grouped, channels=1, size=16, **options)
    found, info = groups_of(tmp_path / "sites")
    assert found["p0"] == {"sex": "F", "age": "60 to 69", "scanner": "x"}
    assert found["p1"] == {"sex": "M", "age": "60 to 69"}
    assert found["p2"]["age"] == "90 and older"
    assert groups_of(tmp_path / "sites", "B")[0]["p0"] == {"sex": "M", "age": "0 to 9", "scanner": "y"}
    assert info["groups"] == ["sex", "age", "scanner"]
    assert "no scanner of 1 of 3 cases is stated" in [one["remark"] for one in info["remarks"]]
    assert "063Y" not in json.dumps(info)


def test_prepare_groups_of_a_table_with_tabs_and_without_sites(tmp_path, grouped):
    options = {"groups": f"{tmp_path / 'participants.tsv'}:sex"}
    prepare("generic", tmp_path / "sites", source=grouped, channels=1, size=16, **options)
    assert groups_of(tmp_path / "sites", "B")[0] == {"p0": {"sex": "F"}, "p1": {"sex": "M"}, "p2": {"sex": "F"}}


@pytest.mark.parametrize(
    ("asked", "message"),
    [("sex", "names no table"), ("{table}:size", "has no column size"), ("{empty}:sex", "empty.csv: names no case")],
)
def test_prepare_groups_without_a_table_or_column_raise(tmp_path, grouped, asked, message):
    (tmp_path / "empty.csv").write_text("case,sex\n")
    asked = asked.format(table=tmp_path / "table.csv", empty=tmp_path / "empty.csv")
    with pytest.raises(BadInput, match=message):
        prepare("generic", tmp_path / "sites", source=grouped, channels=1, size=16, groups=asked)
