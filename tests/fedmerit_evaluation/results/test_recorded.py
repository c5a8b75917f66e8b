"""Views of what rounds recorded, against numbers worked out explicitly."""

import pandas as pd
import pytest

from fedmerit.schema.results import COLUMNS, Row
from fedmerit_evaluation.results.views import Rounds


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
