"""Which case and slice an overlay shows, and what it says of it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_results import made_results, made_rounds, made_runs
from parsed_page import Page
from run_factory import SITES, add_models, make_run, make_sites, prepare_again

from fedmerit.errors import BadInput
from fedmerit.files import read_json, write_json
from fedmerit.schema.results import read_results
from fedmerit.schema.site_folder import open_sites, read_site_digests
from fedmerit_evaluation.figures.drawing import png
from fedmerit_evaluation.report.overlays import (
    chosen_cases,
    draw_overlays,
    largest_slice,
    make_overlays,
    overlay_pictures,
)
from fedmerit_evaluation.report.report import write_report
from fedmerit_evaluation.results.runs import open_runs


def test_best_median_and_worst_case_each_once() -> None:
    dice = pd.Series({"000": 0.1, "001": 0.9, "002": 0.7, "003": np.nan, "004": 0.8, "005": 0.9, "006": 0.1})
    # the median of .1 .1 .7 .8 .9 .9 is .75: .7 and .8 are as near, the first is shown; so of equals at the ends
    assert chosen_cases(dice) == {"best": "001", "median": "002", "worst": "006"}
    assert chosen_cases(dice[["000", "001"]]) == {"best": "001", "worst": "000"}
    assert chosen_cases(dice[["000"]]) == {"only": "000"}
    assert chosen_cases(pd.Series({"000": 0.5, "001": 0.5, "002": 0.5})) == {
        "best": "000",
        "median": "001",
        "worst": "002",
    }
    with pytest.raises(BadInput):
        chosen_cases(pd.Series({"000": np.nan}))


def test_the_slice_is_the_one_with_the_largest_reference() -> None:
    reference, prediction = np.zeros((3, 2, 4, 4), bool), np.zeros((3, 2, 4, 4), bool)
    prediction[2] = True
    assert largest_slice(reference, prediction) == 2
    reference[1, 0, :2] = True
    assert largest_slice(reference, prediction) == 1


@pytest.mark.slow
def test_overlays_of_two_methods(tmp_path: Path) -> None:
    labels = ("disc", "cup")
    sites = make_sites(tmp_path / "sites", labels=labels, channels=1)
    runs = [make_run(tmp_path / name, method=name, labels=labels) for name in ("fedavg", "standalone")]
    add_models(runs[0], labels=labels)
    add_models(runs[1], SITES, labels=labels)
    shown = make_overlays(open_runs(runs), sites)
    assert [(overlay.method, overlay.site, overlay.which) for overlay in shown] == [
        (method, site, which)
        for method in ("fedavg", "standalone")
        for site in SITES
        for which in ("best", "median", "worst")
    ]
    for overlay in shown:
        assert overlay.image.shape == (64, 64)
        assert overlay.reference.shape == overlay.prediction.shape == (len(labels), 64, 64)
        assert overlay.reference.any()
        assert 0 <= overlay.image.min() <= overlay.image.max() <= 1
    for first, second in zip(shown[:12], shown[12:], strict=True):  # the same case and slice
        np.testing.assert_array_equal(first.image, second.image)
    drawn = draw_overlays(shown)
    assert [len(panel.images) for panel in drawn.axes] == [1] * 16  # sites x the best and the worst case x methods
    assert png(drawn).startswith(b"\x89PNG")


def test_a_hospital_sees_its_own_site_only(tmp_path: Path) -> None:
    sites = make_sites(tmp_path / "sites", ("Birch",))
    run = make_run(tmp_path / "run")
    add_models(run)
    assert {overlay.site for overlay in make_overlays(open_runs([run]), sites)} == {"Birch"}
    assert {overlay.site for overlay in make_overlays(open_runs([run]), sites, only="Birch")} == {"Birch"}
    with pytest.raises(BadInput, match="none of the run's sites Cedar"):
        make_overlays(open_runs([run]), sites, only="Cedar")
    with pytest.raises(BadInput, match="none of the run's sites"):
        make_overlays(open_runs([run]), make_sites(tmp_path / "others", ("Yew",)))


def test_images_that_were_prepared_otherwise_are_not_shown(tmp_path: Path) -> None:
    """A hospital has its own site only; the others' digests need not be there."""
    sites = make_sites(tmp_path / "sites", ("Birch",))
    run = make_run(tmp_path / "run", site_digests=read_site_digests(open_sites(sites)) | {"Alder": "of another"})
    add_models(run)
    assert {overlay.site for overlay in make_overlays(open_runs([run]), sites)} == {"Birch"}
    prepare_again(sites / "Birch")
    with pytest.raises(BadInput, match=r"sites: Birch prepared differently than for .*run; name its own sites"):
        make_overlays(open_runs([run]), sites)


def test_a_site_that_was_not_tested_leaves_the_others_their_images(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    add_models(run)
    results = read_results(run)
    results[(results["site"] != "Birch") | (results["split"] != "testing")].to_csv(run / "results.csv", index=False)
    sites = make_sites(tmp_path / "sites", ("Alder", "Birch"))
    assert {overlay.site for overlay in make_overlays(open_runs([run]), sites)} == {"Alder"}
    with pytest.raises(BadInput, match="no test Dice of the sites"):
        make_overlays(open_runs([run]), sites, only="Birch")


def test_why_there_is_no_overlay(tmp_path: Path) -> None:
    (run,) = made_runs(made_results(made_rounds("weight", {"fedce": [(0.2,), (0.3,), (0.5,)]}), ["fedce"]), tmp_path)
    file = tmp_path / "overlays.png"
    for sites, images, why in (
        (tmp_path, False, "left out of this report on request"),
        (None, True, "not on this machine"),
        (tmp_path, True, "the run has no test Dice yet"),
    ):
        file.write_bytes(b"an older one")
        worst, reason = overlay_pictures([run], sites, file, images=images)
        assert worst == {}
        assert why in reason
        assert not file.exists()


def test_overlays_name_no_patient_and_a_note_stands_where_the_images_are_not(tmp_path: Path) -> None:
    sites = make_sites(tmp_path / "sites", SITES[:2])
    run = make_run(tmp_path / "run", sites=SITES[:2], sites_folder=str(sites))
    add_models(run)
    page = write_report([run]).read_text()
    assert "it must not leave the hospital" in Page(page).text
    assert (run / "figures" / "overlays.png").exists()
    seen = [value for tag, name, value in Page(page).attributes if (tag, name) == ("img", "alt")]
    assert all(any(f"{site}, fedce, worst case" in text for text in seen) for site in SITES[:2])
    for site in sites.iterdir():
        for entry in json.loads((site / "datalist.json").read_text())["testing"]:
            assert entry["case"] not in page
            assert entry["patient"] not in page

    text = Page(write_report([run], images=False).read_text()).text
    assert "Images were left out" in text
    assert "must not leave" not in text
    assert not (run / "figures" / "overlays.png").exists()  # no older one is left lying beside it

    shutil.move(sites, tmp_path / "handed")
    info = read_json(run / "run.json")
    write_json(run / "run.json", info | {"sites_folder": str(tmp_path / "handed")})
    assert "The images are not on this machine" in Page(write_report([run]).read_text()).text
    assert not (run / "figures" / "overlays.png").exists(), "images that only a record names are not opened"
    write_json(run / "run.json", info)
    assert "not on this machine" in Page(write_report([run]).read_text()).text
    with pytest.raises(BadInput, match="no such folder"):
        write_report([run], sites=sites)
