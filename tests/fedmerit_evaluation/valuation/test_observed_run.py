"""An observed run as estimators see it: its games explicitly, its draws, what it lacks."""

import numpy as np
import pandas as pd
import pytest
from run_factory import make_run, make_sites

from fedmerit.contract.semivalues import EMPTY_COALITION
from fedmerit.errors import BadInput, Untrusted
from fedmerit.schema.results import COLUMNS, read_table
from fedmerit.trust import allow_places
from fedmerit_evaluation.valuation.estimators import InnovationValues, leave_one_out_matrix, shapley_matrix
from fedmerit_evaluation.valuation.observed_run import ObservedRun, RoundGame, prepared_sites, require_same_sites

SITES = ("Alder", "Birch")
BOTH = frozenset(SITES)


def rows_of(round, said):
    """Rows of ``said``: (coalition, site, case, label): Dice."""
    return [
        ("run", "fedavg", 0, "", round, site, coalition, "multi_round", "", case, label, "dice", value)
        for (coalition, site, case, label), value in said.items()
    ]


def run_of(folder, rows, draws=100):
    made = make_run(folder, method="fedavg", sites=SITES, rounds=2)
    return ObservedRun(made, draws, pd.DataFrame(rows, columns=COLUMNS).astype({"value": float}))


SAID = {
    ("(nobody)", "Alder", "a", "x"): 0.1,
    ("(nobody)", "Alder", "b", "x"): 0.3,
    ("(nobody)", "Birch", "a", "x"): 0.2,
    ("Alder+Birch", "Alder", "a", "x"): 0.6,
    ("Alder+Birch", "Alder", "a", "y"): 0.8,
    ("Alder+Birch", "Alder", "b", "x"): float("nan"),
    ("Alder+Birch", "Birch", "a", "x"): 0.5,
}


def test_games_utilities_are_means_over_labels_and_cases(tmp_path):
    (game,) = run_of(tmp_path / "run", rows_of(1, SAID)).games("multi_round")
    assert game.round == 1
    assert game.players == list(SITES)
    assert set(game.utilities) == {EMPTY_COALITION, BOTH}
    assert game.utilities[EMPTY_COALITION][:, 0].tolist() == pytest.approx([0.2, 0.2])
    assert game.utilities[BOTH][:, 0].tolist() == pytest.approx([0.7, 0.5])  # a case that is empty in both is left out
    assert game.on_average(BOTH)[0] == pytest.approx(0.6)
    assert game.counts[0] == 1


def test_games_reward_group_is_one_player(tmp_path):
    """Alder and Birch in round 1: always together, each with a part of what both earned. In round 0 they are not."""
    said = {(text, "Cedar", "a", "x"): dice for text, dice in (("(nobody)", 0.1), ("Alder+Birch", 0.3), ("Cedar", 0.4),
                                                               ("Alder+Birch+Cedar", 0.5))}  # fmt: skip
    parts = [("run", "fedavg", 0, "", 1, site, "", "", "", "", "", "reward_group_share", part) for site, part in
             (("Alder", 0.25), ("Birch", 0.75), ("Cedar", 1.0))]  # fmt: skip
    made = make_run(tmp_path / "run", method="fedavg", sites=(*SITES, "Cedar"), rounds=2)
    results = read_table(made / "results.csv")
    rows = pd.concat([results, pd.DataFrame(parts, columns=COLUMNS)], ignore_index=True)
    rows.to_csv(made / "results.csv", index=False)
    observed = pd.DataFrame(rows_of(0, said) + rows_of(1, said), columns=COLUMNS)
    apart, as_one = ObservedRun(made, 0, observed).games("multi_round")
    assert apart.parts == {}
    assert apart.players == ["Alder", "Birch", "Cedar"]
    assert as_one.parts == {"Alder": {"Alder": 0.25, "Birch": 0.75}}
    assert as_one.players == ["Alder", "Cedar"]
    values = shapley_matrix(as_one, (*SITES, "Cedar"))[:, 2, 0]
    assert values.tolist() == pytest.approx([0.25 * 0.15, 0.75 * 0.15, 0.25])  # the pair adds .2 to nobody, .1 to Cedar
    assert leave_one_out_matrix(as_one, (*SITES, "Cedar"))[:, 2, 0].tolist() == pytest.approx([0.025, 0.075, 0.2])


def test_games_draws_share_patients(tmp_path):
    """Half the draws of two patients are within a standard error of their mean: Student's t of one degree."""
    cases = {"a": 0.1, "b": 0.3}
    said = {("(nobody)", "Alder", case, "x"): value for case, value in cases.items()}
    said |= {("Alder", "Alder", case, "x"): 2 * value for case, value in cases.items()}
    later = {what: value + 0.1 for what, value in said.items()}
    games = run_of(tmp_path / "run", rows_of(0, said) + rows_of(1, later)).games("multi_round")
    first, second = (game.utilities[frozenset({"Alder"})][0] for game in games)
    np.testing.assert_allclose(second, first + 0.1)
    np.testing.assert_allclose(first, 2 * games[0].utilities[EMPTY_COALITION][0])
    assert np.mean(np.abs(first - 0.4) < 0.2) == pytest.approx(0.5, abs=0.15)
    assert np.isnan(games[0].utilities[EMPTY_COALITION][1]).all()  # Birch tested nothing


def test_games_with_single_patient_have_nan_draws(tmp_path):
    said = {("Alder", "Alder", case, "x"): value for case, value in {"a": 0.1, "b": 0.3}.items()}
    said |= {("Alder", "Birch", "a", "x"): 0.5}
    (game,) = run_of(tmp_path / "run", rows_of(0, said)).games("multi_round")
    assert game.utilities[frozenset({"Alder"})][:, 0].tolist() == [0.2, 0.5]
    assert np.isnan(game.utilities[frozenset({"Alder"})][:, 1:]).all()


def test_games_without_observations_name_command(tmp_path):
    run = run_of(tmp_path / "run", rows_of(0, SAID))
    with pytest.raises(BadInput, match="nothing was observed for one_round; run with --values one_round"):
        run.games("one_round")
    assert ObservedRun(run.path).rows.empty  # there is no values.csv


def test_prepared_sites_rejects_missing_folder(tmp_path):
    sites = make_sites(tmp_path / "sites", SITES, size=16)
    with pytest.raises(Untrusted, match="nobody named on this machine"):
        prepared_sites(tmp_path / "run", {"sites_folder": str(sites), "sites": ["Birch"]})
    allow_places(sites)
    found = prepared_sites(tmp_path / "run", {"sites_folder": str(sites), "sites": ["Birch"]})
    assert [folder.name for folder in found] == ["Birch"]
    with pytest.raises(BadInput, match="its images are at the sites"):
        prepared_sites(tmp_path / "run", {"sites_folder": None, "sites": SITES})


def test_require_same_sites_rejects_other_sites(tmp_path):
    one, same = (run_of(tmp_path / name, []) for name in ("one", "same"))
    other = ObservedRun(make_run(tmp_path / "other", sites=("Alder", "Cedar"), rounds=1))
    assert require_same_sites([one, same]) == list(SITES)
    with pytest.raises(BadInput, match=r"other: its sites are Alder, Cedar, those of .*one Alder, Birch"):
        require_same_sites([one, other])


def test_on_average_leaves_out_sites_without_test():
    values = np.array([[1.0, np.nan, np.nan], [2.0, 4.0, np.nan]])
    game = RoundGame(0, {BOTH: values}, np.ones(3))
    assert game.on_average(BOTH).tolist() == pytest.approx([1.5, 4, np.nan], nan_ok=True)


def test_prepared_sites_rejects_changed_images(tmp_path):
    sites = make_sites(tmp_path / "sites", SITES, size=32)
    allow_places(sites)
    info = {"sites_folder": str(sites), "sites": list(SITES)}
    info["site_digests"] = {folder.name: folder.digest for folder in prepared_sites(tmp_path / "run", info)}
    assert [folder.name for folder in prepared_sites(tmp_path / "run", info)] == list(SITES)
    make_sites(sites, SITES, size=64)
    with pytest.raises(BadInput, match=r"sites: Alder, Birch are not what .*run was started with"):
        prepared_sites(tmp_path / "run", info)


def test_innovation_values_divide_each_rounds_gain_by_what_sites_add(tmp_path):
    """At Cedar's patients Alder adds .1 and Birch takes .05; all gain .2. In round 1 nobody gains."""
    dice = {"(nobody)": 0.4, "Alder": 0.5, "Birch": 0.35, "Alder+Birch": 0.6}
    gained = {(models, "Cedar", "a", "x"): value for models, value in dice.items()}
    lost = {(models, "Cedar", "a", "x"): -value for models, value in dice.items()}
    made = make_run(tmp_path / "run", method="fedavg", sites=(*SITES, "Cedar"), rounds=2)
    rows = [row for number, said in ((0, gained), (1, lost)) for row in rows_of(number, said)]
    observed = pd.DataFrame(rows, columns=COLUMNS).assign(split="innovation")
    values = InnovationValues().values(ObservedRun(made, 0, observed))[:, 0]
    assert values.tolist() == pytest.approx([0.2 * 0.1 / 0.15, -0.2 * 0.05 / 0.15, 0.0])
