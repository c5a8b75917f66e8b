"""The patients of prepared sites, and the class of each."""

import numpy as np
import pytest
from run_factory import make_sites
from site_folders import edit

from fedmerit.errors import BadInput
from fedmerit.schema.site_folder import open_sites
from fedmerit_lab.partitioning.assignment import pool_patients


@pytest.fixture
def two(tmp_path):
    return make_sites(tmp_path / "sites", ("A", "B"), size=16)


def test_every_patient_stands_once_with_its_split_and_source(two):
    edit(two / "B" / "datalist.json", lambda lists: lists["training"][3].update(patient="B-training-0"))
    pooled = pool_patients(open_sites(two), "source")
    names = [one.name for one in pooled]
    assert names == sorted(names)
    assert len(names) == 2 * 3 * 5 - 1
    one = pooled[names.index("B-training-0")]
    assert (one.split, one.source.name, one.patient_class) == ("training", "B", "B")
    assert [(case.name, case.entry["case"]) for case in one.cases] == [
        ("B-training0", "training0"), ("B-training3", "training3")
    ]  # fmt: skip
    assert one.cases[1].case.image_file == two / "B" / "training3_image.npy"


def test_of_several_labels_the_part_of_the_last_is_a_patients_class(tmp_path):
    sites = make_sites(tmp_path / "sites", ("A", "B"), ("disc", "cup"), channels=3, size=16)
    for place, case in enumerate(case for site in open_sites(sites) for case in site.cases("training")):
        label = np.zeros_like(np.load(case.label_file))
        label[:, 0] = 1
        label[:, 1, : place + 1] = 1  # the cup grows from patient to patient
        np.save(case.label_file, label)
    pooled = pool_patients(open_sites(sites), "labels")
    cups = {one.name: float(np.load(one.cases[0].case.label_file)[:, 1].mean()) for one in pooled}
    ordered = [one.patient_class for one in sorted(pooled, key=lambda one: cups[one.name]) if one.split == "training"]
    assert ordered == sorted(ordered)


def stored_classes(two, measure, store):
    """The class of every training patient, of whom each case is stored with a number of its own, in turn."""
    cases = [case for site in open_sites(two) for case in site.cases("training")]
    for number, case in enumerate(cases):
        store(case, (7 * number) % len(cases))
    for site in open_sites(two):
        edit(site.path / "datalist.json", lambda lists: lists.update(validation=[], testing=[]))
    patient_class = {one.name: one.patient_class for one in pool_patients(open_sites(two), measure)}
    return [patient_class[f"{site}-training-{n}"] for site in "AB" for n in range(5)]


# Of ten patients, the ranks 0 to 2 are the first quarter, 3 and 4 the second, 5 to 7 the third, 8 and 9 the fourth.
QUARTER = (1, 1, 1, 2, 2, 3, 3, 3, 4, 4)


def test_quarters_by_the_largest_cross_section(two):
    def store(case, rank):
        label = np.zeros((3, 1, 16, 16), np.uint8)
        label[1, 0].flat[: 10 + rank] = 1
        label[2, 0].flat[: 10 - rank] = 1  # a smaller one tells nothing
        np.save(case.label_file, label)

    assert stored_classes(two, "size", store) == [f"size {QUARTER[7 * number % 10]}" for number in range(10)]


def test_quarters_by_the_intensity_within_the_organ(two):
    def store(case, rank):
        label = np.zeros((3, 1, 16, 16), np.uint8)
        label[:, :, 4:8] = rank > 0  # without an organ it is 0
        image = np.full((3, 1, 16, 16), 100.0 - rank, np.float32)
        image[:, :, 4:8] = rank
        np.save(case.label_file, label)
        np.save(case.image_file, image)

    assert stored_classes(two, "intensity", store) == [f"intensity {QUARTER[7 * number % 10]}" for number in range(10)]


def test_a_patient_in_two_places_or_two_cases_of_one_name(two):
    with pytest.raises(BadInput, match="classes labels: there is one label, prostate"):
        pool_patients(open_sites(two), "labels")
    (two / "B").rename(two / "A-x")
    edit(two / "A-x" / "site.json", lambda info: info.update(name="A-x"))
    edit(two / "A" / "datalist.json", lambda lists: lists["training"][0].update(case="x-scan_1"))
    with pytest.raises(BadInput, match="two cases would be named A-x-scan_1; rename the site or one case"):
        pool_patients(open_sites(two), "source")
    edit(two / "A-x" / "datalist.json", lambda lists: lists["testing"][0].update(patient="A-training-2"))
    with pytest.raises(BadInput, match="A-x: patient A-training-2 is in testing and in training of site A; "):
        pool_patients(open_sites(two), "source")
