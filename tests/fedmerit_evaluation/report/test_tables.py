"""The tables of a report, from runs and results made for them."""

import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from made_results import made_dice, made_results, made_rounds, made_runs
from run_factory import SITES, add_rows, make_run

from fedmerit.schema.results import Row
from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.report.assembly import build_model, model_of_results
from fedmerit_evaluation.report.report import build_site_model
from fedmerit_evaluation.report.tables import _needs, report_tables, settings_tables
from fedmerit_evaluation.results.runs import open_runs
from fedmerit_evaluation.results.views import Results

EMPTY = model_of_results(made_runs(made_dice({"fedce": (0.5, 0.5, 0.5)}), Path("x")), *[made_results([], [])] * 2)
LEVELS = {"standalone": (0.6, 0.7, 0.8), "fedavg": (0.7, 0.7, 0.67), "fedce": (0.8, 0.7, 0.9)}


def _tables(results: Results) -> dict[str, Table]:
    runs = made_runs(results, Path("nowhere"))
    return report_tables(model_of_results(runs, results, results))


@pytest.fixture(scope="module")
def of_dice() -> dict[str, Table]:
    """Of three methods with the same Dice in every case of a site."""
    return _tables(made_dice(LEVELS, noise=0.0))


def test_methods_come_by_mean_dice_with_their_ranks(of_dice: dict[str, Table]) -> None:
    assert list(of_dice) == ["benefit", "contribution", "methods", "comparison", "differences", "dice", "gains"]
    table = of_dice["methods"].frame.set_index("Method")
    assert list(table.index) == ["fedce", "standalone", "fedavg"]
    assert table["Mean Dice [%]"].to_list() == pytest.approx([80, 70, 69])
    assert table["Rank"].to_list() == [1, 2, 3]
    assert table["Worst site [%]"].to_list() == pytest.approx([70, 60, 67])
    gains = table["Mean gain over local training [points]"]
    assert gains.to_list() == pytest.approx([10, math.nan, -1], nan_ok=True)


def test_differences_of_methods_have_their_own_intervals(of_dice: dict[str, Table]) -> None:
    """That of fedavg, which the page judges, and local training is its first verdict, and in no pair."""
    table = of_dice["differences"]
    assert table.frame[["Method", "Less"]].to_numpy().tolist() == [["fedce", "standalone"], ["fedce", "fedavg"]]
    assert table.frame["Difference [points]"].to_list() == pytest.approx([10, 11])
    assert table.low is not None
    assert table.frame["p"].to_list() == ["< 0.001"] * 2


def test_gains_by_site_with_their_mean_and_lowest(of_dice: dict[str, Table]) -> None:
    table = of_dice["gains"].frame.set_index("Method")
    assert table.loc["fedce"].to_list() == pytest.approx([20, 0, 10, 10, 0], abs=1e-9)
    assert table.loc["fedavg"].to_list() == pytest.approx([10, 0, -13, -1, -13], abs=1e-9)


def test_contributions_have_intervals_and_no_rank() -> None:
    said = {"fedce": [(0.4, 0.2), (0.3, 0.3), (0.1, 0.1)]}
    tables = _tables(made_results(made_rounds("contribution", said), ["fedce"]))
    assert list(tables) == ["benefit", "contribution", "contributions"]
    table = tables["contributions"]
    frame = table.frame.set_index("Site")
    assert frame["Contribution, mean [own unit]"].to_list() == pytest.approx([0.3, 0.3, 0.1])
    assert frame["Share of contribution [%]"].to_list() == pytest.approx(
        [(50 + 100 / 3) / 2, (37.5 + 50) / 2, (12.5 + 50 / 3) / 2]
    )
    assert "Rank" not in frame
    # Alder's is .2 to .4 over the two seeds, 12.7 standard errors; the others had the same in both
    assert table.cell(0, table.headings.index("Contribution, mean [own unit]")).startswith("0.300 [\N{MINUS SIGN}0.9")
    assert table.cell(1, table.headings.index("Contribution, mean [own unit]")) == "0.300"


def test_costs_are_means_over_seeds() -> None:
    rounds = [
        *made_rounds("seconds", {"fedce": [(2.0, 4.0), (1.0, 1.0), (5.0, 5.0)]}),
        *made_rounds("bytes_sent", {"fedce": [(3e6,) * 2, (2e6,) * 2, (1e6,) * 2]}),
    ]
    table = _tables(made_results(rounds, ["fedce"]))["costs"].frame.set_index("Site")
    assert table["Seconds per round"].to_list() == [3.0, 1.0, 5.0]
    assert table["Sent per round [MB]"].to_list() == pytest.approx([3.0, 2.0, 1.0])


def test_surfaces_stand_beside_dice_if_they_were_measured(tmp_path: Path) -> None:
    """One run has none."""
    folders = [make_run(tmp_path / method, method=method, rounds=2, labels=("disc", "cup"), surfaces=method != "fedavg")
               for method in ("fedavg", "fedce", "standalone")]  # fmt: skip
    tables = report_tables(build_model(open_runs(folders)))
    sites = tables["dice"].frame.set_index(["Method", "Site"]).sort_index()
    fedce = sites.loc["fedce"]
    assert fedce["HD95 [mm]"].to_list() == pytest.approx((20 - 0.2 * fedce["Dice [%]"]).to_list())
    assert fedce["NSD at 2 mm [%]"].to_list() == pytest.approx(fedce["Dice [%]"].to_list())
    assert sites.loc["fedavg", "HD95 [mm]"].isna().all()
    methods = tables["methods"].frame.set_index("Method")
    assert methods.loc["fedce", "HD95 [mm]"] == pytest.approx(fedce["HD95 [mm]"].mean())
    labels = tables["labels"].frame.set_index(["Method", "Site"]).loc[("fedce", "Alder")]
    assert labels["cup, HD95 [mm]"] == pytest.approx(20 - 0.2 * labels["cup"])
    assert "Federated, HD95 [mm]" in tables["benefit"].frame
    apart = report_tables(build_model(open_runs([folders[0], folders[2]])))
    assert "Federated, HD95 [mm]" not in apart["benefit"].frame  # of fedavg, which has none
    changes = tables["surface_changes"].frame.set_index("Method").loc["fedce"]
    gains = tables["gains"].frame.set_index("Method").loc["fedce"]
    assert changes["HD95 [mm]"].to_list() == pytest.approx([-0.2 * gains[site] for site in SITES])
    first = report_tables(build_model(open_runs(folders[1:])))["benefit"].frame
    assert first["Federated, HD95 [mm]"].to_list() == pytest.approx(fedce["HD95 [mm]"].to_list())
    assert "HD95 [mm]" not in report_tables(build_model(open_runs(folders[:1])))["dice"].frame


LEVELS_OF_MODELS = {"given": 0.7, "local_only": 0.6, "selected": 0.8}


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


def _of_runs(*folders: Path) -> dict[str, Table]:
    return report_tables(build_model(open_runs(folders)))


def test_selected_models_with_their_surfaces(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=4, surfaces=True)
    assert "final_models" not in _of_runs(run)
    for name, level in LEVELS_OF_MODELS.items():
        _tested(run, f"testing_{name}", level)
        _tested(run, f"validation_{name}", level - 0.1)
    for model, whom in (
        (build_model(open_runs([run])), "each hospital"),
        (build_site_model(open_runs([run]), "Birch"), "Birch"),
    ):
        tables = report_tables(model)
        assert f"the model that {whom} received" in tables["final_models"].caption
        dice, surfaces = (tables[name].frame.set_index("Site").drop(columns="Method")
                          for name in ("final_models", "final_models_surfaces"))  # fmt: skip
        assert list(dice.index) == list(surfaces.index) == [one.name for one in model.hospitals]
        assert dice.loc["Birch"].tolist() == pytest.approx([70, 60, 80, 60, 50, 70])
        assert surfaces.loc["Birch"].to_dict() == pytest.approx(
            {
                "Received, HD95 [mm]": 6, "Local, HD95 [mm]": 8, "Final, HD95 [mm]": 4,
                "Received, NSD at 2 mm [%]": 35, "Local, NSD at 2 mm [%]": 30, "Final, NSD at 2 mm [%]": 40,
            }
        )  # fmt: skip


def test_settings_that_differ_stand_in_a_row_per_method() -> None:
    shown = [
        (label, {
            "run": name, "task": "prostate", "training": {"lr": lr, "loss": "dice"}, "parameters": parameters,
            "seed": seed,
        })
        for label, name, lr, parameters, seed in (
            ("fedavg", "a", 0.1, {}, 0), ("fedce", "b", 0.2, {"combine": "plus"}, 0), ("fedce", "c", 0.2, {}, 1),
        )
    ]  # fmt: skip
    same, differing = settings_tables(replace(EMPTY, settings=tuple(shown)))
    assert same == {"task": "prostate", "training: loss": "dice"}
    assert differing.frame.set_index("Method").to_dict("index") == {  # the name of a run is in no row of several
        "fedavg": {"training: lr": "0.1", "seed": "0", "parameters: combine": "\N{EN DASH}"},
        "fedce": {"training: lr": "0.2", "seed": "0, 1", "parameters: combine": "plus"},
    }


@pytest.mark.parametrize(
    ("info", "shown"),
    [
        (
            {"command": ["/opt/bin/fedmerit", "run", "--sites=/data/raw/", "--out", "runs/a"]},
            {"command": "fedmerit run --sites=raw --out a"},
        ),
        (
            {"command": "fedmerit run --out /home/anna/runs/a --sites=/data/sites/"},
            {"command": "fedmerit run --out a --sites=sites"},
        ),
        ({"command": ["https://example.org/a/b"]}, {"command": "https://example.org/a/b"}),
        ({"sites_folder": "/x", "server_sites": None, "site_digests": {"A": "ab"}, "labels": []}, {}),
    ],
)
def test_settings_hold_no_folder_of_this_machine_and_nothing_empty(info: dict, shown: dict) -> None:
    assert settings_tables(replace(EMPTY, settings=(("fedce", info),)))[0] == shown


def test_who_needs_whom_is_what_a_hospital_loses_without_a_local_model() -> None:
    dice = [[0.9, 0.1, 0.3], [0.5, 0.7, 0.3], [0.4, 0.2, 0.8]]
    index = pd.MultiIndex.from_product([["standalone"], SITES[:3]], names=["method", "site"])
    model = replace(
        EMPTY,
        study=replace(EMPTY.study, sites=tuple(SITES[:3])),
        cross_site={"dice": pd.DataFrame(dice, index, SITES[:3])},
        tested=pd.DataFrame({"dice": [0.5]}),
    )
    (table,) = _needs(model)
    assert table.frame["Without the model of"].to_list() == list(SITES[:3])
    assert table.frame[list(SITES[:3])].to_numpy().ravel().tolist() == pytest.approx([40, 0, 0, 0, 50, 0, 0, 0, 50])
    assert table.frame["Mean"].to_list() == pytest.approx([40 / 3, 50 / 3, 50 / 3])


def test_who_needs_whom_is_left_out_without_the_dice_of_every_local_model_everywhere() -> None:
    index = pd.MultiIndex.from_product([["standalone"], SITES[:2]], names=["method", "site"])
    matrix = pd.DataFrame([[0.9, math.nan], [0.5, 0.7]], index, SITES[:2])
    study = replace(EMPTY.study, sites=tuple(SITES[:2]))
    assert list(_needs(replace(EMPTY, study=study, cross_site={"dice": matrix}))) == []
    assert list(_needs(replace(EMPTY, study=study, cross_site={}))) == []
