"""The study of free riders: its runs, its site folders, and what its tables say of made-up results."""

import math
from pathlib import Path

import pandas as pd
import pytest

from data_prep.preparation import Preparation
from data_prep.prepare import prepare as prepare_sites
from evaluation.comparison_runs import parse_methods
from evaluation.figures import png
from evaluation.freeriders import freeriders, rider_figures
from evaluation.freeriders.freerider_tables import WITHIN, beside_honest, false_flags, outcomes, rocs, tables
from evaluation.freeriders.freeriders import HONEST, Attack, parse_kinds, prepare, results_of
from evaluation.freeriders.sybils import duplicate, split
from fedmerit.errors import BadInput
from fedmerit.records.results import COLUMNS, read_run
from fedmerit.training.data import Slices, open_sites

SETTINGS = {"width": "2", "depth": "2", "residual_units": "0"}


@pytest.fixture(scope="module")
def sites(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("riders") / "sites"
    prepare_sites(Preparation("synthetic-prostate", size=16, patients=5), root)
    return root


# Kinds


def test_all_kinds_are_those_that_a_site_can_follow():
    kinds = parse_kinds("all", ["disc", "cup"])
    assert {"repeat", "delta-noise", "swapped", "duplicate", "split"} <= set(kinds)
    assert "twin" not in kinds
    assert "swapped" not in parse_kinds("all", ["prostate"])  # inverted, there
    assert parse_kinds("noise:from=3, split", ["prostate"]) == ["noise:from=3", "split"]


@pytest.mark.parametrize(
    ("text", "words"),
    [("lazy", "unknown"), ("zero,zero", "twice"), ("twin:of=A", "duplicate"), ("noise:x=1", "x=1"), ("", "unknown")],
)
def test_unusable_kinds_are_told(text, words):
    with pytest.raises(BadInput, match=words):
        parse_kinds(text, ["prostate"])


# Sites


def arrays(folder) -> set[int]:
    return {case.image_file.stat().st_ino for cases in folder.splits.values() for case in cases}


def test_a_duplicated_site_stands_twice_by_links(sites, tmp_path):
    assert duplicate(sites, "site2", tmp_path / "out") == ["site2", "site2-copy"]
    made, before = ({folder.name: folder for folder in open_sites(root)} for root in (tmp_path / "out", sites))
    assert set(made) == {*before, "site2-copy"}
    for name, folder in made.items():
        original = before[name.removesuffix("-copy")]
        assert arrays(folder) == arrays(original)
        assert folder.info["counts"]["training"] == original.info["counts"]["training"]
        folder.require_arrays()
    assert made["site2-copy"].info["copy_of"] == "site2"


def test_a_split_site_has_two_halves_that_share_no_training_patient(sites, tmp_path):
    assert split(sites, "site2", tmp_path / "out") == ["site2-a", "site2-b"]
    made = {folder.name: folder for folder in open_sites(tmp_path / "out")}
    original = next(folder for folder in open_sites(sites) if folder.name == "site2")
    assert "site2" not in made
    halves = [made["site2-a"], made["site2-b"]]
    patients = [{case.patient for case in half.cases("training")} for half in halves]
    assert not patients[0] & patients[1]
    assert patients[0] | patients[1] == {case.patient for case in original.cases("training")}
    assert all(patients)
    for half in halves:
        assert len(half.cases("testing")) == len(original.cases("testing"))
        assert half.info["counts"]["training"]["slices"] == len(Slices(half.cases("training")))


@pytest.mark.parametrize("kind", [duplicate, split])
def test_a_site_that_is_not_there_or_would_be_there_twice(sites, tmp_path, kind):
    with pytest.raises(BadInput, match=r"site9.*site1"):
        kind(sites, "site9", tmp_path / "out")
    taken = kind(sites, "site1", tmp_path / "taken")[1]
    if kind is duplicate:
        with pytest.raises(BadInput, match=f"{taken} already"):
            kind(tmp_path / "taken", "site1", tmp_path / "again")


# Runs


def config(out, sites, kinds="zero,duplicate,noise:from=2", **changes):
    options = {"sites": sites, "rounds": 3} | changes
    return prepare(out, parse_methods("fedavg,fedce"), kinds.split(","), ["site1", "site3"], [0, 1], SETTINGS, options)


def test_every_run_is_planned_and_says_what_it_is(sites, tmp_path):
    attacks = config(tmp_path, sites)
    assert len(attacks) == 2 * 2 * (1 + 3 * 2)
    assert len({attack.folder for attack in attacks}) == len(attacks)
    assert [attack.kind for attack in attacks[:4]] == [HONEST] * 4
    for attack in attacks:
        info = read_run(attack.folder)
        assert (info["method"], info["seed"], info["engine"]) == (attack.label, attack.seed, "local")
        assert info["training"]["validate_trained"] is True
        expected = {
            HONEST: {},
            "zero": {attack.site: "zero:from=0"},
            "noise:from=2": {attack.site: "noise:from=2:times=1.0"},
            "duplicate": {f"{attack.site}-copy": f"twin:from=0:of={attack.site}"},
        }
        assert info["behaviours"] == expected[attack.kind]
        assert attack.first == (2 if attack.kind.startswith("noise") else 0)
        assert len(info["sites"]) == (7 if attack.kind == "duplicate" else 6)
        assert set(attack.riders) <= set(info["sites"])
        assert bool(attack.riders) == (attack.kind != HONEST)
    assert {attack.riders for attack in attacks if attack.kind == "duplicate"} == {
        ("site1", "site1-copy"),
        ("site3", "site3-copy"),
    }
    assert results_of(attacks).empty


def test_a_study_goes_on_with_the_same_options_alone(sites, tmp_path):
    first = config(tmp_path, sites, "zero,split")
    content = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("run.json")}
    assert config(tmp_path, sites, "zero,split") == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("run.json")} == content
    assert len(config(tmp_path, sites, "zero,split,delta")) > len(first)
    with pytest.raises(BadInput, match="rounds"):
        config(tmp_path, sites, "zero", rounds=4)


def test_what_cannot_be_run_leaves_nothing_behind(sites, tmp_path):
    for kinds, options, words in (
        ("noise:from=3", {}, "begins in round 3"),
        ("zero", {"rounds": 0}, "rounds"),
    ):
        with pytest.raises(BadInput, match=words):
            config(tmp_path / "out", sites, kinds, **options)
        assert not (tmp_path / "out").exists()
    with pytest.raises(BadInput, match="site9"):
        prepare(tmp_path / "out", parse_methods("fedavg"), ["zero"], ["site9"], [0], {}, {"sites": sites, "rounds": 3})


# Tables of made-up results

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
        add(ROUNDS - 1, site, "dice", dice if not isinstance(dice, dict) else dice[site], "testing", "000")
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
    return attacks, pd.concat(results, ignore_index=True)


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
    assert row["Weight"] == pytest.approx(0.2)
    assert row["Weight, honest"] == pytest.approx(0.4)
    assert row["Others' Dice, change [%]"] == pytest.approx(-10)
    assert row["Named [%]"] == 100
    assert row["Flagged by (after rounds)"] == "small norm (1), free-rider value (2)"
    assert "Reward" not in summary.frame
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
    odd = (results["run"] == "honest_0") & (results["site"] == "C") & (results["quantity"] == "norm")
    results.loc[odd & (results["round"] == 7), "value"] = 5.0
    counted = false_flags(attacks, results)
    assert counted["large norm [%]"].to_list() == pytest.approx([100 / 6])


def test_a_rider_that_is_told_too_late_is_not_told(study):
    attacks, results = study
    results.loc[(results["quantity"] == "norm") & (results["round"] < 2 + WITHIN), "value"] = 1.0
    assert outcomes(attacks, results).set_index("Behaviour").loc["zero", "small norm"].isna().all()


def test_runs_without_their_honest_one_wait(study):
    attacks, results = study
    told = outcomes(attacks, results[results["run"] != "honest_1"])
    assert set(told["Seed"]) == {0}
    assert tables(attacks, results[~results["run"].str.startswith("honest")]) == []


def test_the_curves_hold_every_detector(study):
    curves = rocs(*study)
    one = curves[(curves["Behaviour"] == "zero") & (curves["Detector"] == "small norm")]
    assert one[["honest_flagged", "riders_flagged"]].to_numpy().tolist() == [[0, 0], [0, 1], [1, 1]]


def test_one_run_beside_its_honest_one(study):
    attacks, results = study
    table = beside_honest(attacks[1], attacks[0], results).frame.set_index("Site")
    assert table["Behaviour"].to_list() == ["zero", "honest", "honest"]
    assert table.loc["A", "Flagged by (round)"] == "small norm (2), free-rider value (3)"
    assert table.loc["B", "Flagged by (round)"] == ""
    assert table.loc["A", "Weight"] == 0.2
    assert table.loc["A", "Weight, honest run"] == 0.5


def test_figures_are_drawn_of_sites_that_ride_in_turn(study):
    drawn = rider_figures.figures(*study)
    assert set(drawn) == {"figure4_fedavg_zero", "figure7_fedavg_zero"}
    assert all(png(figure).startswith(b"\x89PNG") for figure in drawn.values())
    heat = drawn["figure4_fedavg_zero"].axes
    assert [panel.get_title(loc="left") for panel in heat[:6]] == [f"Round {round}" for round in (0, 2, 4, 7, 9, 11)]
    assert [text.get_text() for text in heat[5].texts] == ["0.14", "0.00", "0.00", "0.00", "0.14", "0.00"]


def test_sites_forget_what_a_finished_run_no_longer_needs(tmp_path):
    (tmp_path / "sites" / "A").mkdir(parents=True)
    (tmp_path / "models").mkdir()
    freeriders.forget(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["models"]
