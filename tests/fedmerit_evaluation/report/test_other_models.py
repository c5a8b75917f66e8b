"""Tables of the best round and of final model selection: Dice, HD95 and NSD of each model."""

from pathlib import Path

import pytest
from run_factory import SITES, add_rows, make_run

from fedmerit.records.results import Row
from fedmerit_evaluation.report.shared_parts import other_models
from fedmerit_evaluation.results.run_folders import combine_results, open_runs
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
