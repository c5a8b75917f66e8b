"""Views of test Dice against numbers worked out explicitly."""

import math
from dataclasses import replace

import pandas as pd
import pytest

from fedmerit.schema.results import COLUMNS, Row
from fedmerit.schema.scores import UNION
from fedmerit_evaluation.results.views import Dice, UnionDice, summarise_sites


def _rows(rows: list[Row]) -> pd.DataFrame:
    return pd.DataFrame([vars(row) for row in rows], columns=COLUMNS).astype({"value": float})


def _dice(site: str, case: str, label: str, value: float | None, *, method: str = "a", seed: int = 0) -> Row:
    return Row("run", method, seed, 9, site, "dice", value, "testing", case, label)


HAND = _rows(
    [
        # Alder: case 0 (.8 + .6) / 2 = .7, case 1 .5 (its cup is empty in both): mean .6
        _dice("Alder", "0", "disc", 0.8), _dice("Alder", "0", "cup", 0.6),
        _dice("Alder", "1", "disc", 0.5), _dice("Alder", "1", "cup", None),
        # Birch: .9; case 1 empty throughout
        _dice("Birch", "0", "disc", 0.95), _dice("Birch", "0", "cup", 0.85),
        _dice("Birch", "1", "disc", None), _dice("Birch", "1", "cup", None),
    ]
)  # fmt: skip


def _surface(site: str, case: str, label: str, hd95: float | None, nsd: float | None, unit: str = "") -> list[Row]:
    rows = {f"hd95{unit}": hd95, f"nsd{unit}": nsd}
    return [Row("run", "a", 0, 9, site, name, value, "testing", case, label) for name, value in rows.items()]


def test_sites_count_pairs_without_hd95() -> None:
    """Alder: HD95 case 0 (4 + 2) / 2 = 3, case 1 5 only: mean 4; NSD (.5 + .7) / 2 = .6, (.4 + 0) / 2 = .2: mean .4.

    Birch knows no mm: its single case has pixels.
    """
    rows = [
        *_surface("Alder", "0", "disc", 4.0, 0.5), *_surface("Alder", "0", "cup", 2.0, 0.7),
        *_surface("Alder", "1", "disc", 5.0, 0.4), *_surface("Alder", "1", "cup", None, 0.0),
        *_surface("Birch", "0", "disc", 7.0, 0.9, "_px"), *_surface("Birch", "0", "cup", None, None, "_px"),
    ]  # fmt: skip
    dice = Dice(pd.concat([HAND, _rows(rows)], ignore_index=True))
    table = dice.sites.droplevel(["method", "seed"])
    assert table.loc["Alder", ["hd95", "nsd", "one_empty"]].to_list() == pytest.approx([4.0, 0.4, 1])
    assert table.loc["Birch", ["hd95_px", "nsd_px", "one_empty"]].to_list() == pytest.approx([7.0, 0.9, 0])
    assert table.loc["Birch", ["hd95", "nsd"]].isna().all()
    assert table["dice"].to_dict() == pytest.approx({"Alder": 0.6, "Birch": 0.9})
    assert dice.label_surfaces["hd95"].loc[("a", 0, "Alder")].to_dict() == pytest.approx({"disc": 4.5, "cup": 2.0})
    assert set(Dice(HAND).sites) == {"dice", "lowest", "cases", "patients", "both_empty"}


def test_sites_with_empty_predictions_have_nsd_without_hd95() -> None:
    rows = [row for label in ("disc", "cup") for row in _surface("Alder", "0", label, None, 0.0)]
    rows = [row for row in rows if row.value is not None]
    table = Dice(pd.concat([HAND, _rows(rows)], ignore_index=True)).sites.droplevel(["method", "seed"])
    assert table.loc["Alder", ["nsd", "one_empty"]].to_list() == [0.0, 2]
    assert "hd95" not in table


def test_summarise_sites_equals_hand_computed() -> None:
    row = summarise_sites(Dice(HAND).by_site).iloc[0]
    # mean of .6 and .9; sample deviation sqrt(2 * .15^2 / 1)
    assert row["mean"] == pytest.approx(0.75)
    assert row["std"] == pytest.approx(math.sqrt(0.045))
    assert row["worst"] == pytest.approx(0.6)


def _union(site: str, case: str, label: str, value: float | None, *, method: str = "a") -> Row:
    return Row("run", method, 0, 1, site, "dice", value, split="union", case=case, label=label)


def test_cross_site_equals_hand_computed() -> None:
    """Rows are whose model, columns where it was tested: cases over their labels, then sites over their cases."""
    rows = [
        _union("A", "A/0", "disc", 0.9), _union("A", "A/0", "cup", 0.7), _union("A", "A/1", "disc", 0.4),
        _union("A", "A/1", "cup", None), _union("A", "B/0", "disc", 0.5), _union("B", "A/0", "disc", 0.2),
        _union("B", "A/1", "disc", 0.1), _union("B", "B/0", "disc", 1.0)
    ]  # fmt: skip
    same = [_union(site, f"{at}/0", "disc", 0.5, method="b") for site in "AB" for at in "AB"]
    apart = [replace(row, quantity="hd95", value=row.value and 10 * row.value) for row in [*rows, *same]]
    cross_site = UnionDice(_rows([*rows, *same, *apart]), UNION).cross_site
    assert list(cross_site) == ["dice", "hd95"]
    for name, unit in (("dice", 1), ("hd95", 10)):
        assert cross_site[name].to_dict("index") == {
            ("a", 0, "A"): pytest.approx({"A": 0.6 * unit, "B": 0.5 * unit}),
            ("a", 0, "B"): pytest.approx({"A": 0.15 * unit, "B": 1.0 * unit}),
        }
    assert UnionDice(_rows(same), UNION).cross_site == {}


def test_comparison_is_mean_and_std_over_seeds() -> None:
    values = {("a", 0): (0.5, 0.7), ("a", 1): (0.7, 0.9), ("b", 0): (0.6, 0.6)}
    results = _rows(
        [
            _dice(site, "0", "disc", value, method=method, seed=seed)
            for (method, seed), pair in values.items()
            for site, value in zip(("Alder", "Birch"), pair, strict=True)
        ]
    )
    mean, spread = Dice(results).comparison
    assert mean.loc["a"].to_list() == pytest.approx([0.6, 0.8, 0.7, math.sqrt(0.02), 0.6])
    assert spread.loc["a"].to_list() == pytest.approx([math.sqrt(0.02)] * 3 + [0.0, math.sqrt(0.02)], abs=1e-12)
    assert mean.loc["b"].to_list() == pytest.approx([0.6, 0.6, 0.6, 0.0, 0.6])
    assert spread.loc["b"].isna().all()


def test_gains_are_paired_by_seed() -> None:
    dice = {("standalone", 0): 0.5, ("standalone", 1): 0.7, ("a", 0): 0.6, ("a", 1): 0.6, ("a", 2): 0.99}
    rows = [_dice("Alder", "0", "disc", value, method=method, seed=seed) for (method, seed), value in dice.items()]
    assert Dice(_rows(rows)).gains.to_numpy().tolist() == [[pytest.approx(0.0)]]  # +.1 and -.1; seed 2 has no pair
    assert Dice(HAND).gains.empty
    assert Dice(_rows(rows)).surface_changes.empty
    quantities = {"hd95": lambda dice: 10 - 10 * dice**2, "nsd": lambda dice: dice}
    apart = [replace(row, quantity=name, value=of(row.value)) for row in rows for name, of in quantities.items()]
    changes = Dice(_rows([*rows, *apart])).surface_changes
    assert changes.to_dict("index") == {("a", "Alder"): pytest.approx({"hd95": 0.1, "nsd": 0.0}, abs=1e-12)}


def test_surface_changes_skip_cases_without_hd95() -> None:
    """It finds nothing in the last case, federated training finds it 40 mm off."""
    found = {"standalone": (5.0, 5.0, None), "a": (5.0, 6.0, 40.0)}
    rows = [_dice("Alder", str(case), "disc", 0.5, method=method) for method in found for case in range(3)]
    apart = [replace(row, quantity="hd95", value=found[row.method][int(row.case)]) for row in rows]
    nsd = [replace(row, quantity="nsd") for row in rows]
    changes = Dice(_rows([*rows, *apart, *nsd])).surface_changes
    assert changes.to_dict("index") == {("a", "Alder"): pytest.approx({"hd95": 0.5, "nsd": 0.0})}


def test_gains_with_other_test_cases_are_nan() -> None:
    """Birch's cases are others in the second seed; Alder's gains are .1 in both, so are those of the other methods.

    One of them is tested at Alder only, and lacks a case there: it differs in what is tested, and has its gain.
    """
    rows = [
        _dice(site, f"{case}@x" if (site, method, seed) == ("Birch", "a", 1) else str(case), "disc",
              0.5 if method == "standalone" else 0.6, method=method, seed=seed)
        for method in ("standalone", "a", "b", "c") for seed in (0, 1)
        for site in (("Alder",) if method == "c" else ("Alder", "Birch")) for case in range(3 if method == "c" else 4)
    ]  # fmt: skip
    dice = Dice(_rows(rows))
    assert dice.unpaired_with_local_only == {("a", "Birch")}
    assert dice.mismatched_seeds(methods=["standalone", "a"]) == {1}
    assert not dice.mismatched_seeds("Alder", ["standalone", "a"]) | dice.mismatched_seeds(methods=["standalone", "b"])
    assert dice.mismatched_seeds(methods=["standalone", "c"]) == {0, 1}
    assert dice.gains.loc["a"].to_dict() == pytest.approx({"Alder": 0.1, "Birch": math.nan}, nan_ok=True)
    assert dice.gains.loc["b"].to_list() == pytest.approx([0.1, 0.1])
    known = dice.intervals.dropna(subset="mean").index
    assert {(method, of) for statistic, method, of in known if statistic == "gain"} == {
        ("a", "Alder"), ("b", "Alder"), ("b", "Birch"), ("c", "Alder"),
    }  # fmt: skip
    assert {method for statistic, method, _ in known if statistic == "mean_gain"} == {"b", "c"}
    assert dice.intervals.loc[("gain", "a", "Birch"), "seeds"] == 0
