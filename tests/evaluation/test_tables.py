"""Tables against numbers worked by hand."""

import io
import math
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from run_factory import add_rows, make_run

from evaluation import tables
from evaluation.formats import Table, csv_text, headed, latex_text
from evaluation.runs import open_runs, together
from fedmerit.errors import BadInput
from fedmerit.records.results import COLUMNS, Row


def _table(rows: list[Row]) -> pd.DataFrame:
    return pd.DataFrame([vars(row) for row in rows], columns=COLUMNS).astype({"value": float})


def _dice(site: str, case: str, label: str, value: float | None, *, method: str = "a", seed: int = 0) -> Row:
    return Row("run", method, seed, 9, site, "dice", value, "testing", case, label)


def _quantity(number: int, site: str, quantity: str, value: float | None, *, seed: int = 0) -> Row:
    return Row("run", "a", seed, number, site, quantity, value)


HAND = _table(
    [
        # Alder: case 0 (.8 + .6) / 2 = .7, case 1 .5 (its cup is empty in both): mean .6
        _dice("Alder", "0", "disc", 0.8), _dice("Alder", "0", "cup", 0.6),
        _dice("Alder", "1", "disc", 0.5), _dice("Alder", "1", "cup", None),
        # Birch: .9; case 1 empty throughout
        _dice("Birch", "0", "disc", 0.95), _dice("Birch", "0", "cup", 0.85),
        _dice("Birch", "1", "disc", None), _dice("Birch", "1", "cup", None),
    ]
)  # fmt: skip


def test_site_dice_is_the_mean_over_cases_of_the_mean_over_labels() -> None:
    table = tables.site_dice(HAND).droplevel(["method", "seed"])
    assert table["dice"].to_dict() == pytest.approx({"Alder": 0.6, "Birch": 0.9})
    assert table["lowest"].to_dict() == pytest.approx({"Alder": 0.5, "Birch": 0.9})
    assert table["cases"].to_dict() == {"Alder": 2, "Birch": 2}
    assert table["both_empty"].to_dict() == {"Alder": 1, "Birch": 2}


def test_label_dice_leaves_out_what_is_empty_in_both() -> None:
    table = tables.label_dice(HAND).droplevel(["method", "seed"])
    assert list(table) == ["disc", "cup"]  # as the results name them, not by the alphabet
    assert table.loc["Alder"].to_dict() == pytest.approx({"disc": 0.65, "cup": 0.6})
    assert table.loc["Birch"].to_dict() == pytest.approx({"disc": 0.95, "cup": 0.85})


def test_over_sites() -> None:
    row = tables.over_sites(tables.by_site(HAND)).iloc[0]
    # mean of .6 and .9; sample deviation sqrt(2 * .15^2 / 1)
    assert row["mean"] == pytest.approx(0.75)
    assert row["std"] == pytest.approx(math.sqrt(0.045))
    assert (row["worst"], row["worst_site"]) == (pytest.approx(0.6), "Alder")
    assert (row["best"], row["best_site"]) == (pytest.approx(0.9), "Birch")


def test_a_site_without_any_dice_is_left_out_of_the_mean_over_sites() -> None:
    results = _table([_dice("Alder", "0", "disc", 0.6), _dice("Birch", "0", "disc", None)])
    row = tables.over_sites(tables.by_site(results)).iloc[0]
    assert row["mean"] == row["worst"] == pytest.approx(0.6)
    assert math.isnan(row["std"])


def _union(site: str, case: str, label: str, value: float | None, *, method: str = "a") -> Row:
    return Row("run", method, 0, 1, site, "dice", value, split="union", case=case, label=label)


def test_cross_site_by_hand() -> None:
    """Rows are whose model, columns where it was tested: cases over their labels, then sites over their cases."""
    rows = [
        _union("A", "A/0", "disc", 0.9),
        _union("A", "A/0", "cup", 0.7),
        _union("A", "A/1", "disc", 0.4),
        _union("A", "A/1", "cup", None),
        _union("A", "B/0", "disc", 0.5),
        _union("B", "A/0", "disc", 0.2),
        _union("B", "A/1", "disc", 0.1),
        _union("B", "B/0", "disc", 1.0),
    ]
    same = [_union(site, f"{at}/0", "disc", 0.5, method="b") for site in "AB" for at in "AB"]
    matrix = tables.cross_site(_table([*rows, *same]))
    assert matrix.to_dict("index") == {
        ("a", 0, "A"): pytest.approx({"A": 0.6, "B": 0.5}),
        ("a", 0, "B"): pytest.approx({"A": 0.15, "B": 1.0}),
    }


def test_comparison_over_seeds() -> None:
    values = {("a", 0): (0.5, 0.7), ("a", 1): (0.7, 0.9), ("b", 0): (0.6, 0.6)}
    results = _table(
        [
            _dice(site, "0", "disc", value, method=method, seed=seed)
            for (method, seed), pair in values.items()
            for site, value in zip(("Alder", "Birch"), pair, strict=True)
        ]
    )
    mean, spread = tables.comparison(results)
    assert mean.loc["a"].to_list() == pytest.approx([0.6, 0.8, 0.7, math.sqrt(0.02), 0.6])
    assert spread.loc["a"].to_list() == pytest.approx([math.sqrt(0.02)] * 3 + [0.0, math.sqrt(0.02)], abs=1e-12)
    assert mean.loc["b"].to_list() == pytest.approx([0.6, 0.6, 0.6, 0.0, 0.6])
    assert spread.loc["b"].isna().all()


def test_only_the_last_round_of_testing_counts() -> None:
    older = Row("run", "a", 0, 3, "Alder", "dice", 0.1, "testing", "0", "disc")
    results = _table([older, _dice("Alder", "0", "disc", 0.6)])
    assert tables.by_site(results).to_numpy().tolist() == [[0.6]]


def test_contributions_of_the_last_round_and_over_rounds() -> None:
    results = _table(
        [
            _quantity(0, "Alder", "weight", 0.5), _quantity(0, "Birch", "weight", 0.5),
            _quantity(1, "Alder", "weight", 0.8), _quantity(1, "Birch", "weight", 0.2),
            _quantity(0, "Alder", "contribution", None), _quantity(0, "Birch", "contribution", None),
            _quantity(1, "Alder", "contribution", -0.25), _quantity(1, "Birch", "contribution", 0.75),
            _quantity(1, "Birch", "rejected", 1.0),
        ]
    )  # fmt: skip
    table = tables.contributions(results).droplevel(["method", "seed"])
    assert list(table) == ["weight", "mean_weight", "contribution", "mean_contribution", "rejected"]
    assert table.loc["Alder"].to_list() == pytest.approx([0.8, 0.65, -0.25, -0.25, 0])
    assert table.loc["Birch"].to_list() == pytest.approx([0.2, 0.35, 0.75, 0.75, 1])


def test_validation_is_a_mean_per_site_and_round() -> None:
    results = _table(
        [
            Row("run", "a", 0, number, site, "dice", value, "validation", case, "disc")
            for number, site, case, value in [
                (0, "Alder", "0", 0.2), (0, "Alder", "1", 0.4), (0, "Birch", "0", None), (1, "Alder", "0", 0.6)
            ]
        ]
    )  # fmt: skip
    table = tables.validation(results).droplevel(["method", "seed"])
    assert table["Alder"].to_list() == pytest.approx([0.3, 0.6])
    assert table["Birch"].isna().all() if "Birch" in table else True


def test_gains_are_paired_by_seed() -> None:
    dice = {("standalone", 0): 0.5, ("standalone", 1): 0.7, ("a", 0): 0.6, ("a", 1): 0.6, ("a", 2): 0.99}
    rows = [_dice("Alder", "0", "disc", value, method=method, seed=seed) for (method, seed), value in dice.items()]
    assert tables.gains(_table(rows)).to_numpy().tolist() == [[pytest.approx(0.0)]]  # +.1 and -.1; seed 2 has no pair
    assert tables.gains(HAND).empty


def test_contribution_ranks_over_seeds() -> None:
    rows = [
        _quantity(0, site, "contribution", value, seed=seed)
        for seed, values in enumerate([(0.1, 0.2, 0.9), (0.3, 0.2, 0.9)])
        for site, value in zip(("Alder", "Birch", "Cedar"), values, strict=True)
    ]
    ranks = tables.contribution_ranks(_table(rows)).droplevel("method")
    assert ranks.to_dict("index") == {
        "Alder": {"best": 2, "worst": 3}, "Birch": {"best": 2, "worst": 3}, "Cedar": {"best": 1, "worst": 1}
    }  # fmt: skip
    assert tables.contribution_ranks(_table(rows[:3])).empty  # one seed says nothing of stability


def test_dice_and_contribution(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / method, method=method) for method in ("fedce", "fedavg")]
    table = tables.dice_and_contribution(runs)
    assert list(table) == ["method", "site", "num_samples", "dice", "weight", "mean_contribution"]
    assert table["method"].to_list() == ["fedce"] * 4 + ["fedavg"] * 4  # in the order given
    assert table.groupby("method")["weight"].sum().to_list() == pytest.approx([1.0, 1.0])
    console = Console(file=io.StringIO(), width=120)
    tables.print_table(table, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "Dice [%]" in printed
    assert f"{100 * table['dice'][0]:.1f}" in printed


def test_dice_and_contribution_of_a_run_that_is_not_tested(tmp_path: Path) -> None:
    table = tables.dice_and_contribution([make_run(tmp_path / "run", rounds=5, done=2)])
    assert table["dice"].isna().all()
    assert table["weight"].sum() == pytest.approx(1)


def test_training_alone_has_no_weights_and_no_contributions(tmp_path: Path) -> None:
    table = tables.dice_and_contribution([make_run(tmp_path / "run", method="standalone")])
    assert table[["weight", "mean_contribution"]].isna().all(axis=None)
    assert table["dice"].notna().all()


def test_runs_of_one_method_are_labelled_by_what_differs(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / f"{tau}-{seed}", seed=seed, parameters={"tau": tau, "mode": "times"})
        for tau in (0.4, 0.6)
        for seed in (0, 1)
    ]
    labels = [run.label for run in open_runs(runs)]
    assert labels == ["fedce (tau=0.4)"] * 2 + ["fedce (tau=0.6)"] * 2
    twins = [make_run(tmp_path / name) for name in ("one", "two")]
    assert [run.label for run in open_runs(twins)] == ["fedce [one]", "fedce [two]"]


def test_rows_of_coalitions_are_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    before = tables.by_site(together(open_runs([run])))
    add_rows(run, [Row("run", "fedce", 0, 11, "Alder", "dice", 0.0, "testing", "000", "prostate", coalition="Birch")])
    pd.testing.assert_frame_equal(tables.by_site(together(open_runs([run]))), before)


def test_latex_escapes_and_sets_in_the_style_of_booktabs() -> None:
    frame = pd.DataFrame({"Site_&": ["100% {a}~^\\#$", "b"], "Dice [%]": [87.654, -1.0]})
    best = pd.DataFrame([[False, True], [False, False]])
    text = latex_text(Table("t", "A & B", frame, best=best))
    assert r"100\% \{a\}\textasciitilde{}\textasciicircum{}\textbackslash{}\#\$ & \textbf{87.7} \\" in text
    assert r"Site\_\& & Dice [\%] \\" in text
    assert r"b & $-$1.0 \\" in text
    assert r"\caption{A \& B}" in text
    assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\begin{tabular}{lr}"))


def test_csv_holds_the_unrounded_numbers_and_the_deviations() -> None:
    frame = pd.DataFrame({"Method": ["a"], "Alder": [87.654321]})
    text = csv_text(Table("t", "", frame, spread=pd.DataFrame({"Method": [math.nan], "Alder": [1.5]})))
    assert text == 'Method,Alder,"Alder, std over seeds"\na,87.654321,1.5\n'


def test_cells() -> None:
    frame = pd.DataFrame({"Method": ["a"], "Dice [%]": [87.65], "Weight": [0.12345], "Cases": [3], "Gone": [math.nan]})
    table = Table("t", "", frame)
    assert [table.cell(0, column) for column in range(5)] == ["a", "87.7", "0.123", "3", "\N{EN DASH}"]


def test_headed_shows_dice_in_percent_and_bytes_in_megabytes() -> None:
    table = headed(tables.site_dice(HAND))
    assert list(table) == ["Method", "Seed", "Site", "Dice [%]", "Lowest case [%]", "Cases", "Both empty"]
    assert table["Dice [%]"].to_list() == pytest.approx([60, 90])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sites": ("Alder", "Birch", "Cedar")}, "sites"),
        ({"labels": ("disc", "cup")}, "labels"),
        ({"task": "fundus"}, "task"),
    ],
)
def test_runs_that_do_not_belong_together(tmp_path: Path, change: dict[str, object], message: str) -> None:
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", **change)]  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=rf"b: its {message} .* is not"):
        open_runs(runs)


def test_what_is_missing_is_named_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"gone: no such run folder; make one with `fedmerit run"):
        open_runs([tmp_path / "gone"])
    with pytest.raises(BadInput, match="no run folder given"):
        open_runs([])
    empty = make_run(tmp_path / "empty", done=0)
    with pytest.raises(BadInput, match=r"empty: results.csv holds no result yet.*fedmerit run"):
        open_runs([empty])
    (empty / "results.csv").unlink()
    with pytest.raises(BadInput, match=r"empty: no results.csv"):
        open_runs([empty])
    (empty / "run.json").write_text("{}")
    with pytest.raises(BadInput, match=r"run.json: lacks run, method"):
        open_runs([empty])
    run = make_run(tmp_path / "run")
    with pytest.raises(BadInput, match="given 2 times"):
        open_runs([run, run])
