"""Tables of the best round and of final model selection: Dice, HD95 and NSD of each model.

What both reports are made of: settings, dates, overlays, means and columns with intervals.
"""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from made_results import made_results, made_rounds, made_runs
from parsed_page import Page
from run_factory import SITES, add_models, add_rows, make_run, make_sites

from fedmerit.errors import BadInput
from fedmerit.files import read_json, write_json
from fedmerit.schema.results import Row
from fedmerit_evaluation.report.all_sites import write_report
from fedmerit_evaluation.report.shared_parts import (
    averaged,
    common_folder,
    other_models,
    overlay_picture,
    remove_tables,
    shared_quantities,
    shared_settings,
    surface_columns,
    training_dates,
    with_intervals,
)
from fedmerit_evaluation.results.runs import Run, combine_results, open_runs
from fedmerit_evaluation.results.views import Results

LEVELS = {"given": 0.7, "local_only": 0.6, "selected": 0.8}


def _tested(run: Path, split: str, dice: float, number: int = 3) -> None:
    quantities = {"dice": dice, "hd95": 20 - 20 * dice, "nsd": dice / 2}
    add_rows(
        run,
        [
            Row(run.name, "fedce", 0, number, site, name, value, split, "000", "prostate")
            for site in SITES
            for name, value in quantities.items()
        ],
    )


def _results(run: Path) -> Results:
    return combine_results(open_runs([run]))


def test_runs_without_other_models_have_no_such_table(tmp_path: Path) -> None:
    assert other_models(_results(make_run(tmp_path / "run", rounds=4, surfaces=True))) == []


def test_the_best_round_stands_beside_the_last(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=4, surfaces=True)
    _tested(run, "testing_best", 0.9, number=2)
    results = _results(run)
    (table,) = other_models(results)
    row = table.frame.iloc[0]
    assert row["Last round, Dice [%]"] == pytest.approx(100 * results.dice.sites["dice"].mean())
    assert row["Last round, HD95 [mm]"] == pytest.approx(results.dice.sites["hd95"].mean())
    found = row[["Best round, Dice [%]", "Best round, HD95 [mm]", "Best round, NSD at 2 mm [%]", "Round"]]
    assert found.tolist() == pytest.approx([90, 2, 45, 2])


def test_where_the_last_round_was_the_best_it_is_both(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"run{seed}", seed=seed, rounds=4) for seed in (0, 1)]
    _tested(runs[0], "testing_best", 0.9)
    (table,) = other_models(combine_results(open_runs(runs)))
    best, last = (table.frame[f"{when} round, Dice [%]"] for when in ("Best", "Last"))
    assert best.tolist() == pytest.approx([90, last[1]])


def test_selected_models_with_their_surfaces(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=4, surfaces=True)
    for name, level in LEVELS.items():
        _tested(run, f"testing_{name}", level)
        _tested(run, f"validation_{name}", level - 0.1)
    dice, surfaces = (table.frame.set_index("Site").drop(columns="Method") for table in other_models(_results(run)))
    assert list(dice.index) == list(surfaces.index) == list(SITES)
    assert dice.loc["Birch"].tolist() == pytest.approx([70, 60, 80, 60, 50, 70])
    assert surfaces.loc["Birch"].to_dict() == pytest.approx(
        {
            "Received, HD95 [mm]": 6, "Local, HD95 [mm]": 8, "Final, HD95 [mm]": 4,
            "Received, NSD at 2 mm [%]": 35, "Local, NSD at 2 mm [%]": 30, "Final, NSD at 2 mm [%]": 40,
        }
    )  # fmt: skip


NOTHING = made_results([], [])


def _run(path: Path, label: str = "fedce", results: Results = NOTHING, **info: object) -> Run:
    return Run(path, info, results, label)


def test_runs_have_their_own_folder_or_the_nearest_that_holds_all(tmp_path: Path) -> None:
    one, near, far = (_run(tmp_path / name) for name in ("a/b/one", "a/b/near", "a/c/d/far"))
    assert common_folder([one]) == tmp_path / "a/b/one"
    assert common_folder([one, near]) == (tmp_path / "a/b").resolve()
    assert common_folder([one, far]) == (tmp_path / "a").resolve()


def test_tables_of_an_earlier_report_go_and_those_of_others_stay(tmp_path: Path) -> None:
    """The next report is on one run, that trained together: there are no gains, and no agreement."""
    runs = [make_run(tmp_path / method, method=method, rounds=2) for method in ("fedce", "standalone")]
    tables, page = tmp_path / "tables", tmp_path / "report.html"
    (tables / "table1.csv").parent.mkdir()
    (tables / "table1.csv").touch()
    write_report(runs, page)
    before = {file.name for file in tables.iterdir()}
    assert before >= {"gains.csv", "gains.tex", "benefit.csv", "table1.csv"}
    write_report(runs[1:], page)
    after = {file.name for file in tables.iterdir()}
    assert before > after >= {"table1.csv", "dice.csv", "dice.tex"}
    assert not after & {"gains.csv", "gains.tex", "benefit.csv", "hospitals.tex"}
    remove_tables(page)
    assert [file.name for file in tables.iterdir()] == ["table1.csv"]


def test_settings_that_differ_stand_in_a_row_per_method(tmp_path: Path) -> None:
    runs = [_run(tmp_path, label) for label in ("fedavg", "fedce", "fedce")]
    shown = [
        {
            "run": name,
            "task": "prostate",
            "training": {"lr": lr, "loss": "dice"},
            "parameters": parameters,
            "seed": seed,
        }
        for name, lr, parameters, seed in (("a", 0.1, {}, 0), ("b", 0.2, {"combine": "plus"}, 0), ("c", 0.2, {}, 1))
    ]
    same, differing = shared_settings(runs, shown)
    assert same == {"task": "prostate", "training: loss": "dice"}
    assert differing.set_index("Method").to_dict("index") == {  # the name of a run is in no row of several
        "fedavg": {"training: lr": "0.1", "seed": "0", "parameters: combine": "\N{EN DASH}"},
        "fedce": {"training: lr": "0.2", "seed": "0, 1", "parameters: combine": "plus"},
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (["/opt/bin/fedmerit", "run", "--sites=/data/raw/", "--out", "runs/a"], "fedmerit run --sites=raw --out a"),
        (["https://example.org/a/b"], "https://example.org/a/b"),
    ],
)
def test_of_paths_the_last_part_is_shown(tmp_path: Path, text: list[str], shown: str) -> None:
    assert shared_settings([_run(tmp_path)], [{"command": text}])[0] == {"command": shown}


@pytest.mark.parametrize(
    ("days", "said"),
    [
        (["2026-01-02T03:04:05"], "2026-01-02"),
        (["2026-02-01T00:00", "2026-01-02T03:04", None, "2026-01-09T00:00"], "2026-01-02 to 2026-02-01"),
        ([None], "at a time not recorded"),
    ],
)
def test_the_days_on_which_runs_were_begun(tmp_path: Path, days: list[str | None], said: str) -> None:
    assert training_dates([_run(tmp_path, started=day) for day in days]) == said


def test_quantities_that_are_the_very_same_are_shown_once() -> None:
    numbers = {"cgsv": [(0.2,), (0.3,), (0.5,)]}
    same = [*made_rounds("contribution", numbers), *made_rounds("reputation", numbers)]
    weights = made_rounds("weight", {"cgsv": [(0.2,), (0.3,), (0.4,)]})
    assert shared_quantities(made_results([*same, *weights], ["cgsv"])) == {
        "weight": [],
        "contribution": ["reputation"],
    }
    assert shared_quantities(NOTHING) == {}


def test_means_over_seeds_of_which_counts_stay_whole() -> None:
    index = pd.MultiIndex.from_product([["a"], [0, 1], ["Alder", "Birch"]], names=["method", "seed", "site"])
    table = pd.DataFrame({"dice": [0.5, 0.6, 0.7, 0.7], "cases": [5, 6, 5, 6], "both_empty": [0, 0, 1, 0]}, index)
    mean = averaged(table)
    assert mean.loc["a", "Alder"].to_list() == pytest.approx([0.6, 5, 0.5])
    assert mean["cases"].to_list() == [5, 6]
    assert [mean[name].dtype.kind for name in mean] == ["f", "i", "f"]


def test_surfaces_are_shown_in_millimetres_and_percent() -> None:
    columns = surface_columns(pd.DataFrame({"dice": [0.8], "hd95": [4.0], "nsd": [0.75], "nsd_px": [0.5]}))
    assert {heading: column[0] for heading, column in columns.items()} == {
        "HD95 [mm]": 4.0, "NSD at 2 mm [%]": 75.0, "NSD at 2 px [%]": 50.0,
    }  # fmt: skip


def test_a_column_with_ends_beside_one_without() -> None:
    ends = pd.DataFrame({"mean": [1.0, 2.0], "low": [0.5, 1.5], "high": [1.5, 2.5]}, ["a", "b"])
    shown = with_intervals({"Gain": ends, "Cases": pd.Series([3, 4], ["a", "b"])}, {"Method": ["a", "b"]})
    assert shown["frame"].to_dict("list") == {"Method": ["a", "b"], "Gain": [1.0, 2.0], "Cases": [3, 4]}
    assert (shown["low"]["Gain"].to_list(), shown["high"]["Gain"].to_list()) == ([0.5, 1.5], [1.5, 2.5])
    assert list(shown["low"]) == ["Gain"]


def test_why_there_is_no_overlay(tmp_path: Path) -> None:
    (run,) = made_runs(made_results(made_rounds("weight", {"fedce": [(0.2,), (0.3,), (0.5,)]}), ["fedce"]), tmp_path)
    file = tmp_path / "overlays.png"
    for sites, images, why in (
        (tmp_path, False, "left out of this report on request"),
        (None, True, "not on this machine"),
        (tmp_path, True, "the run has no test Dice yet"),
    ):
        file.write_bytes(b"an older one")
        picture, said = overlay_picture([run], sites, file, images=images)
        assert picture is None
        assert why in said
        assert not file.exists()


def test_overlays_name_no_patient_and_a_note_stands_where_the_images_are_not(tmp_path: Path) -> None:
    sites = make_sites(tmp_path / "sites")
    run = make_run(tmp_path / "run", sites_folder=str(sites))
    add_models(run)
    page = write_report([run]).read_text()
    assert "it must not leave the hospital" in Page(page).text
    assert (run / "figures" / "overlays.png").exists()
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
    assert "or nobody named them here" in Page(write_report([run]).read_text()).text
    assert not (run / "figures" / "overlays.png").exists(), "images that only a record names are not opened"
    write_json(run / "run.json", info)
    assert "not on this machine" in Page(write_report([run]).read_text()).text
    with pytest.raises(BadInput, match="no such folder"):
        write_report([run], sites=sites)


def test_settings_hold_no_folder_of_this_machine_and_nothing_empty(tmp_path: Path) -> None:
    command = ["/opt/bin/fedmerit", "run", "--out", str(tmp_path / "run"), f"--sites={tmp_path}/raw"]
    run = make_run(tmp_path / "run", command=command, sites_folder=str(tmp_path / "sites"), server_sites=None,
                   site_digests={"Alder": "ab12" * 16})  # fmt: skip
    page = Page(write_report([run]).read_text())
    settings = {row[0]: row[1] for row in page.tables["settings"]}
    assert settings["command"] == "fedmerit run --out run --sites=raw"
    assert not {"sites_folder", "server_sites"} & set(settings)
    assert all(settings.values())
    assert "ab12" not in page.text
    assert str(tmp_path) not in page.text
