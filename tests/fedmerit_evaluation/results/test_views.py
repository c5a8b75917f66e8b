"""The results of runs as one value, shared by all that is shown of them."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from run_factory import SITES, make_run

from fedmerit_evaluation.figures.tables import print_table
from fedmerit_evaluation.results.runs import combine_results, open_runs


def test_dice_and_contributions_equals_hand_computed(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / method, method=method) for method in ("fedce", "fedavg")]
    table = combine_results(open_runs(runs)).dice_and_contributions
    assert list(table) == ["method", "site", "num_samples", "dice", "weight", "mean_contribution", "share"]
    assert table["method"].to_list() == ["fedce"] * 4 + ["fedavg"] * 4  # in the order given
    assert table.groupby("method")["weight"].sum().to_list() == pytest.approx([1.0, 1.0])
    console = Console(file=io.StringIO(), width=120)
    print_table(table, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "Dice [%]" in printed
    assert f"{100 * table['dice'][0]:.1f}" in printed


def test_dice_and_contributions_has_recorded_surfaces(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / method, method=method, surfaces=method == "fedce") for method in ("fedce", "fedavg")]
    table = combine_results(open_runs(runs)).dice_and_contributions
    assert list(table) == [
        "method", "site", "num_samples", "dice", "hd95", "nsd", "weight", "mean_contribution", "share"
    ]  # fmt: skip
    assert table["hd95"][:4].to_list() == pytest.approx((20 - 20 * table["dice"][:4]).to_list())
    assert table["hd95"][4:].isna().all()
    console = Console(file=io.StringIO(), width=120)
    print_table(table, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "HD95 [mm]" in printed
    assert "NSD at 2 mm [%]" in printed
    assert f"{table['hd95'][0]:.1f} " in printed


def test_methods_and_sites_keep_order_of_views(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / method, method=method, rounds=2) for method in ("fedce", "fedavg")]
    results = combine_results(open_runs(runs))
    assert results.methods == ["fedce", "fedavg"]
    assert list(results.dice.by_site.index.get_level_values("method")) == ["fedce", "fedavg"]
    assert results.plain.methods == ["fedavg", "fedce"]
    assert results.sites == list(SITES)
    assert combine_results(open_runs(runs), ["fedavg", "cgsv", "fedce"]).methods == ["fedavg", "fedce"]
