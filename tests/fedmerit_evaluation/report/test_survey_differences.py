"""A survey tells of what preparation should have made alike: right sentences of made counts, none of alike sites."""

import numpy as np
import pytest

from fedmerit.schema.survey import Survey, Surveyed, Tally, find_quantity
from fedmerit_evaluation.report.survey import survey_differences

ALIKE = {  # a bin, by quantity: the same at all sites
    "plane": 1,
    "pixel_spacing": 3,
    "slice_spacing": 6,
    "field_of_view": 5,
    "values_cut": 2,
    "volume cup": 4,
    "area disc": 3,
    "intensity": 12,
}


def survey(**changed):
    """Three sites of 20 patients, the first with bins ``changed``; half of each is in the bin above."""

    def tally(name, place):
        counts = np.zeros(find_quantity(name).bins, int)
        counts[place] += 10
        counts[place if name == "plane" else min(place + 1, len(counts) - 1)] += 9
        patients = tuple(map(int, counts))
        return Tally(patients, patients if name == "intensity" else ())

    def site(bins):
        return Surveyed(20, 200, {name: tally(name, place) for name, place in bins.items()}, 5)

    own = ALIKE | {name.replace("__", " "): place for name, place in changed.items()}
    return Survey(5, {"Alder": site(own), "Birch": site(ALIKE), "Cedar": site(ALIKE)}, {})


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, []),
        ({"plane": 2}, ["Alder: its slices are sagittal, those of the other sites axial"]),
        ({"pixel_spacing": 5, "field_of_view": 7, "volume__cup": 6}, []),  # as hospitals differ
        ({"pixel_spacing": 13}, ["Alder: Spacing of pixels, as acquired: about 5 mm, the other sites 0.447: is its"]),
        ({"field_of_view": 0}, ["Alder: Field of view: about 60 mm, the other sites 164: is its unit of length"]),
        ({"volume__cup": 0}, ["Alder: Volume of cup: about 0.01 ml, the other sites 28.3: do its labels mean the"]),
        ({"values_cut": 6}, ["Alder: most of its values are beyond the window"]),
        ({"intensity": 15}, ["Alder: its intensities have 0% in common"]),
    ],
)
def test_sites_that_differ_as_they_should_not(changed, expected):
    found = survey_differences(survey(**changed))
    assert [text[: len(start)] for text, start in zip(found, expected, strict=True)] == expected
