"""Tables and figures of one hospital, from runs and results made for it.

One hospital among the others: what of theirs is rounded, ranked in thirds, or left out.
"""

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_results import made_dice, made_rounds, made_runs
from run_factory import SITES, add_rows, make_run, write_ledger

from fedmerit.schema.results import Row
from fedmerit_evaluation.report.one_site import write_site_report
from fedmerit_evaluation.report.one_site_tables import (
    OwnSite,
    own_figures,
    own_tables,
    rank_bands,
    redact_other_sites,
    rounded_others,
)
from fedmerit_evaluation.results.runs import combine_results, open_runs
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.intervals import ESTIMATE

OWN = SITES[1]
LEVELS = {"standalone": (0.60, 0.61, 0.60, 0.60), "fedce": (0.62, 0.71, 0.83, 0.90)}


def _own(folder: Path, seeds: int = 3, **more: list[tuple[float, ...]]) -> OwnSite:
    rounds = [row for name, values in more.items() for row in made_rounds(name, {"fedce": values}, SITES)]
    results = made_dice(LEVELS, noise=0.0, seeds=seeds, sites=SITES, rounds=rounds)
    return OwnSite(OWN, made_runs(results, folder), results)


def test_its_dice_stands_beside_its_third_and_the_median_of_the_others_rounded_to_5(tmp_path: Path) -> None:
    tables = {table.name: table for table in own_tables(_own(tmp_path), [])}
    assert list(tables) == ["own-dice", "own-gains", "own-cases"]
    # it ranks third of four, in the middle at 2.5 of 4; the others' median is 83
    row = tables["own-dice"].frame.set_index("Method").loc["fedce"]
    assert row.to_dict() == {OWN: 71.0, "Rank among all sites": "middle third", "Others, median": 85.0}
    assert (tables["own-dice"].low.iloc[1][OWN], tables["own-dice"].high.iloc[1][OWN]) == (71.0, 71.0)
    assert tables["own-dice"].caption.endswith("only the median, rounded to 5")
    gains = tables["own-gains"].frame
    assert gains.to_dict("records") == [{"Method": "fedce", OWN: 10.0, "Rank among all sites": "middle third"}]
    cases = tables["own-cases"].frame.set_index("Method").loc["fedce"]
    assert cases.to_dict() == {"Test cases": 6, "Lowest case [%]": 71.0, "Both empty": 0}


def test_of_one_seed_there_is_no_rank(tmp_path: Path) -> None:
    (dice,) = (table for table in own_tables(_own(tmp_path, seeds=1), []) if table.name == "own-dice")
    assert set(dice.frame["Rank among all sites"]) == {"only one seed"}


def test_its_weight_and_share_of_contribution(tmp_path: Path) -> None:
    own = _own(
        tmp_path,
        weight=[(0.1,) * 3, (0.4, 0.3, 0.2), (0.2, 0.3, 0.4), (0.3,) * 3],
        contribution=[(1.0,) * 3, (4.0,) * 3, (2.0,) * 3, (1.0,) * 3],
    )
    (table,) = (table for table in own_tables(own, []) if table.name == "own-contributions")
    rows = table.frame.set_index("Quantity")
    assert rows.loc["Weight, mean [%]", OWN] == 30.0
    assert rows.loc["Share of contribution [%]", OWN] == 50.0
    assert rows.loc["Share of contribution [%]", "Rank among all sites"] == "upper third"
    assert rows.loc["Share of contribution [%]", "Others, median"] == 10.0  # of 1/8, 2/8 and 1/8, to the nearest 5
    assert pd.isna(rows.loc["Weight, mean [%]", "Others, median"])  # of weights nothing of the others is told


def test_figures_have_only_the_own_line(tmp_path: Path) -> None:
    own = _own(tmp_path, weight=[(0.1,), (0.4,), (0.2,), (0.3,)])
    drawn = dict(own_figures(own))
    assert list(drawn) == ["own-dice", "own-weights"]
    assert "and the median of the others" in drawn["own-dice"].caption
    assert drawn["own-dice"].seen == ("A row per method. Mean test Dice of Birch: standalone 61.0 %, fedce 71.0 %.")
    (panel,) = drawn["own-weights"].figure.axes
    assert [list(line.get_ydata()) for line in panel.lines] == [[40.0]]
    assert drawn["own-weights"].seen == "Weight [%], from the first round to the last: fedce from 40 to 40."


def test_its_surfaces(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=2, surfaces=True)
    tables = write_site_report([run], OWN).parent / "report-files" / "tables"
    shown = pd.read_csv(tables / "own-surfaces.csv").set_index("Quantity")
    dice = pd.read_csv(tables / "own-dice.csv").iloc[0]
    assert shown.loc["HD95 [mm]", OWN] == pytest.approx(20 - 0.2 * dice[OWN], abs=0.1)
    assert "Others, median" not in shown


def test_its_selected_model_and_no_other_sites(tmp_path: Path) -> None:
    """Every other site's Dice is 0.3 lower: a mean of several would show."""
    run = make_run(tmp_path / "run", rounds=2, surfaces=True)
    levels = {"given": 0.7, "local_only": 0.6, "selected": 0.8}
    rows = []
    for site, (end, level), split in product(SITES, levels.items(), ("testing", "validation")):
        dice = level if site == OWN else level - 0.3
        for name, value in {"dice": dice, "hd95": 20 - 20 * dice, "nsd": dice / 2}.items():
            rows.append(Row(run.name, "fedce", 0, 1, site, name, value, f"{split}_{end}", "000", "prostate"))
    add_rows(run, rows)
    page = write_site_report([run], OWN)
    tables = page.parent / "report-files" / "tables"
    (home,) = pd.read_csv(tables / "own-final-models.csv").to_dict("records")
    assert home == {
        "Method": "fedce",
        **{"Received, Dice [%]": 70.0, "Local, Dice [%]": 60.0, "Final, Dice [%]": 80.0},
        **{f"{name}, validation Dice [%]": 100 * levels[end]
           for name, end in (("Received", "given"), ("Local", "local_only"), ("Final", "selected"))},
    }  # fmt: skip
    (surfaces,) = pd.read_csv(tables / "own-final-models-surfaces.csv").to_dict("records")
    assert (surfaces["Final, HD95 [mm]"], surfaces["Final, NSD at 2 mm [%]"]) == (4.0, 40.0)
    text = page.read_text()
    assert f"(final_model=selected): the model that {OWN} received" in text
    assert not any(site in text for site in SITES if site != OWN)
    other = write_site_report([make_run(tmp_path / "other", rounds=2)], OWN)
    assert not (other.parent / "report-files" / "tables" / "own-final-models.csv").exists()


def test_only_its_own_flags(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=4)
    add_rows(run, [Row("run", "fedce", 0, 3, site, "rejected", 1.0) for site in (OWN, "Cedar")])
    write_ledger(run, [{"round": 3, "rejected": {OWN: "update with NaN", "Cedar": "no answer"}}])
    path = write_site_report([run], OWN)
    marks = pd.read_csv(path.parent / "report-files" / "tables" / "own-flags.csv")
    assert marks[["Site", "Rounds", "Reason"]].to_numpy().tolist() == [[OWN, 3, "update with NaN"]]


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("Among updates of A, that of A-1 is nearest to B.", "Among updates of another site, that of A-1 is nearest to "
         "another site."),
        ("Apart from 'A': 3 of A's cases", "Apart from 'another site': 3 of another site's cases"),
        ("BAD A_B", "BAD A_B"),
    ],
)  # fmt: skip
def test_a_reason_names_no_other_site_and_keeps_its_words(tmp_path: Path, reason: str, shown: str) -> None:
    run = make_run(tmp_path / "run", sites=("A", "A-1", "B", "St. C"), rounds=4)
    add_rows(run, [Row("run", "fedce", 0, 3, "A-1", "rejected", 1.0)])
    write_ledger(run, [{"round": 3, "rejected": {"A-1": reason}}])
    path = write_site_report([run], "A-1")
    (marked,) = pd.read_csv(path.parent / "report-files" / "tables" / "own-flags.csv").to_dict("records")
    assert marked["Reason"] == shown


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
    assert list(mine) == ESTIMATE
    assert everyone.loc["fedce"].to_dict() == pytest.approx({"Alder": 0.8, "Birch": 0.7, "Cedar": 0.6})
    gain, gains = own.of("gain")
    assert gain["mean"].to_dict() == pytest.approx({"fedce": 0.1, "fedavg": 0.1})
    assert gains.loc["fedce"].to_dict() == pytest.approx({"Alder": 0.3, "Birch": 0.1, "Cedar": 0.0})
