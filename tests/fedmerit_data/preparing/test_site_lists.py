"""Patients of a table, splits by patient, and the lists of a site folder."""

import pytest
from layouts import prepare, prostate_site

from fedmerit.engines import runs
from fedmerit.errors import BadInput
from fedmerit.files import read_json
from fedmerit.schema.site_folder import SiteFolder, open_sites
from fedmerit_data.check import examine
from fedmerit_data.checking.findings import Severity
from fedmerit_data.preparation import Preparation
from fedmerit_data.preparing.cases import CaseTask, PreparedCase, UnusableCase
from fedmerit_data.preparing.site_lists import split_site, write_lists
from fedmerit_data.raw_cases import RawCase, RawSite

KIND = "prostate-multisite"
ALL_SPLITS = ("training", "validation", "testing", "server_validation")


@pytest.fixture
def asked(tmp_path):
    def build(**options):
        return Preparation(KIND, tmp_path / "raw", size=32, field_of_view=64.0, **options)

    return build


def raw_case(folder, name, patient=None):
    return RawCase(name, patient or name, folder / "raw" / f"{name}.nii", folder / "raw" / f"{name}_mask.nii")


def outcome(folder, asked, case, reason="", **changes):
    """A case of four slices, the second of which shows the organ; or why it cannot be used."""
    task = CaseTask(asked.layout, folder / "raw", "UCL", case, folder / "partial", 32, 64.0, None)
    if reason:
        return task, UnusableCase(reason, readable=False)
    raw = {f"{case.name}.nii": "1", f"{case.name}_mask.nii": "2", "shared.raw": "3"}
    checksums = {name: f"sum of {name}" for name in task.arrays.values()}
    common = {
        "crop": {"top": 1, "left": 2, "height": 3, "width": 4},
        "spacing": [3.0, 2.0, 2.0],
        "remarks": [],
        "reading": {"case": case.name},
        "source": {},
    }
    return task, PreparedCase(**{"raw": raw, "checksums": checksums, "slices": 4, "organ": [1], **common, **changes})


def written(folder):
    site = folder / "partial" / "sites" / "UCL"
    return read_json(site / "datalist.json"), read_json(site / "site.json")


def test_lists_of_three_patients_of_whom_one_has_two_cases(tmp_path, asked):
    cases = [raw_case(tmp_path, name, patient) for name, patient in (("a", "p"), ("b", "q"), ("c", "r"), ("d", "p"))]
    outcomes = [outcome(tmp_path, asked(), case) for case in cases]
    outcomes[2] = outcome(tmp_path, asked(), cases[2], slices=7, remarks=["clipped"])
    write_lists(RawSite("UCL", tuple(cases), (("notes.txt", "no scan"),)), outcomes, asked())
    lists, info = written(tmp_path)
    assert set(lists) == set(info["counts"]) == set(ALL_SPLITS)
    places = {entry["case"]: split for split, entries in lists.items() for entry in entries}
    assert places["a"] == places["d"]
    assert {places[name] for name in "abc"} == set(ALL_SPLITS[:3])
    assert info["counts"][places["a"]] == {"cases": 2, "patients": 1, "slices": 8}
    assert info["counts"][places["c"]] == {"cases": 1, "patients": 1, "slices": 7}
    assert info["counts"]["server_validation"] == {"cases": 0, "patients": 0, "slices": 0}
    assert lists[places["b"]] == [
        {
            "case": "b",
            "patient": "q",
            "image": "cases/b_image.npy",
            "label": "cases/b_label.npy",
            "crop": {"top": 1, "left": 2, "height": 3, "width": 4},
            "spacing": [3.0, 2.0, 2.0],
        }
    ]
    assert (info["name"], info["task"], info["labels"], info["channels"]) == ("UCL", "prostate", ["prostate"], 1)
    assert (info["image_size"], info["spacing"]) == ([32, 32], [2.0, 2.0])  # 64 mm over 32 pixels
    assert info["used"] == {"cases": 4, "files": 9}  # two a case, and one that all share
    assert info["remarks"] == [{"case": "c", "remark": "clipped"}]
    assert info["left_out"] == [{"file": "notes.txt", "reason": "no scan"}]
    assert info["checksums"]["cases/d_label.npy"] == "sum of cases/d_label.npy"
    assert len(info["checksums"]) == 8


def test_unusable_cases_are_left_out_by_file_without_the_folder_of_the_source(tmp_path, asked):
    cases = [raw_case(tmp_path, name) for name in "abcd"]
    outcomes = [outcome(tmp_path, asked(), case) for case in cases[:3]]
    outcomes.append(outcome(tmp_path, asked(), cases[3], f"{tmp_path / 'raw'}/d.nii: cut off"))
    write_lists(RawSite("UCL", tuple(cases)), outcomes, asked())
    lists, info = written(tmp_path)
    assert info["left_out"] == [
        {"file": name, "reason": "unreadable case: d.nii: cut off"} for name in ("d.nii", "d_mask.nii")
    ]
    assert (info["unreadable_cases"], info["used"]["cases"]) == (1, 3)
    assert sorted(entry["case"] for entries in lists.values() for entry in entries) == ["a", "b", "c"]


def test_a_site_that_unreadable_cases_leave_too_small_names_them(tmp_path, asked):
    cases = [raw_case(tmp_path, f"{number:02d}") for number in range(12)]
    outcomes = [outcome(tmp_path, asked(), case, f"{case.image}: cut off") for case in cases]
    reported = (
        r"(?s)^site UCL: 0 patient\(s\).* leave the site out .*\n\t12 of its 12 cases are left out as unreadable:\n"
        r"\t[^ ]*raw/00.nii: cut off\n.*/09.nii: cut off\n\tand 2 more$"
    )
    with pytest.raises(BadInput, match=reported):
        write_lists(RawSite("UCL", tuple(cases)), outcomes, asked())


def test_slices_of_the_organ_are_counted_in_training_locally(tmp_path, asked):
    cases = [raw_case(tmp_path, name) for name in "abc"]
    site, organ = RawSite("UCL", tuple(cases)), asked(slices="organ")
    write_lists(site, [outcome(tmp_path, organ, case) for case in cases], organ)
    lists, info = written(tmp_path)
    assert {split: info["counts"][split]["slices"] for split in ALL_SPLITS[:3]} == {
        "training": 1, "validation": 4, "testing": 4
    }  # fmt: skip
    assert [[entry.get("slices") for entry in lists[split]] for split in ALL_SPLITS[:3]] == [[[1]], [None], [None]]
    with pytest.raises(BadInput, match="site UCL: no training slice shows the organ; prepare with slices=all"):
        write_lists(site, [outcome(tmp_path, organ, case, organ=[]) for case in cases], organ)


def test_names_that_cannot_be_those_of_files(tmp_path, asked):
    def split(site, *names):
        cases = tuple(raw_case(tmp_path, name) for name in names)
        return split_site(RawSite(site, cases), cases, asked())[0]

    assert set(split("UCL", "a", "b", "é" * 100).values()) == set(ALL_SPLITS[:3])
    for site, names, reported in (
        ("UCL", ("a", "b", "é" * 101), "é is too long for its files"),  # of 202 bytes
        ("U" * 201, ("a", "b", "c"), "U is too long for its files"),
        ("UCL", ("a", "b", "c", "b"), "2 cases have the name b; keep one of their files"),
    ):
        with pytest.raises(BadInput, match=reported):
            split(site, *names)


FIELD = {"size": 32, "field_of_view": 24.0}
HEADER = "site,case,patient\n"


@pytest.fixture
def source(tmp_path):
    prostate_site(tmp_path / "raw" / "UCL", cases=5)
    return tmp_path / "raw"


def patients(site):
    return {case.name: case.patient for cases in site.splits.values() for case in cases}


def prepared(source, out, **options):
    (folder,) = prepare("prostate-multisite", out, source=source, **FIELD, **options)
    return SiteFolder(folder)


def test_cases_of_one_patient_stay_in_one_split(source, tmp_path):
    names = sorted(patients(prepared(source, tmp_path / "without")))
    table = tmp_path / "patients.csv"
    table.write_text(HEADER + "".join(f"UCL,{name},one\n" for name in names[:3]))
    for seed in range(5):
        site = prepared(source, tmp_path / str(seed), patient_table=table, seed=seed)
        found = patients(site)
        assert [found[name] for name in names[:3]] == ["UCL-one"] * 3
        assert len(set(found.values())) == 3
        homes = {split for split, cases in site.splits.items() for case in cases if case.patient == "UCL-one"}
        assert len(homes) == 1
        assert len(site.info["patient_table"]) == 64


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEADER + "UCL,Case77,one\n", "site UCL has no case Case77; expected names such as site UCL, case Case"),
        (HEADER + "UCL,CASE,one\nUCL,CASE,two\n", "line 3: case CASE of site UCL is listed twice"),
        (HEADER + "UCL,CASE,\n", "line 2: expected a value in each of the columns site, case, patient"),
        ("case,patient\nCASE,one\n", "has no column site; expected the columns site, case, patient"),
        (HEADER, "names no case; expected a line for each case with its site, case, patient"),
        (HEADER + ",,\n", "names no case"),
        (b"\xff\xfe\x00", "not a readable table"),
        (None, "not a readable table"),
    ],
)
def test_a_table_that_cannot_be_used(source, tmp_path, content, message):
    name = min(patients(prepared(source, tmp_path / "without")))
    table = tmp_path / "patients.csv"
    if isinstance(content, bytes):
        table.write_bytes(content)
    elif content is not None:
        table.write_text(content.replace("CASE", name))
    with pytest.raises(BadInput, match=message.replace("CASE", name)) as error:
        prepared(source, tmp_path / "sites", patient_table=table)
    assert str(table) in str(error.value)
    assert not (tmp_path / "sites").exists()


def test_a_table_by_column_that_names_no_case(source, tmp_path):
    table = tmp_path / "patients.csv"
    table.write_text("case,patient\n")
    with pytest.raises(BadInput, match=r"patients\.csv: names no case"):
        prepared(source, tmp_path / "sites", patient_table=f"{table}:patient")


def test_cases_that_a_table_does_not_name_are_counted_in_a_remark(source, tmp_path):
    table = tmp_path / "patients.csv"
    names = sorted(patients(prepared(source, tmp_path / "without")))
    table.write_text(HEADER + "".join(f"UCL,{name},{name}\n" for name in names))
    assert prepared(source, tmp_path / "all", patient_table=table).info["remarks"] == []
    table.write_text(HEADER + f"UCL,{names[0]},one\n")
    site = prepared(source, tmp_path / "some", patient_table=table)
    assert set(patients(site).values()) == {"UCL-one", *(f"UCL-{name}" for name in names[1:])}
    assert [entry["remark"] for entry in site.info["remarks"]] == [
        "the patient table lacks 4 of 5 cases, whose patients are taken from files and folders: complete it if one of "
        "these patients has several cases"
    ]
    assert "site remark" in {finding.kind for finding in examine(tmp_path / "some").findings}


def test_a_site_that_is_only_tested_on(source, tmp_path):
    site = prepared(source, tmp_path / "sites", ratios=(0.0, 0.0, 1.0), server_share=0.5)
    assert {split: len(cases) for split, cases in site.splits.items() if cases} == {"testing": 5}
    found = examine(tmp_path / "sites")
    assert not found.of(Severity.error)
    noted = {finding.split for finding in found.findings if finding.kind == "no such split"}
    assert noted == {"training", "validation"}
    assert [folder.name for folder in open_sites(tmp_path / "sites")] == ["UCL"]
    with pytest.raises(BadInput, match="site UCL: its training split is empty; prepare it with ratios above 0"):
        runs.create(tmp_path / "run", method="standalone", sites=tmp_path / "sites")
    assert not (tmp_path / "run").exists()
