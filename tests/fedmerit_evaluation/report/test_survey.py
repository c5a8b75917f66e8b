"""A survey shown: its tables against counts made for it, what stands instead of a number below the floor."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from fedmerit.files import read_json
from fedmerit.schema.survey import Survey, Surveyed, Tally, find_quantity
from fedmerit_evaluation.report.survey import (
    bin_name,
    long_table,
    sites_table,
    survey_differences,
    survey_table,
    write_survey,
)

FEW = find_quantity("volume cup").bins  # 10


def _filled(bins: int, **counts: int) -> tuple[int, ...]:
    """Counts by bin, ``_3=7``: 7 in bin 3."""
    return tuple(counts.get(f"_{place}", 0) for place in range(bins))


@pytest.fixture
def survey() -> Survey:
    bins = find_quantity("intensity").bins
    alder = {
        "volume cup": Tally(_filled(FEW, _1=9, _3=6)),
        "intensity": Tally(_filled(bins, _0=6, _1=9, _2=9), _filled(bins, _0=50, _1=30, _2=90)),
    }
    birch = {"volume cup": Tally(_filled(FEW, _1=7, _9=8))}
    return Survey(5, {"Alder": Surveyed(15, 90, alder, 5), "Birch": Surveyed(20, 70, birch, 5)}, {"Cedar": "no reply"})


def test_patients_by_site_and_bin_and_of_all_sites(survey: Survey) -> None:
    table = survey_table(survey, "volume cup")
    assert (table.name, table.caption) == ("volume-cup", "Volume of cup [ml]: patients")
    assert table.frame.to_dict("records") == [  # bins that no site fills have no column
        {"Site": "Alder", "0.01 to 5": "9", "10 to 20": "6", "250 and more": "< 5"},
        {"Site": "Birch", "0.01 to 5": "7", "10 to 20": "< 5", "250 and more": "8"},
        {"Site": "all sites", "0.01 to 5": "16", "10 to 20": "6", "250 and more": "8"},
    ]
    assert sites_table(survey).frame.to_numpy().tolist() == [
        ["Alder", 15, 90],
        ["Birch", 20, 70],
        ["all sites", 35, 160],
    ]


def test_one_site_has_no_row_of_all(survey: Survey) -> None:
    single = Survey(5, {"Alder": survey.sites["Alder"]}, {})
    assert sites_table(single).frame["Site"].to_list() == ["Alder"]
    assert survey_table(single, "volume cup").frame["Site"].to_list() == ["Alder"]


def test_the_outer_bins_are_open() -> None:
    volume = find_quantity("volume cup")
    names = [bin_name(volume, place) for place in range(volume.bins)]
    assert (names[0], names[1], names[-2], names[-1]) == ("below 0.01", "0.01 to 5", "150 to 250", "250 and more")


def test_page_table_and_terminal_name_who_did_not_answer(survey: Survey, tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=200)
    page = write_survey(survey, tmp_path, console).read_text()
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    for text in (printed, page):
        assert "Cedar: no answer: no reply" in text
        assert "Volume of cup [ml]: patients" in text
    assert "Alder has most voxels at \N{MINUS SIGN}2.75 to \N{MINUS SIGN}2.5." in page
    assert Survey.from_dict(read_json(tmp_path / "survey.json")) == survey
    assert len(pd.read_csv(tmp_path / "survey.csv")) == len(long_table(survey))
    written = {file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*") if file.suffix in (".png", ".csv")}
    assert written == {"survey.csv", "tables/sites.csv", "tables/volume-cup.csv", "figures/intensity.png"}


def test_the_long_table_holds_no_formula_of_a_sites_name(survey: Survey, tmp_path: Path) -> None:
    named = Survey(5, {"=1+1": survey.sites["Alder"], "Birch": survey.sites["Birch"]}, {})
    write_survey(named, tmp_path, Console(file=io.StringIO()))
    assert set(pd.read_csv(tmp_path / "survey.csv")["site"]) == {"'=1+1", "Birch"}


def test_a_quantity_all_below_the_floor_is_reported_in_words(tmp_path: Path) -> None:
    """A table of sites only, and a line at 0, would say that there is nothing."""
    bins = find_quantity("intensity").bins
    nothing = {"volume cup": Tally(_filled(FEW)), "intensity": Tally(_filled(bins), _filled(bins))}
    console = Console(file=io.StringIO(), width=200)
    page = write_survey(Survey(5, {"Alder": Surveyed(6, 9, nothing, 5)}, {}), tmp_path, console).read_text()
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    for what in ("Volume of cup", "Intensity, as prepared"):
        for text in (printed, page):
            assert f"{what}: no bin has 5 patients or more at any site: none is shown." in text
    assert [path.name for path in (tmp_path / "tables").glob("*.csv")] == ["sites.csv"]
    assert not list(tmp_path.glob("figures/*.png"))


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


def changed_survey(**changed):
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
    found = survey_differences(changed_survey(**changed))
    assert [text[: len(start)] for text, start in zip(found, expected, strict=True)] == expected
