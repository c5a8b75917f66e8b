"""What a site says of its images, against the images themselves."""

from dataclasses import replace

import numpy as np
import pytest

from fedmerit.schema.messages import Failure
from fedmerit.schema.site_folder import Case, SiteFolder, open_sites
from fedmerit.schema.survey import TOO_FEW, Question, find_quantity
from fedmerit_deploy.survey import local_survey, survey_site

FLOOR = Question(2)


def cases_of(folder):
    return [case for cases in folder.splits.values() for case in cases]


def shown_of(tally):
    return np.array(tally.patients) > 0


def test_histograms_are_those_of_the_pooled_images(sites):
    """Of the bins that all sites show: nothing was left out of them."""
    folders = open_sites(sites)
    survey = local_survey(folders, FLOOR)
    pooled = np.concatenate([np.ravel(case.image) for folder in folders for case in cases_of(folder)])
    edges = np.array([-np.inf, *find_quantity("intensity").edges, np.inf])
    expected = np.histogram(pooled.astype(np.float64), edges)[0]
    tallies = [one.tallies["intensity"] for one in survey.sites.values()]
    everywhere = np.all([shown_of(tally) for tally in tallies], axis=0)
    assert everywhere.sum() > 5
    total = np.sum([tally.voxels for tally in tallies], axis=0)
    assert np.array_equal(total[everywhere], expected[everywhere])
    assert total[everywhere].sum() > 0.9 * pooled.size
    assert sum(one.slices for one in survey.sites.values()) == len(pooled) // 32**2


def test_patients_by_spacing_size_and_volume_are_those_of_the_site(sites):
    folder = open_sites(sites)[0]
    answer = survey_site(folder, FLOOR)
    patients = {case.patient: case for case in cases_of(folder)}
    assert answer.patients == len(patients)
    of_volume = [float(case.label.sum() * np.prod(case.spacing) / 1000) for case in patients.values()]
    for name, values in {
        "slice_spacing": [case.spacing[0] for case in patients.values()],
        "pixel_spacing": [one["spacing"][1] for one in folder.info["readings"]],  # as acquired
        "field_of_view": [32 * case.spacing[1] for case in patients.values()],
        "slices": [len(case.image) for case in patients.values()],
        "volume prostate": of_volume,
        "plane": [1] * len(patients),  # axial
    }.items():
        edges = np.array([-np.inf, *find_quantity(name).edges, np.inf])
        shown = shown_of(answer.tallies[name])
        assert np.array_equal(np.array(answer.tallies[name].patients)[shown], np.histogram(values, edges)[0][shown])
    assert not any(name.startswith("area") for name in answer.tallies)


def test_readings_of_another_form_count_nothing(sites):
    folder = SiteFolder(sites / "site1")
    name = cases_of(folder)[0].name
    for stated in (
        None,
        3,
        [3],
        [{"case": name, "plane": "oblique", "cut": "much"}],
        [{"case": name, "plane": 1, "cut": 7}],
    ):
        folder.info = {**folder.info, "readings": stated}
        assert not {"plane", "values_cut"} & set(survey_site(folder, FLOOR).tallies)
    folder.info = {"readings": [{"case": case.name, "cut": 0.6} for case in cases_of(folder)]}
    found = survey_site(folder, FLOOR).tallies
    assert (np.argmax(found["plane"].patients), np.argmax(found["values_cut"].patients)) == (0, 5)


def test_a_case_of_unknown_spacing_has_an_area_and_no_volume(sites):
    folder = SiteFolder(sites / "site1")
    folder.splits = {"training": tuple(replace(case, spacing=None) for case in cases_of(folder))}
    answer = survey_site(folder, FLOOR)
    assert set(answer.tallies) == {"area prostate", "intensity", "plane", "slices"}
    assert sum(answer.tallies["area prostate"].patients) <= answer.patients


def test_several_cases_of_a_patient_count_once(sites):
    folder = SiteFolder(sites / "site1")
    folder.splits = {"training": tuple(replace(case, patient="one") for case in cases_of(folder))}
    assert survey_site(folder, FLOOR) == Failure(TOO_FEW)


def test_a_site_with_too_few_patients_is_named_and_says_nothing(sites):
    survey = local_survey(open_sites(sites), Question(1000))
    assert survey.sites == {}
    assert survey.refused == dict.fromkeys(("site1", "site2", "site3"), TOO_FEW)


@pytest.mark.parametrize("outer", [-1e30, -3.000001, 5.0, 1e30])
def test_intensities_beyond_the_bins_are_in_the_outer_ones(tmp_path, outer):
    np.save(tmp_path / "image.npy", np.full((1, 1, 2, 2), outer, np.float32))
    np.save(tmp_path / "label.npy", np.zeros((1, 1, 2, 2), np.uint8))
    folder = SiteFolder.__new__(SiteFolder)
    cases = [Case(str(n), str(n), tmp_path / "image.npy", tmp_path / "label.npy") for n in range(2)]
    folder.splits, folder.labels, folder.info = {"training": tuple(cases)}, ("mask",), {}
    voxels = survey_site(folder, FLOOR).tallies["intensity"].voxels
    assert voxels[-1 if outer > 0 else 0] == sum(voxels) == 8
