"""Dice of final models on site folders."""

import copy
from pathlib import Path

import pandas as pd
import pytest
import torch
from run_factory import SITES, add_models, make_run, make_sites
from torch import nn

from fedmerit.errors import BadInput
from fedmerit.files import read_json, write_json
from fedmerit.schema.results import COLUMNS
from fedmerit.schema.site_folder import open_sites
from fedmerit.trainers.monai.samples import Slices
from fedmerit_evaluation.results.evaluation import evaluate, final_models, with_batch_statistics
from fedmerit_evaluation.results.views import Dice


def test_evaluate_tests_global_model_on_any_site(tmp_path: Path) -> None:
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


def test_evaluate_measures_surfaces_with_known_spacing(tmp_path: Path) -> None:
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


def test_evaluate_separates_folders_of_one_name(tmp_path: Path) -> None:
    """And the same folder, evaluated again, the same one."""
    run = make_run(tmp_path / "run")
    add_models(run)
    found = [evaluate(run, make_sites(tmp_path / name / "sites", (name,))) for name in ("Yew", "Elm")]
    evaluate(run, tmp_path / "Elm" / "sites")
    tables = [pd.read_csv(file, dtype={"case": str}) for file in sorted((run / "evaluation").glob("*.csv"))]
    assert sorted(table["site"][0] for table in tables) == ["Elm", "Yew"]
    assert sorted(table["value"].sum() for table in tables) == pytest.approx(
        sorted(table["value"].sum() for table in found)
    )


def test_evaluate_tests_each_sites_own_model(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", method="standalone")
    add_models(run, SITES)
    dice = Dice(evaluate(run, make_sites(tmp_path / "sites"))).sites["dice"]
    shared = make_run(tmp_path / "shared", method="standalone")
    add_models(shared, ("global", *SITES[1:]))
    assert dice.droplevel(["method", "seed"])["Alder"] == pytest.approx(
        Dice(evaluate(shared, tmp_path / "sites")).sites["dice"].droplevel(["method", "seed"])["Alder"]
    )  # the first of the synthetic models
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
def test_evaluate_rejects_sites_that_no_model_fits(tmp_path: Path, change: dict[str, object], message: str) -> None:
    run = make_run(tmp_path / "run")
    add_models(run)
    with pytest.raises(BadInput, match=message):
        evaluate(run, make_sites(tmp_path / "sites", **change))  # type: ignore[arg-type]


def test_evaluate_rejects_missing_models_and_empty_split(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    sites = make_sites(tmp_path / "sites")
    with pytest.raises(BadInput, match="models: no model in it; let the run finish"):
        evaluate(run, sites)
    add_models(run)
    with pytest.raises(BadInput, match="split 'tests'"):
        evaluate(run, sites, split="tests")


def test_evaluate_estimates_statistics_of_own_images(tmp_path: Path) -> None:
    run, sites = make_run(tmp_path / "run"), make_sites(tmp_path / "sites")
    add_models(run)
    given = evaluate(run, sites)
    estimated = evaluate(run, sites, estimated=True)
    assert len(list((run / "evaluation").glob("testing-sites-*-estimated.csv"))) == 1
    assert not given["value"].equals(estimated["value"])
    site = open_sites(sites)[0]
    shared = final_models(run)(site)
    before = copy.deepcopy(shared.state_dict())
    own = with_batch_statistics(site, shared).state_dict()
    images = torch.stack([image for image, _ in Slices(site.cases("training"))])
    first = shared.get_submodule("model.0")  # up to its first norm, the images themselves decide
    norm = next(module for module in first.modules() if isinstance(module, nn.BatchNorm2d))
    seen = []
    with norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])), torch.no_grad():
        shared(images)
    name = next(name for name, module in shared.named_modules() if module is norm)
    torch.testing.assert_close(own[f"{name}.running_mean"], seen[0].mean(dim=(0, 2, 3)))
    assert all(torch.equal(value, before[name]) for name, value in shared.state_dict().items())


def test_evaluate_rejects_estimation_without_batch_norm(tmp_path: Path) -> None:
    site = open_sites(make_sites(tmp_path / "sites"))[0]
    with pytest.raises(BadInput, match="no BatchNorm statistics"):
        with_batch_statistics(site, nn.Conv2d(1, 1, 1))
