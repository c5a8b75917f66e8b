"""Floors under a survey's bins, whatever the patients have in them."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedmerit.schema.survey import Question, Survey, Surveyed, Tally, find_quantity, mask_small_bins

TABLES = arrays.arrays(np.int64, st.tuples(st.integers(2, 12), st.integers(1, 6)), elements=st.integers(0, 3))


@settings(max_examples=50, deadline=None)
@given(TABLES, st.integers(2, 6))
def test_no_bin_and_no_rest_of_all_bins_is_of_fewer_patients(table, floor):
    tally = mask_small_bins(table, floor, voxels=True)
    shown = np.array(tally.patients) > 0
    assert all(count >= floor for count in np.array(tally.patients)[shown])
    left_out = int((table[:, ~shown] > 0).any(axis=1).sum())
    # What is known of the whole tells the rest: of fewer patients it may only be where there are no more.
    assert left_out == 0 or left_out >= floor or not shown.any()
    assert np.array_equal(np.array(tally.patients)[shown], (table > 0).sum(axis=0)[shown])
    assert np.array_equal(np.array(tally.voxels), np.where(shown, table.sum(axis=0), 0))


def test_what_is_left_out_keeps_to_the_floor_too():
    """Of 16 patients 9 and 5 are shown, so that 2 lie elsewhere: a floor of 2 allows that, one of 5 does not."""
    table = np.zeros((16, 4), np.int64)
    for patient, place in enumerate([0] * 9 + [1] * 5 + [2, 3]):
        table[patient, place] = 1
    tally = mask_small_bins(table, 2)
    assert tally.patients == (9, 5, 0, 0)
    for floor, below in ((2, False), (3, True), (5, True)):
        assert Surveyed(16, 16, {"plane": tally}, 2).below(floor) == below
    assert not Surveyed(16, 16, {"plane": mask_small_bins(table, 5)}, 5).below(5)


def test_answers_come_back_from_files_as_they_went():
    bins = find_quantity("intensity 2").bins
    tallies = {
        "intensity 2": Tally((5,) * bins, (70,) * bins),
        "area cup": Tally((0,) * find_quantity("area cup").bins),
    }
    survey = Survey(5, {"A": Surveyed(9, 90, tallies, 5)}, {"B": "no reply"})
    assert Survey.from_dict(json.loads(json.dumps(survey.to_dict()))) == survey


@pytest.mark.parametrize(
    "change", [{"sites": []}, {"refused": None}, {"floor": "5"}, {"sites": {"A": {"patients": 3}}}]
)
def test_what_is_no_survey_is_said_to_be_none(change):
    with pytest.raises(ValueError, match=r"survey"):
        Survey.from_dict({"floor": 5, "sites": {}, "refused": {}} | change)


@pytest.mark.parametrize("floor", [1, 0, 2.5, True, "5"])
def test_a_floor_is_a_number_of_patients(floor):
    with pytest.raises(ValueError, match="from 2 on"):
        Question(floor)
