"""Dice of final models on site folders."""

from pathlib import Path

import pandas as pd
import pytest
from run_factory import SITES, add_models, make_run, make_sites

from evaluation.results.dice import Dice
from evaluation.results.evaluate import evaluate
from fedmerit.errors import BadInput
from fedmerit.files import read_json, write_json
from fedmerit.records.results import COLUMNS, read_results


def test_a_global_model_on_any_sites(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", method="fedavg", seed=3)
    add_models(run)
    table = evaluate(run, make_sites(tmp_path / "elsewhere", ("Yew", "Zelkova")))
    assert list(table) == COLUMNS
    assert set(table["site"]) == {"Yew", "Zelkova"}
    assert set(table["quantity"]) == {"dice", "true_positives", "false_positives", "false_negatives"}
    assert table[["run", "method", "seed", "round", "split"]].drop_duplicates().to_numpy().tolist() == [
        ["run", "fedavg", 3, 11, "testing"]
    ]
    counts = table.pivot(index=["site", "case", "label"], columns="quantity", values="value")
    twice = 2 * counts["true_positives"]
    pd.testing.assert_series_equal(
        counts["dice"], twice / (twice + counts["false_positives"] + counts["false_negatives"]), check_names=False
    )
    assert len(Dice(table).sites) == 2


def test_hd95_and_nsd_where_the_spacing_is_known(tmp_path: Path) -> None:
    """Alder's first case is stored with its spacing."""
    run = make_run(tmp_path / "run")
    add_models(run)
    file = make_sites(tmp_path / "sites") / "Alder" / "datalist.json"
    lists = read_json(file)
    lists["testing"][0]["spacing"] = [3.0, 0.5, 0.5]
    write_json(file, lists)
    table = evaluate(run, tmp_path / "sites")
    measured = table[table["quantity"].isin(["hd95", "nsd"])]
    assert measured[["site", "case", "quantity"]].to_numpy().tolist() == [
        ["Alder", "000", "hd95"], ["Alder", "000", "nsd"],
    ]  # fmt: skip
    assert Dice(table).sites["hd95"].notna().sum() == 1


def test_the_table_is_written_in_the_schema_of_results(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    add_models(run)
    table = evaluate(run, make_sites(tmp_path / "sites"), split="validation")
    folder = run / "evaluation"
    (folder / "validation-sites.csv").rename(folder / "results.csv")
    pd.testing.assert_frame_equal(read_results(folder), table, check_dtype=False)


def test_each_site_is_evaluated_with_its_own_model(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", method="standalone")
    add_models(run, SITES)
    dice = Dice(evaluate(run, make_sites(tmp_path / "sites"))).sites["dice"]
    shared = make_run(tmp_path / "shared", method="standalone")
    add_models(shared, ("global", *SITES))
    assert dice.droplevel(["method", "seed"])["Alder"] == pytest.approx(
        Dice(evaluate(shared, tmp_path / "sites")).sites["dice"].droplevel(["method", "seed"])["Alder"]
    )  # the first of the made-up models
    assert len(set(dice.round(6))) > 1
    with pytest.raises(BadInput, match=r"site Yew: .* one model per site, and none for it"):
        evaluate(run, make_sites(tmp_path / "elsewhere", ("Yew",)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"channels": 3}, "channels are 3"),
        ({"labels": ("disc", "cup")}, "labels are"),
        ({"size": 66}, "image size 66x66"),
    ],
)
def test_sites_that_no_model_fits(tmp_path: Path, change: dict[str, object], message: str) -> None:
    run = make_run(tmp_path / "run")
    add_models(run)
    with pytest.raises(BadInput, match=message):
        evaluate(run, make_sites(tmp_path / "sites", **change))  # type: ignore[arg-type]


def test_a_run_without_models_or_a_split_that_is_none(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    sites = make_sites(tmp_path / "sites")
    with pytest.raises(BadInput, match="models: no model in it; let the run finish"):
        evaluate(run, sites)
    add_models(run)
    with pytest.raises(BadInput, match="split 'tests'"):
        evaluate(run, sites, split="tests")
