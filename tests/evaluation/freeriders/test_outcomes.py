"""What a study of free riders says of made-up results: its tables and figures."""

import math
from pathlib import Path

import pandas as pd
import pytest

from evaluation.display.drawing import png
from evaluation.freeriders import rider_maps
from evaluation.freeriders.attacked_runs import HONEST, Attack
from evaluation.freeriders.outcomes import WITHIN, beside_honest, false_flags, outcomes, rocs, tables
from evaluation.results.views import Results
from fedmerit.records.results import COLUMNS

SITES = ("A", "B", "C")
ROUNDS = 12


def attack(kind, site, seed=0, first=0, riders=None) -> Attack:
    name = "_".join(filter(None, (kind, site, str(seed))))
    own = riders or ((site,) if site else ())
    return Attack("fedavg", kind, site, seed, Path(name), own, first)


def rows_of(one: Attack, sites=SITES, dice=0.8, weight=None, told=None) -> pd.DataFrame:
    """A run in which a rider gets worse by training, from its first round on, and what ``told`` says of it besides."""
    rows = []

    def add(round, site, quantity, value, split="", case=""):
        rows.append((one.folder.name, one.label, one.seed, round, site, "", split, case, "x", quantity, value))

    for round in range(ROUNDS):
        for site in sites:
            rides = site in one.riders and round >= one.first
            quantities = {"weight": (weight or {}).get(site, 1 / len(sites)), "norm": 1.0, "repeated": 0.0}
            quantities |= {"cosine_to_mean": 0.6, "cosine_to_previous": 0.1, "largest_pair_cosine": 0.2}
            for name, value in (quantities | (told if told and rides else {})).items():
                add(round, site, name, value)
            add(round, site, "dice", 0.5, "validation", "000")
            add(round, site, "dice", 0.2 if rides else 0.6, "validation_trained", "000")
    for site in sites:
        tested = dice if not isinstance(dice, dict) else dice[site]
        for quantity, value in {"dice": tested, "hd95": 10 * tested, "nsd": tested / 2}.items():
            add(ROUNDS - 1, site, quantity, value, "testing", "000")
    return pd.DataFrame(rows, columns=COLUMNS)


@pytest.fixture
def study():
    """Two seeds, A and B ride in turn by zeros; and A stands twice."""
    attacks, results = [], []
    for seed in (0, 1):
        honest = attack(HONEST, "", seed)
        attacks.append(honest)
        results.append(rows_of(honest, weight={"A": 0.5, "B": 0.3, "C": 0.2}))
        for site in "AB":
            one = attack("zero", site, seed, first=2)
            attacks.append(one)
            dice = {"A": 0.7, "B": 0.7, "C": 0.7}
            results.append(rows_of(one, dice=dice, weight={"A": 0.2, "B": 0.2, "C": 0.6}, told={"norm": 0.0}))
        twice = attack("duplicate", "A", seed, riders=("A", "A-copy"))
        attacks.append(twice)
        results.append(
            rows_of(
                twice,
                (*SITES, "A-copy"),
                weight={"A": 0.3, "A-copy": 0.3, "B": 0.2, "C": 0.2},
                told={"largest_pair_cosine": 1.0},
            )
        )
    return attacks, Results(pd.concat(results, ignore_index=True))


def test_outcomes_are_against_the_honest_run_of_the_seed(study):
    told = outcomes(*study).set_index(["Behaviour", "Site", "Seed"])
    assert len(told) == 6
    zero = told.loc[("zero", "B", 1)]
    assert (zero["Weight"], zero["Weight, honest"]) == pytest.approx((0.2, 0.3))
    assert (zero["Others"], zero["Own"]) == pytest.approx((-0.1, -0.1))
    assert zero["Named"] == 1
    assert zero["small norm"] == 1  # in its first round that is not honest
    assert zero["free-rider value"] == 2  # the mean over rounds is below 0.03 in the one before
    assert math.isnan(zero["repeated"])
    twice = told.loc[("duplicate", "A", 0)]
    assert (twice["Weight"], twice["Weight, honest"]) == pytest.approx((0.6, 0.5))
    assert twice["Others"] == pytest.approx(0)
    assert twice["near duplicate"] == 1
    assert math.isnan(twice["Reward"])


def test_the_tables_say_what_paid_and_what_told(study):
    summary, flagged, auroc, honest = tables(*study)
    row = summary.frame.set_index("Behaviour").loc["zero"]
    assert row["Runs"] == 4
    assert row["Weight [%]"] == pytest.approx(20)
    assert row["Weight, honest [%]"] == pytest.approx(40)
    assert row["Others' Dice, change [%]"] == pytest.approx(-10)
    assert row["Highest free-rider value [%]"] == 100
    assert row["Flagged by any detector [%]"] == 100
    assert row["Flagged by (after rounds)"] == "small norm (1), free-rider value (2)"
    twice = summary.frame.set_index("Behaviour").loc["duplicate"]  # no highest value, and flagged all the same
    assert twice["Flagged by any detector [%]"] == 100
    assert "Reward [%]" not in summary.frame
    assert flagged.frame.set_index("Behaviour").loc["zero", "small norm [%]"] == 100
    assert flagged.frame.set_index("Behaviour").loc["duplicate", "small norm [%]"] == 0
    areas = auroc.frame.set_index("Behaviour")
    assert areas.loc["zero", "small norm"] == 1
    assert areas.loc["duplicate", "near duplicate"] == 1
    assert areas.loc["duplicate", "small norm"] == 0.5
    assert math.isnan(areas.loc["zero", "low contribution"])  # nothing recorded
    assert honest.frame["Sites"].to_list() == [6]
    assert (honest.frame.drop(columns=["Method", "Sites"]) == 0).all(axis=None)


def test_an_honest_site_that_is_flagged_is_counted(study):
    attacks, results = study
    rows = results.rows
    odd = (rows["run"] == "honest_0") & (rows["site"] == "C") & (rows["quantity"] == "norm")
    rows.loc[odd & (rows["round"] == 7), "value"] = 5.0
    counted = false_flags(attacks, results)
    assert counted["large norm [%]"].to_list() == pytest.approx([100 / 6])


def test_a_rider_that_is_told_too_late_is_not_told(study):
    attacks, results = study
    rows = results.rows
    rows.loc[(rows["quantity"] == "norm") & (rows["round"] < 2 + WITHIN), "value"] = 1.0
    assert outcomes(attacks, results).set_index("Behaviour").loc["zero", "small norm"].isna().all()


def test_runs_without_their_honest_one_wait(study):
    attacks, results = study
    told = outcomes(attacks, Results(results.rows[results.rows["run"] != "honest_1"]))
    assert set(told["Seed"]) == {0}
    assert tables(attacks, Results(results.rows[~results.rows["run"].str.startswith("honest")])) == []


def test_the_curves_hold_every_detector(study):
    curves = rocs(*study)
    one = curves[(curves["Behaviour"] == "zero") & (curves["Detector"] == "small norm")]
    assert one[["honest_flagged", "riders_flagged"]].to_numpy().tolist() == [[0, 0], [0, 1], [1, 1]]


def test_one_run_beside_its_honest_one(study):
    attacks, results = study
    table = beside_honest(attacks[1], attacks[0], results).frame.set_index("Site")
    assert table["Behaviour"].to_list() == ["zero", "honest", "honest"]
    assert table.loc["A", "Flagged by (after rounds)"] == "small norm (1), free-rider value (2)"
    assert table.loc["B", "Flagged by (after rounds)"] == ""
    assert table.loc["A", "Weight [%]"] == pytest.approx(20)
    assert table.loc["A", "Weight, honest run [%]"] == pytest.approx(50)
    assert table.loc["B", ["Dice [%]", "HD95 [mm]", "NSD at 2 mm [%]"]].to_list() == pytest.approx([70, 7, 35])
    assert table.loc["B", ["Dice, honest run [%]", "HD95, honest run [mm]"]].to_list() == pytest.approx([80, 8])


def test_figures_are_drawn_of_sites_that_ride_in_turn(study):
    drawn = rider_maps.figures(*study)
    assert set(drawn) == {"figure4_fedavg_zero", "figure7_fedavg_zero"}
    assert all(png(figure).startswith(b"\x89PNG") for figure in drawn.values())
    heat = drawn["figure4_fedavg_zero"].axes
    assert [panel.get_title(loc="left") for panel in heat[:6]] == [f"Round {round}" for round in (0, 2, 4, 7, 9, 11)]
    assert [text.get_text() for text in heat[5].texts] == ["0.14", "0.00", "0.00", "0.00", "0.14", "0.00"]
