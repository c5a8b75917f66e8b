"""The results of runs as one value, shared by all that is shown of them."""

import io
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from run_factory import SITES, add_rows, make_run

from fedmerit.schema.results import Row
from fedmerit_evaluation.figures.tables import print_table
from fedmerit_evaluation.report import report
from fedmerit_evaluation.results.runs import combine_results, open_runs
from fedmerit_evaluation.results.views import Dice
from fedmerit_lab.papers.partitioned_sites import on_union


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


@pytest.mark.usefixtures("undrawn")
def test_report_computes_every_view_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cases of the test Dice are the costly part: one table of them serves tables, figures and words alike."""
    taken = []
    view = Dice.label_cases.func  # type: ignore[attr-defined]
    monkeypatch.setattr(Dice.label_cases, "func", lambda dice: (taken.append(dice), view(dice))[1])
    runs = [make_run(tmp_path / method, method=method, rounds=2) for method in ("standalone", "fedce")]
    report.write_report(runs, images=False)
    assert len(taken) == len(set(map(id, taken))) == 1


def test_methods_and_sites_keep_order_of_views(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / method, method=method, rounds=2) for method in ("fedce", "fedavg")]
    results = combine_results(open_runs(runs))
    assert results.methods == ["fedce", "fedavg"]
    assert list(results.dice.by_site.index.get_level_values("method")) == ["fedce", "fedavg"]
    assert results.plain.methods == ["fedavg", "fedce"]
    assert results.sites == list(SITES)
    assert combine_results(open_runs(runs), ["fedavg", "cgsv", "fedce"]).methods == ["fedavg", "fedce"]


def test_union_keeps_other_rows(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=2)
    add_rows(run, [Row("run", "fedce", 0, 1, site, "dice", 0.5, "union", f"{tested}/000", "prostate")
                   for site in SITES for tested in SITES])  # fmt: skip
    results = combine_results(open_runs([run]))
    assert on_union(results).dice.sites["dice"].to_list() == [0.5] * 4
    pd.testing.assert_frame_equal(on_union(results).rounds.of("weight"), results.rounds.of("weight"))
