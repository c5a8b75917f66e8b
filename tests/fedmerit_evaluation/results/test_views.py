"""The results of runs as one value, shared by all that is shown of them."""

import io
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from run_factory import SITES, make_run

from fedmerit.schema.results import COLUMNS, Row
from fedmerit_evaluation.figures.tables import print_table
from fedmerit_evaluation.results.runs import combine_results, open_runs
from fedmerit_evaluation.results.views import Results, Rounds


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


def _rows(rows: list[Row]) -> pd.DataFrame:
    return pd.DataFrame([vars(row) for row in rows], columns=COLUMNS).astype({"value": float})


def _quantity(number: int, site: str, quantity: str, value: float | None, *, seed: int = 0) -> Row:
    return Row("run", "a", seed, number, site, quantity, value)


def test_contributions_are_of_last_round_and_mean() -> None:
    results = _rows(
        [
            _quantity(0, "Alder", "weight", 0.5), _quantity(0, "Birch", "weight", 0.5),
            _quantity(1, "Alder", "weight", 0.8), _quantity(1, "Birch", "weight", 0.2),
            _quantity(0, "Alder", "contribution", None), _quantity(0, "Birch", "contribution", None),
            _quantity(1, "Alder", "contribution", -0.25), _quantity(1, "Birch", "contribution", 0.75),
            _quantity(1, "Birch", "rejected", 1.0),
        ]
    )  # fmt: skip
    table = Rounds(results).contributions.droplevel(["method", "seed"])
    assert list(table) == ["weight", "mean_weight", "contribution", "mean_contribution", "rejected", "share"]
    assert table.loc["Alder"].to_list() == pytest.approx([0.8, 0.65, -0.25, -0.25, 0, -0.5])
    assert table.loc["Birch"].to_list() == pytest.approx([0.2, 0.35, 0.75, 0.75, 1, 1.5])


def test_validation_is_mean_per_site_and_round() -> None:
    results = _rows(
        [
            Row("run", "a", 0, number, site, "dice", value, "validation", case, "disc")
            for number, site, case, value in [
                (0, "Alder", "0", 0.2), (0, "Alder", "1", 0.4), (0, "Birch", "0", None), (1, "Alder", "0", 0.6)
            ]
        ]
    )  # fmt: skip
    table = Rounds(results).validation.droplevel(["method", "seed"])
    assert table["Alder"].to_list() == pytest.approx([0.3, 0.6])
    assert table["Birch"].isna().all() if "Birch" in table else True


def test_rankings_of_contributions_are_over_seeds() -> None:
    rows = [
        _quantity(0, site, "contribution", value, seed=seed)
        for seed, values in enumerate([(0.1, 0.2, 0.9), (0.3, 0.2, 0.9)])
        for site, value in zip(("Alder", "Birch", "Cedar"), values, strict=True)
    ]
    (one,) = Rounds(_rows(rows)).rankings.values()
    assert (one.sites, one.value.tolist()) == (["Alder", "Birch", "Cedar"], pytest.approx([0.2, 0.2, 0.9]))
    assert one.table["ranks"].to_dict() == {"Cedar": "1 to 2", "Alder": "1 to 3", "Birch": "2 to 3"}
    assert Rounds(_rows(rows[:3])).rankings == {}  # one seed says nothing of stability


ROUNDS = 5


def results(worked: dict[str, list[int]], absent: dict[str, list[int]]) -> Results:
    """A run in which each site's contribution is 0.5 in every round; it ``worked`` in some, and was away in others."""
    columns = ["method", "seed", "round", "site", "coalition", "split", "case", "label", "quantity", "value"]
    rows = [
        ["fedavg", 0, number, site, "", "", "", "", quantity, value]
        for site, of_site in worked.items()
        for number in range(ROUNDS)
        for quantity, value in (
            (("rejected", 1.0), ("weight", 0.0))
            if number in absent.get(site, ())
            else (("contribution", 0.5), ("weight", 0.5), ("num_samples", 9), ("worked", float(number in of_site)))
        )
    ]
    return Results(pd.DataFrame(rows, columns=columns).assign(run="run"))


def test_credited_round_without_work_is_zero():
    everywhere = list(range(ROUNDS))
    found = results({"A": everywhere, "B": [3, 4], "C": everywhere}, {"C": [0, 1, 2, 3]})
    table = found.rounds.contributions.droplevel(["method", "seed"])
    assert table["mean_contribution"].to_dict() == pytest.approx({"A": 0.5, "B": 0.2, "C": 0.1})
    assert table["mean_weight"].to_dict() == pytest.approx({"A": 0.5, "B": 0.2, "C": 0.1})
    assert table["share"]["B"] == pytest.approx(0.25)
    assert found.rounds.rankings == {}  # of one seed


def test_credited_round_outside_membership_is_nan():
    everywhere = list(range(ROUNDS))
    rows = results({"A": everywhere, "B": [2], "C": everywhere}, {"C": [1]}).rows
    member = (rows["site"] != "B") | rows["round"].between(2, 3)
    table = Results(rows[member]).rounds.contributions.droplevel(["method", "seed"])
    assert table["mean_contribution"].to_dict() == pytest.approx({"A": 0.5, "B": 0.25, "C": 0.4})
    assert table["num_samples"].to_dict() == {"A": 9, "B": 9, "C": 9}


def test_credited_without_guard_counts_absence():
    found = results({"A": [], "B": []}, {"B": [0]}).rows
    table = Results(found[found["quantity"] != "worked"]).rounds.contributions.droplevel(["method", "seed"])
    assert table["mean_contribution"].to_dict() == pytest.approx({"A": 0.5, "B": 0.4})
