"""What a site folder says of its cases, of made-up outcomes."""

import pytest

from fedmerit.errors import BadInput
from fedmerit.files import read_json
from fedmerit_data.preparation import Preparation
from fedmerit_data.preparing.cases import CaseTask, PreparedCase, UnusableCase
from fedmerit_data.preparing.site_lists import split_site, write_lists
from fedmerit_data.raw_cases import RawCase, RawSite

KIND = "prostate-multisite"
SPLITS = ("training", "validation", "testing", "server_validation")


@pytest.fixture
def asked(tmp_path):
    def build(**options):
        return Preparation(KIND, tmp_path / "raw", size=32, field_of_view=64.0, **options)

    return build


def raw_case(folder, name, patient=None):
    return RawCase(name, patient or name, folder / "raw" / f"{name}.nii", folder / "raw" / f"{name}_mask.nii")


def outcome(folder, asked, case, reason="", **changes):
    """A case of four slices, the second of which shows the organ; or why it cannot be used."""
    work = CaseTask(asked.layout, folder / "raw", "UCL", case, folder / "partial", 32, 64.0, None)
    if reason:
        return work, UnusableCase(reason, readable=False)
    raw = {f"{case.name}.nii": "1", f"{case.name}_mask.nii": "2", "shared.raw": "3"}
    checksums = {name: f"sum of {name}" for name in work.arrays.values()}
    of_all = {"crop": {"top": 1, "left": 2, "height": 3, "width": 4}, "spacing": [3.0, 2.0, 2.0], "remarks": []}
    return work, PreparedCase(**{"raw": raw, "checksums": checksums, "slices": 4, "organ": [1], **of_all, **changes})


def written(folder):
    site = folder / "partial" / "sites" / "UCL"
    return read_json(site / "datalist.json"), read_json(site / "site.json")


def test_lists_of_three_patients_of_whom_one_has_two_cases(tmp_path, asked):
    cases = [raw_case(tmp_path, name, patient) for name, patient in (("a", "p"), ("b", "q"), ("c", "r"), ("d", "p"))]
    outcomes = [outcome(tmp_path, asked(), case) for case in cases]
    outcomes[2] = outcome(tmp_path, asked(), cases[2], slices=7, remarks=["clipped"])
    write_lists(RawSite("UCL", tuple(cases), (("notes.txt", "no scan"),)), outcomes, asked())
    lists, info = written(tmp_path)
    assert set(lists) == set(info["counts"]) == set(SPLITS)
    places = {entry["case"]: split for split, entries in lists.items() for entry in entries}
    assert places["a"] == places["d"]
    assert {places[name] for name in "abc"} == set(SPLITS[:3])
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
    told = (
        r"(?s)^site UCL: 0 patient\(s\).* leave the site out .*\n12 of its 12 cases are left out as unreadable:\n"
        r"  [^ ]*raw/00.nii: cut off\n.*/09.nii: cut off\n  and 2 more$"
    )
    with pytest.raises(BadInput, match=told):
        write_lists(RawSite("UCL", tuple(cases)), outcomes, asked())


def test_slices_of_the_organ_are_counted_in_training_alone(tmp_path, asked):
    cases = [raw_case(tmp_path, name) for name in "abc"]
    site, organ = RawSite("UCL", tuple(cases)), asked(slices="organ")
    write_lists(site, [outcome(tmp_path, organ, case) for case in cases], organ)
    lists, info = written(tmp_path)
    assert {split: info["counts"][split]["slices"] for split in SPLITS[:3]} == {
        "training": 1, "validation": 4, "testing": 4
    }  # fmt: skip
    assert [[entry.get("slices") for entry in lists[split]] for split in SPLITS[:3]] == [[[1]], [None], [None]]
    with pytest.raises(BadInput, match="site UCL: no training slice shows the organ; prepare with slices=all"):
        write_lists(site, [outcome(tmp_path, organ, case, organ=[]) for case in cases], organ)


def test_names_that_cannot_be_those_of_files(tmp_path, asked):
    def split(site, *names):
        cases = tuple(raw_case(tmp_path, name) for name in names)
        return split_site(RawSite(site, cases), cases, asked())

    assert set(split("UCL", "a", "b", "é" * 100).values()) == set(SPLITS[:3])
    for site, names, told in (
        ("UCL", ("a", "b", "é" * 101), "é is too long for its files"),  # of 202 bytes
        ("U" * 201, ("a", "b", "c"), "U is too long for its files"),
        ("UCL", ("a", "b", "c", "b"), "2 cases have the name b; keep one of their files"),
    ):
        with pytest.raises(BadInput, match=told):
            split(site, *names)
