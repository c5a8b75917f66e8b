"""What is reported of a ground truth beside its values, on synthetic trainings whose worth is known."""

import numpy as np
import pytest
from noisy_trainings import WORTH, trained

from fedmerit_evaluation.ground_truth.value_tables import ValueTables


def test_tables_say_how_good_the_reference_is_and_who_gains():
    tables = {table.name: table for table in ValueTables(trained(WORTH, hd95=True)).tables()}
    assert set(tables) == {
        "reliability",
        "shapley-ranks",
        "leave-one-out-ranks",
        "shapley-by-utility",
        "shapley-by-site",
    }
    assert tables["reliability"].frame["Ground truth"].tolist() == ["Shapley", "leave-one-out"]
    gains = tables["shapley-by-site"].frame.set_index("Site")
    np.testing.assert_allclose(gains.to_numpy(), 100 * np.repeat(np.array([list(WORTH.values())]).T, 5, axis=1))
    assert list(tables["shapley-by-utility"].frame) == ["Site", "mean Dice [points]", "worst hospital's Dice [points]",
                                                        "mean HD95 [mm or px]"]  # fmt: skip
    assert "with one seed" in ValueTables(trained(WORTH, seeds=1)).tables()[0].caption


THREE = dict(list(WORTH.items())[:3])  # 0.05, 0.1 and 0.15


def test_ranks_of_an_additive_game_explicitly():
    """In the second of two seeds each site adds 2 points more: a standard error of 1, 12.7 times to either side."""
    results = trained(THREE, seeds=2, patients=5)
    rows = results.rows
    members = rows["coalition"].str.count(r"\+") + 1
    rows.loc[rows["seed"] == 1, "value"] += 0.02 * members
    tables = {table.name: table for table in ValueTables(results).tables()}
    for name in ("shapley-ranks", "leave-one-out-ranks"):
        frame = tables[name].frame.set_index("Site")
        assert frame.index.to_list() == ["C", "B", "A"]
        assert frame["Value [points]"].to_list() == pytest.approx([16, 11, 6])
        assert frame["Share [%]"].to_list() == pytest.approx([1600 / 33, 1100 / 33, 600 / 33])
        assert frame["Rank"].to_list() == ["1", "2", "3"]
        assert set(frame["Not significantly different from"]) == {"none"}
        assert tables[name].low["Value [points]"].to_list() == pytest.approx([3.3, -1.7, -6.7], abs=1.5)
        assert tables[name].high["Value [points]"].to_list() == pytest.approx([28.7, 23.7, 18.7], abs=1.5)
        drawn = ValueTables(results).rankings["Shapley" if name == "shapley-ranks" else "leave-one-out"]
        assert drawn.order == ["C", "B", "A"]
        assert drawn.value.tolist() == pytest.approx([6, 11, 16])
        assert drawn.low.tolist() == tables[name].low["Value [points]"].to_list()[::-1]
    assert "over test patients and seeds" in tables["shapley-ranks"].caption
    single = {table.name: table for table in ValueTables(trained(THREE, seeds=1, patients=2)).tables()}
    assert "over test patients (one seed)" in single["shapley-ranks"].caption


def test_leave_one_out_only_is_a_ground_truth_and_says_nothing_of_who_gains():
    lacking = trained(THREE, seeds=1, patients=2, leave_out=[frozenset("A")])
    names = [table.name for table in ValueTables(lacking).tables()]
    assert names == ["reliability", "leave-one-out-ranks", "leave-one-out-by-utility"]
