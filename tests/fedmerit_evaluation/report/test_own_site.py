"""One hospital among the others: what of theirs is rounded, ranked in thirds, or left out."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_results import made_dice, made_runs
from run_factory import SITES, make_run

from fedmerit_evaluation.report.one_site_tables import OwnSite, rank_bands, redact_other_sites, rounded_others
from fedmerit_evaluation.results.run_folders import combine_results, open_runs
from fedmerit_evaluation.results.views import Results


def test_a_median_needs_three_known_others_and_quartiles_eight() -> None:
    table = pd.DataFrame({"own": [0.5, 0.5], "a": [0.11, 0.1], "b": [0.32, None], "c": [0.84, 0.5]}, index=["x", "y"])
    found = rounded_others(table, "own")
    assert found.to_dict() == {"median": pytest.approx({"x": 0.3})}
    many = pd.DataFrame([[0.5, *np.linspace(0.1, 0.8, 8)]], columns=["own", *"abcdefgh"])
    expected = {"median": 0.45, "lower quartile": 0.25, "upper quartile": 0.6}
    assert rounded_others(many, "own").iloc[0].to_dict() == pytest.approx(expected, abs=0.051)


def test_the_third_of_all_sites_in_which_it_ranks() -> None:
    table = pd.DataFrame([[0.9, 0.5, 0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, None, None, None]], columns=list("abcdef"))
    assert rank_bands(table, "a").to_list() == ["upper third", "\N{EN DASH}"]
    assert rank_bands(table, "c").to_list() == ["middle third", "\N{EN DASH}"]
    assert rank_bands(table, "a", lowest_first=True)[0] == "lower third"


def test_shares_of_training_images_are_left_out(tmp_path: Path) -> None:
    results = combine_results(open_runs([make_run(tmp_path / "run", method="fedavg", rounds=3)]))
    assert redact_other_sites(results, 3) == (results, [])
    rows = results.rows.copy()
    images = {site: 40.0 + 10 * place for place, site in enumerate(SITES)}
    weight = rows["quantity"] == "weight"
    shares = weight & (rows["round"] == 1)
    rows.loc[shares, "value"] = rows.loc[shares, "site"].map(images) / sum(images.values())
    rows.loc[weight & (rows["round"] == 2), "value"] = rows["site"].map(images) / 500
    gone = weight & (rows["round"] == 2) & (rows["site"] == "Alder")
    rows.loc[gone, "value"] = 0.0  # an expelled site: the others share by images still
    kept, left_out = redact_other_sites(Results(rows), 3)
    assert "numbers of images" in left_out[0]
    assert list(kept.rounds.of("weight").index.get_level_values("round")) == [0]
    assert list(kept.rounds.of("contribution").index.get_level_values("round")) == [0, 1, 2]


def test_its_own_dice_and_gain_by_method_in_the_order_of_the_runs(tmp_path: Path) -> None:
    levels = {"fedce": (0.8, 0.7, 0.6), "standalone": (0.5, 0.6, 0.6), "fedavg": (0.7, 0.7, 0.7)}
    results = made_dice(levels, noise=0.0)
    own = OwnSite("Birch", made_runs(results, tmp_path), results)
    assert own.others == 2
    mine, everyone = own.of("dice")
    assert mine["mean"].to_dict() == pytest.approx({"fedce": 0.7, "standalone": 0.6, "fedavg": 0.7})
    assert list(mine.index) == list(everyone.index) == ["fedce", "standalone", "fedavg"]
    assert list(mine) == ["mean", "low", "high"]
    assert everyone.loc["fedce"].to_dict() == pytest.approx({"Alder": 0.8, "Birch": 0.7, "Cedar": 0.6})
    gain, gains = own.of("gain")
    assert gain["mean"].to_dict() == pytest.approx({"fedce": 0.1, "fedavg": 0.1})
    assert gains.loc["fedce"].to_dict() == pytest.approx({"Alder": 0.3, "Birch": 0.1, "Cedar": 0.0})
